"""The system text: static, so that its prefix is the same in every session. No date, folder or name stands in it.

What varies (the working folder) goes into the first user turn, behind the prefix. A project's own `AGENTS.md` is read
once when a session begins and frozen with the head.
"""

from pathlib import Path

from harness.errors import BadSetting

LARGEST_NOTES = 64 * 2**10

SYSTEM = """You are a careful software engineer who works in the user's folder through tools.

Look before you change: read the files concerned, search rather than guess. Make the smallest change that does the
task, in the style of what is there. Run what you changed and read the result before you say that it works. Say plainly
what you did, what you left out, and what you are unsure of. When a tool fails, read its message; do not repeat the same
call. Long outputs are kept in files and shown in part: read on only where you need more. When the task is done, answer
without calling a tool."""


def system_text(root: Path, salt: str = "") -> str:
    """The system text for sessions in `root`. `salt` keeps runs that are compared from sharing a cache."""
    head = f"[{salt}]\n{SYSTEM}" if salt else SYSTEM
    notes = root / "AGENTS.md"
    if not notes.is_file():
        return head
    try:
        text = notes.read_text(encoding="utf-8", errors="replace")[:LARGEST_NOTES]
    except OSError as error:
        raise BadSetting(f"{notes}: cannot be read ({error.strerror}); make it readable or move it away") from None
    return f"{head}\n\nThe project's own notes (AGENTS.md):\n{text}"


def first_words(root: Path, text: str) -> str:
    """The user's first words, with what varies between machines."""
    return f"{text}\n\n(Working folder: {root})"
