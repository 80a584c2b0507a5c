"""The 14-row trace as raw captures hold it: the audit says of each call what it says of the native file."""

import base64
import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path("traces/recorded/fourteen")
URL = "https://api.anthropic.com/v1/messages"
Json = dict[str, Any]


def rows() -> list[Json]:
    return [json.loads(line) for line in (Path(__file__).parents[2] / FOLDER / "calls.jsonl").read_text().splitlines()]


def headers(row: Json) -> dict[str, str]:
    found = {"x-api-key": "sk-test-key", "x-claude-code-session-id": row["trace"]}
    return found if row["agent"] == "main" else found | {"x-claude-code-agent-id": row["agent"]}


def seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def native(folder: Path) -> Path:
    """Captures hold no token counts of blocks and no parents; their ids are those of the responses."""
    path = folder / "a.jsonl"
    kept = [
        {k: v for k, v in row.items() if k not in ("tokens", "parent")} | {"id": row["response"]["id"]}
        for row in rows()
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    return path


def claude_trace(folder: Path) -> Path:
    def pair(row: Json) -> Json:
        sent = {
            "timestamp": seconds(row["started_at"]),
            "method": "POST",
            "url": URL,
        }
        back = {
            "timestamp": seconds(row["ended_at"]),
            "status_code": 200,
            "headers": {},
            "body_raw": stream(row["response"]),
        }
        return {"request": sent | {"headers": headers(row), "body": row["request"]}, "response": back}

    path = folder / "log.jsonl"
    path.write_text("".join(f"{json.dumps(pair(row))}\n" for row in rows()))
    return path


def stream(response: Json) -> str:
    """The response as events: the start with what is known then, the end with the output."""
    usage = response["usage"]
    start = response | {"usage": usage | {"output_tokens": 1}, "content": []}
    found: list[Json] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    found += [{"type": "message_delta", "delta": {}, "usage": {"output_tokens": usage["output_tokens"]}}]
    return "".join(f"event: {event['type']}\r\ndata: {json.dumps(event)}\r\n\r\n" for event in found)


def har(folder: Path) -> Path:
    def entry(row: Json) -> Json:
        text = base64.b64encode(gzip.compress(stream(row["response"]).encode())).decode()
        pairs = [{"name": name, "value": value} for name, value in headers(row).items()]
        sent = {"method": "POST", "url": URL, "headers": pairs}
        return {
            "startedDateTime": row["started_at"],
            "time": 1000 * (seconds(row["ended_at"]) - seconds(row["started_at"])),
            "request": sent | {"postData": {"text": json.dumps(row["request"])}},
            "response": {"status": 200, "headers": [], "content": {"text": text, "encoding": "base64"}},
        }

    path = folder / "a.har"
    path.write_text(json.dumps({"log": {"version": "1.2", "creator": {}, "entries": [entry(row) for row in rows()]}}))
    return path


def findings(report: Json) -> list[Any]:
    def finding(call: Json) -> Any:
        found = call["diagnosis"] or {}
        place = (found.get("first_change") or {}).get("path")
        return (
            *(call["id"], call["agent"], call["input_tokens"], call["read_tokens"], call["write_tokens"]),
            *(call["basis"], call["verdict"], found.get("cause"), found.get("change"), found.get("lost_tokens"), place),
        )

    return sorted(finding(call) for call in report["calls"])


@pytest.mark.parametrize("captured", [claude_trace, har])
def test_a_capture_gives_the_findings_of_the_native_file(
    audit: Callable[..., Json], tmp_path: Path, captured: Callable[[Path], Path]
) -> None:
    want = findings(audit(native(tmp_path)))
    assert {row[5] for row in want} == {"bodies"} and any(row[10] for row in want)
    assert findings(audit(captured(tmp_path))) == want
