"""Matches lines of files against a regular expression. Run as a program of its own: a pattern that never ends can only
be ended with its process, for Python's `re` hears no signal.

Standard input: JSON {"pattern", "files": [[shown name, path], …], "most", "chars"}. Standard output: JSON, the lines.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LARGEST = 2 * 2**20


def matches(asked: dict[str, Any]) -> list[str]:
    """Matching lines, at most one more than `most`, which tells that there are more."""
    pattern, found = re.compile(asked["pattern"]), []
    for name, path in asked["files"]:
        for line in _in_file(pattern, name, path, asked["chars"]):
            found.append(line)
            if len(found) > asked["most"]:
                return found
    return found


def _in_file(pattern: "re.Pattern[str]", name: str, path: str, chars: int) -> Iterator[str]:
    try:
        if Path(path).stat().st_size > LARGEST:
            yield f"{name}: larger than {LARGEST >> 20} MiB, not searched"
            return
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    for number, line in enumerate(text.split("\n"), 1):
        if pattern.search(line):
            yield f"{name}:{number}: {line[:chars]}"


if __name__ == "__main__":
    json.dump(matches(json.load(sys.stdin.buffer)), sys.stdout)
