"""What all tests share: the cases beside the checkout, golden files, and consent to paid calls."""

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-update", action="store_true", help="write the golden files instead of comparing")
    parser.addoption("--live", action="store_true", help="run the tests that call paid endpoints")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--live"):
        return
    for item in items:
        if item.get_closest_marker("live"):
            item.add_marker(pytest.mark.skip(reason="calls a paid endpoint; run with --live"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of cases and recorded sessions that lies beside some checkouts."""
    path = TESTS.parent.parent / "shared"
    if not path.is_dir():
        pytest.skip("shared cases are not beside the checkout")
    return path


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, bytes], None]:
    """`golden(name, made)`: fail unless the bytes `made` equal the file tests/golden/`name`."""
    update = bool(request.config.getoption("--golden-update"))

    def compare(name: str, made: bytes) -> None:
        __tracebackhide__ = True
        path = TESTS / "golden" / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made)
        elif not path.exists():
            pytest.fail(f"tests/golden/{name} is missing: run `make golden` and read what it wrote", pytrace=False)
        elif (kept := path.read_bytes()) != made:
            pytest.fail(f"tests/golden/{name} differs; if that is meant, run `make golden`\n{_diff(kept, made)}")

    return compare


def _diff(kept: bytes, made: bytes) -> str:
    old, new = (text.decode(errors="backslashreplace").splitlines() for text in (kept, made))
    lines = list(difflib.unified_diff(old, new, "kept", "made", lineterm=""))
    return "\n".join(lines[:80]) or "only line ends differ"
