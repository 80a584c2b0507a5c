"""Text that breaks careless screens and pages, and a trace in which it stands wherever a trace has words."""

import json
from pathlib import Path
from typing import Any

STRINGS = (
    "[/bold]",
    "[b + should be literal",
    "[red]",
    "{provider}/{type}[/{nestedType}...]/read",
    "[data: /messages?id=bbbc7a8e-609b-]",
    "[@click=app.quit]press[/]",
    "\\[x]",
    "[[double]]",
    "line1\nline2\ttab",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\u202eabc",
    "🏳️‍🌈 é 漢字",
    "a" * 9000,
    "",
    "\x00nul",
    "[link=https://x.test]y[/link]",
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</pre></article><h1>owned</h1>",
    "{{ 7 * 191 }}{% raw %}",
    "&lt;b&gt;&amp;",
    "`code` | cell | ``` [link](https://x.test) <b>",
    "lone \ud800 surrogate",
)


def rows(text: str, number: int = 0) -> list[dict[str, Any]]:
    """Two calls of one session named `text`; the second changes a tool's name and the system text to more of it."""
    return [_row(text, number, 0, f"{text} before", 5000), _row(text, number, 1, f"{text} after", 5100)]


def save(path: Path) -> Path:
    """Write the sessions of all strings as a native trace."""
    lines = (json.dumps(row) for number, text in enumerate(STRINGS) for row in rows(text, number))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    return path


def _row(text: str, number: int, minute: int, changed: str, tokens: int) -> dict[str, Any]:
    mark = {"cache_control": {"type": "ephemeral"}}
    return {
        "schema": "cachewright.trace/1",
        "seq": minute + 1,
        "id": f"{text} {number} {minute}",
        "trace": text,
        "agent": text or "main",
        "provider": "anthropic",
        "key_fp": f"key-{number}",
        "started_at": f"2026-05-01T{number % 24:02}:0{minute}:00Z",
        "ended_at": f"2026-05-01T{number % 24:02}:0{minute}:20Z",
        "status": 200,
        "request": {
            "model": "claude-sonnet-4-5" if number % 2 else text or "claude-sonnet-4-5",
            "tools": [{"name": f"{text} tool", "description": text, "input_schema": {"type": "object"}}],
            "system": [{"type": "text", "text": f"You are {changed}, {text}", **mark}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": text or "-", **mark}]}],
        },
        "response": {
            "usage": {
                "input_tokens": 0,
                "cache_creation_input_tokens": tokens,
                "cache_read_input_tokens": 0,
                "output_tokens": 10,
            }
        },
        "tokens": {"/tools/0": 1200, "/system/0": 2000, "/messages/0/content/0": tokens - 3200},
    }
