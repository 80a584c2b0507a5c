"""Built-in tools on files: read, write, edit, search. Paths count from the working folder and stay inside it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.errors import ToolFailed
from harness.tools.base import Tool, schema
from harness.wire import ToolSpec
from traces.schema import JsonObject

MOST_LINES = 2_000
MOST_CHARS = 40_000
MOST_MATCHES = 200
LARGEST_READ = 64 * 2**20
SEARCH_S = 20
_SKIPPED = {".git", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"}
_LINE_CHARS = 300


def file_tools(root: Path, search_s: float = SEARCH_S) -> list[Tool]:
    """The four tools on files below `root`."""
    files = _Files(root.resolve(), search_s)
    return [
        Tool(
            ToolSpec(
                "read",
                "Read a text file. Lines are numbered from 1; offset and limit select some of them.",
                schema("path", path=("string", "File, relative to the working folder."),
                       offset=("integer", "First line, from 1."), limit=("integer", "Number of lines.")),
            ),
            "read",
            files.read,
            whole=True,  # it pages by itself
        ),
        Tool(
            ToolSpec(
                "write",
                "Write a text file, replacing what is there. Missing folders are made.",
                schema("path", "content", path=("string", "File, relative to the working folder."),
                       content=("string", "The whole new content.")),
            ),
            "write",
            files.write,
        ),
        Tool(
            ToolSpec(
                "edit",
                "Replace a text in a file. The old text must occur exactly once, unless all is true.",
                schema("path", "old", "new", path=("string", "File, relative to the working folder."),
                       old=("string", "Text to replace."), new=("string", "Text to put there."),
                       all=("boolean", "Replace every occurrence.")),
            ),
            "write",
            files.edit,
        ),
        Tool(
            ToolSpec(
                "search",
                "Search files for a regular expression (Python syntax), or list files where pattern is empty.",
                schema("pattern", pattern=("string", "Regular expression, matched line by line."),
                       path=("string", "Folder or file to search in."),
                       glob=("string", "Only files whose name matches, such as *.py.")),
            ),
            "read",
            files.search,
        ),
    ]  # fmt: skip


def _within(lines: list[str], most: int) -> list[str]:
    """The first lines, as many as fit; always at least one."""
    size = 0
    for number, line in enumerate(lines):
        size += len(line)
        if size > most:
            return lines[: max(1, number)]
    return lines


class _Files:
    """Tools on files below one folder."""

    def __init__(self, root: Path, search_s: float) -> None:
        self.root, self.search_s = root, search_s

    def place(self, text: str) -> Path:
        """The file meant, inside the working folder. Raises `ToolFailed`."""
        try:
            path = (self.root / text).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise ToolFailed(f"{text!r}: is no path ({error})") from None
        if not path.is_relative_to(self.root):
            raise ToolFailed(f"{text}: is outside the working folder; paths are relative to it")
        return path

    def regular(self, name: str) -> Path:
        """The same; what is there must be a file: a pipe or a device would never end. Raises `ToolFailed`."""
        path = self.place(name)
        if path.exists() and not path.is_file():
            raise ToolFailed(f"{name}: is {'a folder' if path.is_dir() else 'no regular file'}")
        return path

    def text(self, name: str) -> str:
        path = self.regular(name)
        try:
            if path.stat().st_size > LARGEST_READ:
                raise ToolFailed(f"{name}: is larger than {LARGEST_READ >> 20} MiB; use shell")
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ToolFailed(f"{name}: is no UTF-8 text") from None
        except OSError as error:
            raise ToolFailed(f"{name}: {(error.strerror or 'cannot be read').lower()}") from None

    def read(self, arguments: JsonObject) -> str:
        lines = self.text(arguments["path"]).removesuffix("\n").split("\n")
        start = max(1, arguments.get("offset", 1))
        limit = min(arguments.get("limit", MOST_LINES), MOST_LINES)
        chosen = _within(lines[start - 1 : start - 1 + limit], MOST_CHARS)
        out = "\n".join(f"{number}\t{line}" for number, line in enumerate(chosen, start))
        rest = len(lines) - (start - 1 + len(chosen))
        more = f"\n… {rest} more lines, go on with offset {start + len(chosen)}" if rest > 0 else ""
        return (out[: 2 * MOST_CHARS] or "(empty)") + more

    def write(self, arguments: JsonObject) -> str:
        path = self.regular(arguments["path"])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(arguments["content"], encoding="utf-8")
        except OSError as error:
            raise ToolFailed(f"{arguments['path']}: {(error.strerror or 'cannot be written').lower()}") from None
        return f"wrote {len(arguments['content'].encode())} bytes to {arguments['path']}"

    def edit(self, arguments: JsonObject) -> str:
        name, old = arguments["path"], arguments["old"]
        text = self.text(name)
        count = text.count(old) if old else 0
        if not count:
            raise ToolFailed(f"{name}: the old text does not occur; read the file and copy it exactly")
        if count > 1 and not arguments.get("all"):
            raise ToolFailed(f"{name}: the old text occurs {count} times; add lines around it, or set all")
        self.write({"path": name, "content": text.replace(old, arguments["new"])})
        return f"replaced {count} in {name}"

    def search(self, arguments: JsonObject) -> str:
        try:
            pattern = re.compile(arguments["pattern"])
        except re.error as error:
            raise ToolFailed(f"pattern: {error}") from None
        files = self._below(self.place(arguments.get("path", ".")), arguments.get("glob", "*"))
        named = [(f"{path.relative_to(self.root)}", path) for path in files]
        found = self._matches(named, pattern.pattern) if pattern.pattern else [name for name, _ in named]
        if len(found) > MOST_MATCHES:
            return "\n".join(found[:MOST_MATCHES]) + f"\n… cut at {MOST_MATCHES}; search more narrowly"
        return "\n".join(found) or "nothing found"

    def _below(self, start: Path, glob: str) -> Iterator[Path]:
        if start.is_file():
            yield start
            return
        for path in sorted(start.rglob(glob)):
            real = path.resolve()  # a glob may hold "..", and lead through a link
            inside = real == path and path.is_relative_to(self.root) and path.is_file()
            if inside and not _SKIPPED & set(path.relative_to(self.root).parts):
                yield path

    def _matches(self, files: list[tuple[str, Path]], pattern: str) -> list[str]:
        asked = {
            "pattern": pattern, "files": [(name, str(path)) for name, path in files], "most": MOST_MATCHES,
            "chars": _LINE_CHARS,
        }  # fmt: skip
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("searching.py"))]
        try:
            done = subprocess.run(
                command, input=json.dumps(asked).encode(), capture_output=True, timeout=self.search_s, check=True
            )
        except subprocess.TimeoutExpired:
            raise ToolFailed(f"took more than {self.search_s} s; use a simpler pattern or fewer files") from None
        found: list[str] = json.loads(done.stdout)
        return found
