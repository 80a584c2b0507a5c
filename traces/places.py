"""Where tools keep their sessions, by default and as the environment says.

A folder that is not there is no error: the tool was never used.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """Sessions of one tool. `why` is the variable that moved the folder, empty for the default."""

    tool: str
    folder: Path
    why: str = ""

    def __str__(self) -> str:
        return f"{self.tool}: {self.folder}" + (f" (from {self.why})" if self.why else "")


def places(environment: Mapping[str, str], home: Path) -> list[Place]:
    """All folders to look in, in the order in which they are named to the user."""
    return list(_places(environment, home))


def _places(environment: Mapping[str, str], home: Path) -> Iterator[Place]:
    config = _folder(environment, "XDG_CONFIG_HOME", home / ".config")
    data = _folder(environment, "XDG_DATA_HOME", home / ".local" / "share")
    moved = environment.get("CLAUDE_CONFIG_DIR", "")
    for folder in filter(None, (part.strip() for part in moved.split(","))):
        yield Place("Claude Code", Path(folder).expanduser() / "projects", "CLAUDE_CONFIG_DIR")
    if not moved.strip():
        yield Place("Claude Code", home / ".claude" / "projects")
        yield Place("Claude Code", config / "claude" / "projects")
    codex, why = (environment.get("CODEX_HOME"), "CODEX_HOME")
    root = Path(codex).expanduser() if codex else home / ".codex"
    for name in ("sessions", "archived_sessions"):
        yield Place("Codex", root / name, why if codex else "")
    agent = environment.get("PI_CODING_AGENT_DIR")
    pi = Path(agent).expanduser() if agent else home / ".pi" / "agent"
    yield Place("Pi", pi / "sessions", "PI_CODING_AGENT_DIR" if agent else "")
    yield Place("OpenCode", data / "opencode", "XDG_DATA_HOME" if environment.get("XDG_DATA_HOME") else "")
    yield Place("Gemini CLI", home / ".gemini" / "tmp")
    yield Place("Copilot CLI", home / ".copilot" / "session-state")


def _folder(environment: Mapping[str, str], name: str, default: Path) -> Path:
    """A base folder of the XDG specification, which wants relative ones ignored."""
    named = Path(environment.get(name) or "")
    return named if named.is_absolute() else default
