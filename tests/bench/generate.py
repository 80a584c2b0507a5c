"""Writes a large trace: many sessions that each repeat the bundled 14-row trace with texts and ids of their own.

    python tests/bench/generate.py --sessions 2000 --out /tmp/big.jsonl

2,000 sessions are 28,000 calls and 700 MB. Sessions start 20 s apart, so about 32 of them overlap; rows are written in
order of time, as a recording proxy would. Nine of ten sessions have a wording of their own for tools and system; every
tenth uses the common wording with a key of its own. So no session can read another's entries and each reports exactly
the bundled numbers.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

FOURTEEN = Path(__file__).parents[2] / "traces" / "recorded" / "fourteen" / "calls.jsonl"
CHARS_PER_TOKEN = 0.4784
"""Filler per token, chosen so that 2,000 sessions are 700 MB; real text has about 4, at 8 times the size."""
SPACING = timedelta(seconds=20)
COMMON_EVERY = 10
POOL_CHARS = 200_000
WORDS = (
    "the",
    "cache",
    "test",
    "fails",
    "because",
    "repo",
    "path",
    "index",
    "value",
    "None",
    "module",
    "config",
    "def",
)


class Session:
    """Rewrites the bundled rows for one session; each distinct block is rewritten once."""

    def __init__(self, number: int, pool: str, rng: Random, chars: float = CHARS_PER_TOKEN) -> None:
        self.number = number
        self.common = number % COMMON_EVERY == 0
        self.pool = pool
        self.rng = rng
        self.chars = chars
        self.known: dict[str, Json] = {}

    def row(self, template: Json) -> Json:
        """The template's row with this session's ids, times and texts; usage and token counts stay."""
        name = f"s{self.number:05d}"
        shift = self.number * SPACING
        row = {**template, "trace": name, "id": f"{name}-{template['id']}"}
        row["parent"] = f"{name}-{template['parent']}" if template["parent"] else None
        row["key_fp"] = f"key-{name}" if self.common else "key-1"
        for field in ("started_at", "ended_at"):
            row[field] = (datetime.fromisoformat(template[field]) + shift).strftime("%Y-%m-%dT%H:%M:%SZ")
        row["request"] = self.request(template["request"], template["tokens"])
        row["response"] = {**template["response"], "id": f"msg_{name}_{template['seq']}"}
        return row

    def request(self, request: Json, tokens: dict[str, int]) -> Json:
        """The body with all blocks rewritten, markers where they were."""
        owner = "common" if self.common else f"s{self.number:05d}"
        changed = {**request}
        for level in ("tools", "system"):
            blocks = enumerate(request[level])
            changed[level] = [self.block(block, tokens[f"/{level}/{n}"], owner) for n, block in blocks]
        changed["messages"] = [
            {
                "role": message["role"],
                "content": [
                    self.block(block, tokens[f"/messages/{m}/content/{n}"], f"s{self.number:05d}")
                    for n, block in enumerate(message["content"])
                ],
            }
            for m, message in enumerate(request["messages"])
        ]
        return changed

    def block(self, block: Json, tokens: int, owner: str) -> Json:
        """The block with filler and ids of `owner`, the same each time it is sent."""
        plain = {name: value for name, value in block.items() if name != "cache_control"}
        key = json.dumps(plain)
        if key not in self.known:
            self.known[key] = self.rewrite(plain, tokens, owner)
        known = self.known[key]
        return {**known, "cache_control": block["cache_control"]} if "cache_control" in block else known

    def rewrite(self, block: Json, tokens: int, owner: str) -> Json:
        filler = self.filler(block, tokens, owner)
        kind = block.get("type", "tool")
        if kind == "tool":
            return {**block, "description": f"{block['description']} {filler}"}
        if kind == "text":
            return {**block, "text": f"{block['text']} {filler}"}
        if kind == "tool_use":
            return {**block, "id": f"{block['id']}_{owner}", "input": {"arg": f"{block['input']['arg']} {filler}"}}
        text = f"{block['content'][0]['text']} {filler}"
        ident = f"{block['tool_use_id']}_{owner}"
        return {**block, "tool_use_id": ident, "content": [{"type": "text", "text": text}]}

    def filler(self, block: Json, tokens: int, owner: str) -> str:
        """Text of about `tokens` * `chars` characters that names its owner."""
        length = round(tokens * self.chars)
        if owner == "common":
            start = len(json.dumps(block)) % 1000
        else:
            start = self.rng.randrange(POOL_CHARS - length)
        return f"[{owner}] {self.pool[start : start + length]}"


def rows(sessions: int, seed: int, chars: float = CHARS_PER_TOKEN) -> Iterator[Json]:
    """All rows of all sessions in order of `started_at`; at most some 40 sessions are held at a time."""
    rng = Random(seed)
    pool = " ".join(rng.choices(WORDS, k=POOL_CHARS // 4))
    templates = [json.loads(line) for line in FOURTEEN.read_text(encoding="utf-8").splitlines()]
    waiting: list[Json] = []
    for number in range(sessions):
        session = Session(number, pool, rng, chars)
        fresh = [session.row(template) for template in templates]
        ready = [row for row in waiting if row["started_at"] < fresh[0]["started_at"]]
        yield from sorted(ready, key=lambda row: str(row["started_at"]))
        waiting = [row for row in waiting if row["started_at"] >= fresh[0]["started_at"]] + fresh
    yield from sorted(waiting, key=lambda row: str(row["started_at"]))


def write(sessions: int, seed: int, out: Path, chars: float = CHARS_PER_TOKEN) -> int:
    """Stream the trace to `out` and return its size in bytes."""
    with out.open("w", encoding="utf-8") as file:
        for row in rows(sessions, seed, chars):
            file.write(json.dumps(row) + "\n")
    return out.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a large trace of many 14-row sessions.")
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--chars", type=float, default=CHARS_PER_TOKEN, help="filler per token")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    size = write(args.sessions, args.seed, args.out, args.chars)
    print(f"{args.out}: {args.sessions} sessions, {14 * args.sessions} calls, {size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
