"""Bodies that real clients sent (a stub answered): their later requests repeat the earlier ones block by block."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from auditor.compare import as_json, compare
from traces.canonical import Interner, canonical
from traces.divergence import first_divergence, side
from traces.schema import Call

CLIENTS = Path(__file__).parents[3] / "shared/traces/clients"
pytestmark = pytest.mark.skipif(not CLIENTS.is_dir(), reason="the shared traces are not beside this checkout")


def bodies(client: str, mode: str, path: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (CLIENTS / f"{client}.jsonl").read_bytes().splitlines()]
    mine = [row for row in rows if row["mode"] == mode and row["path"] == path]
    return [row["body"] for row in mine if isinstance(row.get("body"), dict)]


@pytest.mark.parametrize(
    ("client", "mode", "path", "dialect", "calls"),
    [
        ("codex", "base", "/v1/responses", "responses", 3),
        ("codex", "think", "/v1/responses", "responses", 3),
        ("pi-resp", "base", "/v1/responses", "responses", 3),
        ("pi-resp", "think", "/v1/responses", "responses", 3),
        ("sdk-openai", "base", "/v1/chat/completions", "chat", 3),
        ("llm", "openai", "/v1/chat/completions", "chat", 3),
    ],
)
def test_a_clients_rounds_only_append(client: str, mode: str, path: str, dialect: str, calls: int) -> None:
    interner = Interner(len)
    sent = bodies(client, mode, path)[:calls]
    prompts = [canonical(Call("", "", "openai", None, request=body, model="m"), interner) for body in sent]
    assert len(prompts) == calls
    for (old, before), (new, after) in pairwise(zip(prompts, sent, strict=True)):
        assert old is not None and new is not None and new.dialect == dialect
        assert len(new.blocks) > len(old.blocks)
        assert first_divergence(side(old, before), side(new, after)) is None


def test_the_change_of_one_tools_field_is_found_in_a_real_body() -> None:
    """Codex's second session sets another field of its web search tool: the whole prefix behind it is new."""
    interner = Interner(len)
    last, first = bodies("codex", "base", "/v1/responses")[-1], bodies("codex", "second", "/v1/responses")[0]
    old, new = (canonical(Call("", "", "openai", None, request=body, model="m"), interner) for body in (last, first))
    assert old is not None and new is not None
    found = first_divergence(side(old, last), side(new, first))
    assert found is not None
    assert (found.change, found.path, found.names) == ("edited", "/tools/8/external_web_access", ("web_search",))


def test_diff_reads_a_chat_body() -> None:
    one = {"model": "gpt-6-sol", "prompt_cache_key": "a", "messages": [{"role": "system", "content": "It is 10:31."}]}
    two = {"model": "gpt-6-sol", "prompt_cache_key": "b", "messages": [{"role": "system", "content": "It is 10:32."}]}
    found = as_json(compare(one, two, (b"1", b"2"), None, None))
    assert (found["cause"], found["change"]) == ("system_changed", "date_or_clock")
    assert found["first_change"]["path"] == "/messages/0/content"
    assert [(each["name"], each["path"]) for each in found["parameters"]] == [("prompt_cache_key", "/prompt_cache_key")]
