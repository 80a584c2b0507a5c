"""Thinking: asked for once, sent back byte for byte, gone or told as text where the history in front of it changes."""

from pathlib import Path
from typing import Any

import agents
import orjson
import pytest

from harness.compaction import INSTRUCTION, Compactor, cut
from harness.dialects.messages import Messages
from harness.errors import BadSetting, HeadChanged
from harness.providers.base import Feed
from harness.scripted import Scripted
from harness.thinking import budget, room, thinking
from localmodel.rules.load import load
from traces.canonical import dump
from traces.schema import JsonObject

SIGNATURE = "EqQBCgIYAhIM+/=\u00e9\\n" * 3
THOUGHT = {"type": "thinking", "thinking": "Let me look at \u201cit\u201d.\n", "signature": SIGNATURE}
HIDDEN = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4a=="}


def thoughtful(body: JsonObject) -> list[JsonObject]:
    """Thinks before each answer and calls a tool after each thing the user says."""
    last = body["messages"][-1]["content"][-1]
    if INSTRUCTION in last.get("text", ""):
        return [THOUGHT, {"type": "text", "text": "In short."}]
    if last["type"] == "tool_result":
        return [HIDDEN, {"type": "text", "text": "Done."}]
    return [
        THOUGHT,
        {"type": "tool_use", "id": f"t{len(body['messages'])}", "name": "search", "input": {"pattern": ""}},
    ]


class Streaming(Scripted):
    """Sends thinking in pieces, as the API does: the text, then the signature."""

    def stream(self, body: bytes, feed: Feed) -> None:
        message = self.whole(body)
        feed({"type": "message_start", "message": {**message, "content": [], "stop_reason": None}})
        for index, block in enumerate(message["content"]):
            whole = block if block["type"] != "thinking" else {"type": "thinking", "thinking": "", "signature": ""}
            feed({"type": "content_block_start", "index": index, "content_block": whole})
            if block["type"] == "thinking":
                for kind, name in (("thinking_delta", "thinking"), ("signature_delta", "signature")):
                    for piece in (block[name][:5], block[name][5:]):
                        feed({"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}})
            feed({"type": "content_block_stop", "index": index})
        feed({"type": "message_delta", "delta": {"stop_reason": message["stop_reason"]}, "usage": message["usage"]})


def held(folder: Path, asked: str | None = None, name: str | None = None, **rest: Any) -> tuple[Any, Streaming]:
    clock = agents.ManualClock()
    provider = Streaming(load("anthropic"), clock, thoughtful)
    made = agents.options(folder, "http://127.0.0.1:1", thinking=asked, resume=name, **rest)
    return agents.opened(made, provider=provider, dialect=Messages(), clock=clock), provider


def bodies(provider: Scripted) -> list[JsonObject]:
    return [orjson.loads(raw) for raw in provider.bodies]


@pytest.mark.parametrize(
    ("asked", "sent", "limit"),
    [
        ("adaptive", {"type": "adaptive"}, 16_384),
        ("2048", {"type": "enabled", "budget_tokens": 2048}, 10_240),
        (None, None, 8_192),
    ],
)
def test_the_parameter_is_the_same_in_every_request(
    tmp_path: Path, asked: str | None, sent: JsonObject | None, limit: int
) -> None:
    opening, provider = held(tmp_path, asked)
    with opening as run:
        for number in range(6):
            run.agent.say(f"turn {number} " + "and more words " * 200)
        Compactor().compact(run.agent.session)
        run.agent.say("on")
        name = run.shared.name
    found = bodies(provider)
    assert [one.get("thinking") for one in found] == [sent] * len(found)
    assert {one["max_tokens"] for one in found} == {limit}
    opening, provider = held(tmp_path, None, name)
    with opening as run:
        run.agent.say("still")
    assert bodies(provider)[0].get("thinking") == sent


def test_a_change_is_an_error(tmp_path: Path) -> None:
    opening, _ = held(tmp_path, "adaptive")
    with opening as run:
        run.agent.say("hello")
        name = run.shared.name
        run.agent.session.head.fields["thinking"]["type"] = "enabled"
        with pytest.raises(HeadChanged):
            run.agent.say("again")
    with pytest.raises(BadSetting, match=r"--thinking 2048: the session was held with \{'type': 'adaptive'\}"):
        held(tmp_path, "2048", name)[0].__enter__()


def test_blocks_go_back_byte_for_byte_also_after_a_resume(tmp_path: Path) -> None:
    opening, provider = held(tmp_path, "adaptive")
    with opening as run:
        run.agent.say("first")
        name = run.shared.name
    second, resumed = held(tmp_path, None, name)
    with second as run:
        run.agent.say("second")
    journal = (tmp_path / "sessions" / name / "main.jsonl").read_bytes()
    for raw in (provider.bodies[-1], resumed.bodies[0], journal):
        assert dump(THOUGHT) in raw
    assert dump(HIDDEN) in resumed.bodies[0] and dump(HIDDEN) in journal


def test_the_tail_has_no_thinking_and_what_is_under_way_is_told_as_text(tmp_path: Path) -> None:
    """A call that was thought about may be sent neither with its thinking (another history) nor without it."""
    opening, provider = held(tmp_path, "2048")
    with opening as run:
        for number in range(8):
            run.agent.say(f"turn {number} " + "and more words " * 200)
        session = run.agent.session
        session.append(session.dialect.user("one more"))
        session.ask()
        (call,) = session.open_calls()
        session.append(session.dialect.results([run.agent.tools.call(call)]))
        for size in range(0, 20_000, 1_000):
            raw = dump([list(turn.items) for turn in cut(session, size)])
            assert b'"thinking"' not in raw and SIGNATURE.encode() not in raw
        Compactor().compact(session)
        sent = len(provider.bodies)
        session.ask()
        last = bodies(provider)[sent]
    content = last["messages"][-1]["content"]
    assert [block["type"] for block in content] == ["text"]
    assert content[0]["text"].startswith("Your last tool calls and what they gave") and call.id in content[0]["text"]
    answers = [block for one in last["messages"] if one["role"] == "assistant" for block in one["content"]]
    assert all(block["type"] not in ("thinking", "redacted_thinking") for block in answers)


@pytest.mark.parametrize("asked", ["no", "1023", "-5", "1e4", "²³⁴⁵", ""])
def test_what_cannot_be_asked_for(asked: str) -> None:
    with pytest.raises(BadSetting, match="--thinking"):
        thinking(asked, "messages")
    with pytest.raises(BadSetting, match="the chat API has no such member"):
        thinking("adaptive", "chat")


def test_sizes() -> None:
    assert budget({"thinking": {"type": "enabled", "budget_tokens": 2048}}) == 2048
    assert budget({"thinking": {"type": "adaptive"}}) == budget({}) == 0
    assert (room({}), room({"thinking": {"type": "adaptive"}})) == (0, 8_192)
