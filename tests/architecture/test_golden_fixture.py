"""The golden fixture and the --live switch of tests/conftest.py do fail and skip when they should."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
USES = """
import pytest
def test_golden(golden): golden("some.txt", b"new\\n")
def test_shared(shared): assert shared.is_dir()
@pytest.mark.live
def test_live(): pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "inner/tests/golden").mkdir(parents=True)
    shutil.copy(TESTS / "conftest.py", tmp_path / "inner/tests")
    shutil.copy(TESTS.parent / "pyproject.toml", tmp_path / "inner")
    (tmp_path / "inner/tests/golden/test_uses.py").write_text(USES)
    return tmp_path / "inner"


def run(checkout: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_missing_golden_file_fails_and_skips_are_printed(checkout: Path) -> None:
    code, out = run(checkout)
    assert code == 1
    assert "tests/golden/some.txt is missing: run `make golden`" in out
    assert "shared cases are not beside the checkout" in out
    assert "run with --live" in out
    assert "1 failed, 2 skipped" in out


def test_update_writes_and_then_it_passes(checkout: Path) -> None:
    assert run(checkout, "tests/golden", "--golden-update")[0] == 0
    assert (checkout / "tests/golden/some.txt").read_bytes() == b"new\n"
    assert run(checkout)[0] == 0


def test_other_bytes_fail_with_a_diff(checkout: Path) -> None:
    (checkout / "tests/golden/some.txt").write_bytes(b"old\n")
    code, out = run(checkout)
    assert code == 1
    assert "-old" in out
    assert "+new" in out


def test_beside_shared_cases_and_with_live_all_run(checkout: Path) -> None:
    (checkout.parent / "shared").mkdir()
    (checkout / "tests/golden/some.txt").write_bytes(b"new\n")
    code, out = run(checkout, "--live")
    assert code == 0
    assert "3 passed" in out
