"""Generates a corpus of Claude Code transcripts: by default 2,000 sessions, 28,000 assistant rows in 8,000 files.

    python tests/bench/corpus.py --out FOLDER             about 46 MB: usage, ids and short texts
    python tests/bench/corpus.py --out FOLDER --full      about 280 MB: with the texts of tools and answers

Each session has 11 responses and three sub-agents of one. Prompts grow, idle gaps let some entries expire, and some
hits stop at tools and system, so that there is something to diagnose. The same
arguments give the same bytes. FOLDER becomes what `CLAUDE_CONFIG_DIR` names.
"""

import argparse
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

MAIN_ROWS = 11
AGENTS = 3
HEAD = 16_500
START = datetime(2026, 8, 3, 8, tzinfo=UTC)
WORDS = (
    "cache",
    "prefix",
    "the",
    "of",
    "file",
    "test",
    "read",
    "return",
    "def",
    "import",
    "value",
    "None",
    "line",
    "\\n",
)


class Session:
    """One conversation while it is written."""

    def __init__(self, number: int, full: bool) -> None:
        self.draw = random.Random(number)
        self.full = full
        self.id = self.uuid()
        self.cwd = f"/home/dev/project-{number % 40}"
        self.now = START + timedelta(minutes=11 * number)
        self.model = self.draw.choice(("claude-opus-4-5-20251101", "claude-sonnet-4-5-20250929"))

    def uuid(self) -> str:
        """A random id that the seed alone decides."""
        return str(UUID(int=self.draw.getrandbits(128), version=4))

    def text(self, size: int) -> str:
        """Words of about `size` characters, short where the corpus is thin."""
        size = size if self.full else min(size, 220)
        return " ".join(self.draw.choices(WORDS, k=max(1, size // 6)))

    def row(self, parent: str | None, agent: str | None, **rest: Any) -> dict[str, Any]:
        """What all rows have, in the order in which the client writes it."""
        row: dict[str, Any] = {"parentUuid": parent, "isSidechain": agent is not None, "userType": "external"}
        row |= {"cwd": self.cwd, "sessionId": self.id, "version": "2.1.29", "gitBranch": "main"}
        row |= {"agentId": agent} if agent else {}
        time = self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return row | rest | {"uuid": self.uuid(), "timestamp": time}

    def asked(self, parent: str | None, agent: str | None) -> dict[str, Any]:
        """A prompt or a tool's result."""
        if parent is None:
            return self.row(parent, agent, type="user", message={"role": "user", "content": self.text(600)})
        output = self.text(int(self.draw.lognormvariate(8.35, 0.8)))
        result = {"tool_use_id": f"toolu_{self.uuid()[:24]}", "type": "tool_result", "content": output}
        extra = {"toolUseResult": {"stdout": output if self.full else "", "stderr": "", "interrupted": False}}
        return self.row(parent, agent, type="user", message={"role": "user", "content": [result]}) | extra

    def answered(self, parent: str, agent: str | None, read: int, write: int) -> dict[str, Any]:
        """A response with its usage."""
        content = [{"type": "text", "text": self.text(500)}]
        split = {"ephemeral_5m_input_tokens": write, "ephemeral_1h_input_tokens": 0}
        usage: dict[str, Any] = {
            "input_tokens": 3,
            "cache_creation_input_tokens": write,
            "cache_read_input_tokens": read,
        }
        usage |= {"cache_creation": split, "output_tokens": self.draw.randint(20, 900), "service_tier": "standard"}
        message: dict[str, Any] = {
            "model": self.model,
            "id": f"msg_{self.uuid().replace('-', '')[:24]}",
            "type": "message",
        }
        message |= {
            "type": "message",
            "role": "assistant",
            "content": content,
            "stop_reason": "tool_use",
            "stop_sequence": None,
        }
        row = self.row(parent, agent, message=message | {"usage": usage}, requestId=f"req_{self.uuid()[:24]}")
        return row | {"type": "assistant"}

    def chain(self, responses: int, agent: str | None = None) -> Iterator[dict[str, Any]]:
        """The rows of one conversation."""
        parent, cached, gap = None, 0, 0
        total = HEAD + self.draw.randint(500, 4000)
        for _ in range(responses):
            asked = self.asked(parent, agent)
            expired = gap >= 300
            lost = cached > 0 and self.draw.random() < 0.02
            read = 0 if expired or not cached else HEAD if lost else cached
            self.now += timedelta(seconds=3 + self.draw.random() * 8)
            answer = self.answered(asked["uuid"], agent, read, total - read)
            yield asked
            yield answer
            parent, cached = answer["uuid"], total
            total += self.draw.randint(150, 2500)
            gap = self.draw.choices((4, 25, 120, 400), (60, 25, 10, 5))[0]
            self.now += timedelta(seconds=gap)


def write(folder: Path, sessions: int, full: bool) -> None:
    """Write the corpus below `folder`/projects."""
    for number in range(sessions):
        session = Session(number, full)
        place = folder / "projects" / session.cwd.replace("/", "-")
        agents = place / session.id / "subagents"
        agents.mkdir(parents=True, exist_ok=True)
        _write(place / f"{session.id}.jsonl", session.chain(MAIN_ROWS))
        for _ in range(AGENTS):
            name = session.uuid()[:7]
            _write(agents / f"agent-{name}.jsonl", session.chain(1, name))


def _write(file: Path, rows: Iterator[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a corpus of Claude Code transcripts.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--full", action="store_true", help="with the texts of tools and answers")
    args = parser.parse_args()
    write(args.out, args.sessions, args.full)
