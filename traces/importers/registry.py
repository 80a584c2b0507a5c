"""Other tools' files: the formats that are read beside the native one, in the order in which they are asked.

One module a format, `traces/importers/NAME.py`, named in `NAMES`. Each has three public names, or four where its
files hold bodies:

    NAME: str
        what messages and `cachewright audit` call the format, for example "claude_code"
    sniff(head: bytes) -> bool
        whether a file that starts with these bytes (at most 64 KiB, a byte order mark left on) is of this format. By
        content, never by name. It must be sure: the first that says yes gets the file. `traces.lines.objects(head)`
        gives the JSON objects of the first lines
    read(path: Path, *, on_reject: OnReject | None) -> Iterator[Call]
        the calls of one file, streaming in constant memory, each with `place` (`Place.file` is `f"{path}"`, so that it
        can be read again). A row that gives no call and should have goes to `on_reject` with its place and reason, a
        torn last line as `pending`, and reading goes on; rows that are no calls (prompts, titles) are passed over in
        silence. Raises `OSError` or `UnreadableInput`, nothing else
    read_open(file: BinaryIO, path: str, *, on_reject: OnReject | None) -> Iterator[Call]
        optional: as read, of a file that is open at its start (a format of which a machine holds thousands of files)
    request(span: bytes) -> JsonObject | None
        the request body in the bytes at a call's place, so that it can be read again. The place is whatever suffices: a
        line, an element of a document's list, or of a list of messages those in front of an answer

`traces.io.read` asks native JSON Lines and usage tables first, then these in order; `traces.io.find` lists files in a
folder whose endings are in `ENDINGS` and, unless native endings, only where some importer says yes to the head.

Meaning of the fields of a call: `id` identifies the response where the format has an id for it (message id, response
id), since copies of one response in several files (forks, resumes, snapshots) are counted once by it; else it is
`STEM:LINE`. `trace` is the session, `agent` the chain in it whose calls follow each other ("main", a sub-agent's id).
`usage.input_tokens` is the whole input. `started_at` is when the request was sent, as far as the format tells, and
`ended_at` when the response was complete. `facts` holds what a transcript tells beside the usage (`traces.schema`).
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

NAMES = (
    *("claude_code", "codex", "pi", "copilot", "opencode", "opencode_db", "gemini_cli", "mini_swe_agent"),
    *("claude_trace", "claude_tap", "har", "mitmproxy", "request_log"),
    *("litellm", "langfuse", "otel", "mooncake", "responses"),
)
"""Modules in the order in which they are asked; each is loaded when it is."""

ENDINGS = (".json", ".db", ".har", ".mitm", ".flow", ".flows", ".sse")
"""Endings of importers' files beside the native `*.jsonl`."""


def importers() -> Iterator[ModuleType]:
    """All formats in their order."""
    return (import_module(f"traces.importers.{name}") for name in NAMES)


def importer_of(head: bytes) -> ModuleType | None:
    """The first importer that knows a file by its first bytes."""
    return next((module for module in importers() if module.sniff(head)), None)


def importer_for(path: Path, size: int = 2**16) -> ModuleType | None:
    """The importer of a file, `None` where no importer knows it. Raises `OSError`."""
    with path.open("rb") as file:
        return importer_of(file.read(size))
