"""Large outputs go to a file; the conversation gets a preview, the size, and how to read on.

Files are private (folder 0700, file 0600), have random names and are never overwritten. Reading one back is never
spilled again. Where no file can be written the output is cut and says so: spilling must not turn success into failure.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from harness.errors import ToolFailed

INLINE_CHARS = 8_000
"""Longest output that enters the conversation whole, about 2,000 tokens."""

PREVIEW_CHARS = 1_200
READ_LINES = 400
READ_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Spill:
    """A folder for outputs."""

    folder: Path
    inline_chars: int = INLINE_CHARS

    def fit(self, text: str, what: str) -> str:
        """`text` as it may enter the conversation: itself where it is short, else a preview and its file."""
        if len(text) <= self.inline_chars:
            return text
        head, tail = text[: PREVIEW_CHARS // 2], text[-PREVIEW_CHARS // 2 :]
        size = f"{len(text):,} characters, {text.count(chr(10)) + 1:,} lines"
        try:
            name = self.keep(text)
        except OSError as error:
            return (
                f"{head}\n… {what}: {size}; the middle is lost, no file could be written ({error.strerror}) …\n{tail}"
            )
        how = f'read_output {{"file": "{name}", "offset": 0, "limit": {READ_LINES}}} or with "find": "literal text"'
        return f"{head}\n… {what}: {size}; whole output in file {name}. Read on with {how} …\n{tail}"

    def keep(self, text: str) -> str:
        """Write `text` to a new file and return its name."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{uuid4().hex[:12]}.txt"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(self.folder / name, flags, 0o600), "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        return name

    def read(self, name: str, offset: int = 0, limit: int = READ_LINES, find: str = "") -> str:
        """Lines `offset`… of a kept output, numbered from 0; with `find`, only lines that hold this literal text.

        Raises `ToolFailed`.
        """
        path = self.folder / name
        if "/" in name or not path.is_file():
            raise ToolFailed(f"no output named {name!r}; names are in the results of earlier calls")
        lines, size = [], 0
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file):
                if number < offset or (find and find not in line):
                    continue
                lines.append(f"{number}: {line.rstrip()}")
                size += len(lines[-1])
                if len(lines) >= min(limit, READ_LINES) or size > READ_CHARS:
                    lines.append(f"… cut here; go on with offset {number + 1}")
                    break
        return "\n".join(lines)[: READ_CHARS * 2] or "(no such lines)"
