"""`cachewright report` in a real browser: Debian's chromium, driven headless; skipped where it is not installed."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import hostile
import pytest

ROOT = Path(__file__).parents[2]
FOURTEEN = ROOT / "traces/recorded/fourteen/calls.jsonl"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PICTURE = ROOT / "docs/images/report.png"
Cachewright = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser; the root user of a container cannot have its sandbox."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield launched
        launched.close()


class Visit:
    """One page opened from a file, with all that it asked for and said."""

    def __init__(self, browser: Any, path: Path, scheme: str = "light") -> None:
        self.page = browser.new_page(color_scheme=scheme, viewport={"width": 900, "height": 700})
        self.requests: list[str] = []
        self.noise: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.noise.append(message.text))
        self.page.on("pageerror", lambda error: self.noise.append(str(error)))
        self.page.goto(path.as_uri())

    def serious(self) -> list[str]:
        """What axe-core holds for serious or critical."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")]


def test_the_page_is_quiet_alone_and_accessible(browser: Any, cachewright: Cachewright, tmp_path: Path) -> None:
    done = cachewright("report", FOURTEEN, "--no-store", "--html", "r.html")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for scheme in ("light", "dark"):
        visit = Visit(browser, tmp_path / "r.html", scheme)
        assert visit.serious() == []
        assert visit.noise == []
        assert visit.requests == [(tmp_path / "r.html").as_uri()]


def test_the_page_has_the_numbers_of_the_json_report(browser: Any, cachewright: Cachewright, tmp_path: Path) -> None:
    cachewright("report", FOURTEEN, "--no-store", "--html", "r.html")
    report = json.loads(cachewright("audit", FOURTEEN, "--no-store", "--json").stdout)
    page, best = Visit(browser, tmp_path / "r.html").page, report["what_if"][-1]
    whole = report["totals"] | {"avoidable": best["saving_equivalents"], "all_fixes": best["input_equivalents"]}
    names = ("input_equivalents", "input_tokens", "read_tokens", "write_tokens", "uncached_tokens")
    shown = {name: page.inner_text(f"#{name.replace('_', '-')}") for name in (*names, "avoidable", "all_fixes")}
    assert {name: Decimal(text.replace(",", "")) for name, text in shown.items()} == {
        name: Decimal(whole[name]) for name in shown
    }
    assert (shown["input_equivalents"], shown["all_fixes"]) == ("381,701", "158,018.5")
    rows = page.eval_on_selector_all(
        "#what-if-table tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
    )
    assert [(row[0], Decimal(row[5].replace(",", ""))) for row in rows] == [
        (row["policy"], Decimal(row["input_equivalents"])) for row in report["what_if"]
    ]
    calls = page.eval_on_selector_all("#calls ~ div tbody tr", "rows => rows.map(row => row.cells[4].innerText)")
    assert [int(text.replace(",", "")) for text in calls] == [call["read_tokens"] for call in report["calls"]]


def test_hostile_text_does_nothing(browser: Any, cachewright: Cachewright, tmp_path: Path) -> None:
    hostile.save(tmp_path / "h.jsonl")
    done = cachewright("report", "h.jsonl", "--no-store", "--html", "h.html", "--markdown", "h.md")
    assert done.returncode == 0, done.stderr
    visit = Visit(browser, tmp_path / "h.html")
    assert (visit.noise, visit.requests) == ([], [(tmp_path / "h.html").as_uri()])
    assert "owned" not in visit.page.title()
    text = visit.page.inner_text("main")
    assert "<script>document.title='owned'</script>" in text
    assert "[@click=app.quit]press[/]" in text
    assert visit.serious() == []


def test_it_prints_and_fits_a_narrow_screen(browser: Any, cachewright: Cachewright, tmp_path: Path) -> None:
    cachewright("report", FOURTEEN, "--no-store", "--html", "r.html")
    page = Visit(browser, tmp_path / "r.html").page
    assert page.pdf().startswith(b"%PDF")
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_by_keyboard_and_on_paper(browser: Any, cachewright: Cachewright, tmp_path: Path) -> None:
    cachewright("report", FOURTEEN, "--no-store", "--html", "r.html")
    page = Visit(browser, tmp_path / "r.html").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the report"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText"))
    assert {"Paid tokens by cause", "What-if table", "Table of calls", "Rules"} <= reached
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.is_visible("nav")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 900


def test_the_picture_in_the_docs(
    browser: Any, cachewright: Cachewright, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Fonts differ from machine to machine, so that only its size and that it is there are compared."""
    shutil.copy(FOURTEEN, tmp_path / "run.jsonl")
    cachewright("report", "run.jsonl", "--no-store", "--html", "r.html")
    shot = Visit(browser, tmp_path / "r.html").page.screenshot()
    if request.config.getoption("--golden-update"):
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_bytes(shot)
    assert shot[:24] == PICTURE.read_bytes()[:24]


def test_without_a_page_to_write(cachewright: Cachewright) -> None:
    done = cachewright("report", FOURTEEN, "--no-store")
    assert done.returncode == 2
    assert "--html FILE or --markdown FILE" in done.stderr


def test_where_it_cannot_write(cachewright: Cachewright) -> None:
    done = cachewright("report", FOURTEEN, "--no-store", "--html", "none/r.html")
    assert done.returncode == 3
    assert done.stderr == "cachewright: none/r.html: cannot be written (No such file or directory); " + (
        "name a file in a writable folder\n"
    )


def test_markdown_on_stdout_and_from_the_store(cachewright: Cachewright) -> None:
    assert cachewright("audit", FOURTEEN, "--db", "a.db").returncode == 0
    done = cachewright("report", "--db", "a.db", "--markdown", "-")
    assert done.returncode == 0, done.stderr
    assert "| with all fixes | 158,018.5, 86.83 % read |" in done.stdout
