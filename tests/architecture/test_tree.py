"""The shape of the source tree: empty package files, short files, short functions, no paths of one machine."""

import ast
import os
import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("traces", "localmodel", "auditor", "harness", "probes", "tui")
BUILT = {".git", "build", "dist", "bench-data", "__pycache__", ".hypothesis"}
FILE_LINES, FUNCTION_LINES, MEDIAN_LINES = 400, 60, 10
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files() -> Iterator[Path]:
    """Every file of the checkout except what tools put there."""
    for folder, below, names in os.walk(ROOT):
        here = Path(folder)
        below[:] = sorted(name for name in below if not _made_by_tools(here / name))
        yield from (here / name for name in sorted(names) if not (here / name).is_symlink())


def _made_by_tools(folder: Path) -> bool:
    name = folder.name
    return name in BUILT or name.endswith(("_cache", ".egg-info")) or (folder / "pyvenv.cfg").exists()


def sources() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def product() -> list[Path]:
    return [path for path in sources() if path.relative_to(ROOT).parts[0] in PACKAGES]


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, Function):
            yield node


def length(function: Function) -> int:
    """Lines from `def` to the last one, without the docstring: explaining more must not count against it."""
    first = function.body[0]
    whole = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None or len(function.body) == 1:
        return whole
    return whole - ((first.end_lineno or first.lineno) - first.lineno + 1)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_walk_finds_the_sources() -> None:
    found = {name(path) for path in product()}
    assert {"traces/schema.py", "localmodel/rules/types.py"} <= found


def test_package_files_are_empty() -> None:
    assert [name(path) for path in product() if path.name == "__init__.py" and path.stat().st_size] == []


def test_no_package_files_below_tests() -> None:
    assert [name(path) for path in (ROOT / "tests").rglob("__init__.py")] == []


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in product()}
    assert [name(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_files_are_short() -> None:
    counts = {name(path): len(path.read_bytes().splitlines()) for path in sources()}
    assert {path: count for path, count in counts.items() if count > FILE_LINES} == {}


def test_functions_are_short() -> None:
    counts = {f"{name(path)}:{f.lineno} {f.name}": length(f) for path in sources() for f in functions(path)}
    assert {place: count for place, count in counts.items() if count > FUNCTION_LINES} == {}


def test_the_median_function_is_short() -> None:
    assert statistics.median(length(f) for path in product() for f in functions(path)) <= MEDIAN_LINES


def test_no_utils() -> None:
    assert [name(path) for path in sources() if path.stem in ("utils", "util", "helpers", "common")] == []


def test_length_leaves_out_the_docstring_only() -> None:
    tree = ast.parse('def f():\n    """a\n\n    b\n    """\n    x = 1\n    return x\n')
    (function,) = (node for node in tree.body if isinstance(node, Function))
    assert length(function) == 3


def own_paths() -> list[str]:
    """Absolute paths of this checkout and its parent; the home and temporary folders are anybody's."""
    anybodys = {Path("/"), Path.home(), Path(tempfile.gettempdir()).resolve()}
    return [str(path) for path in (ROOT, ROOT.parent) if path not in anybodys]


def names_a_path(text: str, paths: list[str]) -> bool:
    return any(re.search(rf"(?<![\w.~-]){re.escape(path)}(?![\w-])", text) for path in paths)


def test_no_file_names_the_place_of_this_checkout() -> None:
    paths = own_paths()
    if not paths:
        pytest.skip(f"the checkout lies directly in {ROOT.parent}, whose path says nothing")
    assert [name(path) for path in files() if names_a_path(path.read_text(errors="replace"), paths)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /place/main/x.py", True),
        ('"/place"', True),
        ("file:///place/x", True),
        ("../place/x", False),
        ("a/place/x", False),
        ("/places", False),
    ],
)
def test_paths_are_recognised(text: str, found: bool) -> None:
    assert names_a_path(text, ["/place"]) is found
