"""The vendors' SDKs through the proxy, and in process, into the local server: the record agrees with its account."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `local`")
pytest.importorskip("uvicorn", reason="the server needs the extra `local`")
pytest.importorskip("anthropic", reason="the SDK is not installed")
pytest.importorskip("openai", reason="the SDK is not installed")

import anthropic
import openai
import serving
from proxying import proxied, recorded

from auditor.audit import audit
from auditor.store import Store
from localmodel.rules.load import load
from tui.commands.recording import recorder

KEY = "sk-ant-test-0123456789"
MODEL = "claude-sonnet-5-5"
LONG = "You are helpful and careful with words. " * 400
TOOLS = [
    {
        "name": "add",
        "description": "Adds.",
        "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }
]
Json = dict[str, Any]


@pytest.fixture
def server() -> Iterator[serving.Running]:
    with serving.running() as found:
        yield found


def marked(text: str) -> list[Json]:
    return [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]


def claude_session(client: Any) -> None:
    """Cold, hit, hit, system changed, tools changed, history rewritten, hit; streamed and not."""
    system, tools = LONG, TOOLS
    messages: list[Json] = []

    def turn(text: str, stream: bool) -> None:
        asked = [*messages, {"role": "user", "content": marked(text)}]
        common: Json = {"model": MODEL, "max_tokens": 60, "system": marked(system), "tools": tools, "messages": asked}
        if stream:
            with client.messages.stream(**common) as events:
                reply = events.get_final_message()
        else:
            reply = client.messages.create(**common)
        messages.append({"role": "user", "content": [{"type": "text", "text": text}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": reply.content[0].text}]})

    padding = " and more words to fill it" * 300
    turn("first" + padding, True)
    turn("second" + padding, False)
    turn("third" + padding, True)
    system = LONG + "Today is another day."
    turn("fourth" + padding, True)
    tools = [{**TOOLS[0], "description": "Adds numbers."}]
    turn("fifth" + padding, False)
    messages[2]["content"][0]["text"] = "second, edited" + padding
    turn("sixth" + padding, True)
    turn("seventh" + padding, True)


def compare(db: Path, server: serving.Running, api: str) -> list[tuple[str, str | None]]:
    """Verdict and cause of each call by the audit, after checking them and all usage against the server's account."""
    with Store.open(db) as store:
        result = audit(store.calls(), load("anthropic"), lambda one: store.request(one.call.key or b""))
    mine = [one for one in result.calls if one.call.api == api and one.call.kind != "count"]
    theirs = [row for row in server.client(KEY).calls() if row["api"] == api]
    assert len(mine) == len(theirs) > 0
    found: list[tuple[str, str | None]] = []
    for one, row in zip(mine, theirs, strict=True):
        usage = one.call.usage
        told = (row["input_tokens"], row["read_tokens"], row["write_tokens"], row["output_tokens"])
        assert (usage.input_tokens, usage.read_tokens, usage.write_tokens, usage.output_tokens) == told
        cause = one.diagnosis.primary.cause if one.diagnosis is not None and one.diagnosis.lost_tokens else None
        found.append((one.verdict, cause))
        assert one.verdict == row["verdict"], (found, row)
        if api == "messages" and row["lost_tokens"]:
            assert cause == row["cause"], (found, row)
    return found


def through_proxy(db: Path, server: serving.Running, session: Callable[[str], None]) -> None:
    with proxied(db, server.url) as proxy:
        session(f"{proxy.url}/run/sdk")
        assert not proxy.said


def test_anthropic(tmp_path: Path, server: serving.Running) -> None:
    def session(url: str) -> None:
        with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
            claude_session(client)
            client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "how many"}])
            client.models.list()

    through_proxy(tmp_path / "a.db", server, session)
    found = compare(tmp_path / "a.db", server, "messages")
    assert [verdict for verdict, _ in found[:3]] == ["cold_write", "hit", "hit"]
    assert [cause for _, cause in found[3:6]] == ["system_changed", "tools_changed", "history_rewritten"]
    exchanges = recorded(tmp_path / "a.db")
    assert [one.call.kind if one.call else None for one in exchanges] == ["main"] * 7 + ["count", None]
    assert len({one.conversation for one in exchanges[:5]}) == 1


def test_openai(tmp_path: Path, server: serving.Running) -> None:
    def session(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            messages: list[Any] = [{"role": "developer", "content": f"Chat. {LONG}"}]
            items: list[Any] = []
            for turn in range(3):
                messages.append({"role": "user", "content": f"turn {turn}"})
                options: Any = {"include_usage": True}
                with client.chat.completions.stream(
                    model="gpt-chat", messages=messages, stream_options=options
                ) as events:
                    for _ in events:
                        pass
                    reply = events.get_final_completion()
                messages.append({"role": "assistant", "content": reply.choices[0].message.content})
                items.append({"role": "user", "content": f"turn {turn}"})
                with client.responses.stream(model="gpt-resp", instructions=LONG, input=items, store=False) as more:
                    for _ in more:
                        pass
                    answered = more.get_final_response()
                items += [item.model_dump(exclude_none=True) for item in answered.output]

    through_proxy(tmp_path / "a.db", server, session)
    for api in ("chat", "responses"):
        assert [verdict for verdict, _ in compare(tmp_path / "a.db", server, api)[1:]] == ["hit", "hit"]


def test_in_process(tmp_path: Path, server: serving.Running) -> None:
    """The same record without a proxy: the transport takes the copy."""
    import asyncio

    import httpx2

    from harness.transport import RecordingTransport, SyncRecordingTransport

    async def twice(made: Any) -> None:
        http = httpx2.AsyncClient(transport=RecordingTransport(made, run="async"))
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, http_client=http) as client:
            ask: Json = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
            await client.messages.create(**ask)
            async with client.messages.stream(**ask) as events:
                await events.get_final_message()
            async with client.messages.stream(**ask) as events:
                async for _ in events:
                    break

    db = tmp_path / "a.db"
    with recorder(db) as made:
        http = httpx2.Client(transport=SyncRecordingTransport(made, run="sdk"))
        with anthropic.Anthropic(base_url=server.url, api_key=KEY, http_client=http, max_retries=0) as client:
            claude_session(client)
        asyncio.run(twice(made))
    exchanges = recorded(db)
    assert [cause for _, cause in compare_sync(db)[3:6]] == ["system_changed", "tools_changed", "history_rewritten"]
    late = [one for one in exchanges if one.call and one.call.trace == "async"]
    assert [one.outcome for one in late] == ["complete", "complete", "client_closed"]
    assert KEY not in repr(exchanges)
    assert json.loads(late[0].request or b"")["messages"] == [{"role": "user", "content": "hi"}]


def compare_sync(db: Path) -> list[tuple[str, str | None]]:
    with Store.open(db) as store:
        result = audit(store.calls(trace="sdk"), load("anthropic"), lambda one: store.request(one.call.key or b""))
    return [(one.verdict, one.diagnosis.primary.cause if one.diagnosis else None) for one in result.calls]
