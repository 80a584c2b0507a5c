"""The import contracts hold in the tree, cover all packages, and break when somebody crosses them."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ("traces", "localmodel", "auditor", "harness", "probes", "tui")
STARTS = ("tui > probes", "server > engine", "torch only", "textual only")
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache', '--no-logo'])"


def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def present() -> set[str]:
    return {name for name in HOUSE if (ROOT / name / "__init__.py").exists()}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    # PYTHONPATH puts `folder` before an editable install of the checkout, so that a copy checks itself.
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in present():
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("recorded", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_contracts_hold() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_list_of_packages_names_those_that_exist() -> None:
    tool = settings()["tool"]
    lists = {
        "wheel": tool["hatch"]["build"]["targets"]["wheel"]["packages"],
        "import-linter": tool["importlinter"]["root_packages"],
        "mypy": [name for name in tool["mypy"]["files"] if name not in ("tests", "docs")],
    }
    sources = [c["source_modules"] for c in tool["importlinter"]["contracts"] if c["type"] == "forbidden"]
    assert {name: set(names) for name, names in lists.items()} == dict.fromkeys(lists, present())
    assert [set(names) for names in sources] == [present()] * len(sources)


def test_no_package_of_ours_hides_a_standard_module() -> None:
    assert not set(HOUSE) & sys.stdlib_module_names


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("traces/crossing.py", "import auditor", {"tui > probes", "server > engine"}),
        ("auditor/crossing.py", "import tui", {"tui > probes", "server > engine"}),
        ("localmodel/crossing.py", "import auditor", {"tui > probes"}),
        ("localmodel/engine/crossing.py", "import localmodel.server", {"server > engine"}),
        ("localmodel/rules/crossing.py", "import localmodel.engine", {"server > engine"}),
        ("auditor/crossing.py", "import localmodel.engine", {"server > engine"}),
        ("tui/crossing.py", "import localmodel.server", {"server > engine"}),
        ("auditor/crossing.py", "import torch", {"torch only"}),
        ("localmodel/rules/crossing.py", "def f() -> None:\n    import torch.nn", {"torch only"}),
        ("tui/crossing.py", "import textual", {"textual only"}),
    ],
)
def test_a_crossing_breaks_its_contract_and_no_other(copy: Path, file: str, line: str, broken: set[str]) -> None:
    _engine_and_server(copy)
    (copy / file).write_text(line + "\n")
    done = lint(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    verdicts = [text for text in done.stdout.splitlines() if " BROKEN" in text]
    assert {start for start in STARTS if any(text.startswith(start) for text in verdicts)} == broken
    assert len(verdicts) == len(broken)


def test_the_places_meant_for_torch_and_textual_may_import_them(copy: Path) -> None:
    _engine_and_server(copy)
    (copy / "localmodel/engine/model.py").write_text("import torch\n")
    (copy / "localmodel/server/model.py").write_text("import torch\nimport localmodel.engine.model\n")
    (copy / "tui/screens").mkdir(exist_ok=True)
    (copy / "tui/screens/__init__.py").touch()
    (copy / "tui/screens/some.py").write_text("import textual.app\n")
    done = lint(copy)
    assert done.returncode == 0, done.stdout + done.stderr


def _engine_and_server(copy: Path) -> None:
    for name in ("engine", "server"):
        (copy / "localmodel" / name).mkdir(exist_ok=True)
        (copy / "localmodel" / name / "__init__.py").touch()
