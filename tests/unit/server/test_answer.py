"""Tokens as events: text, stop sequences, tool calls, cut anywhere; prompts by the model's template, block by block."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
pytest.importorskip("tokenizers", reason="tokenizers is not installed (extra `local`)")
pytest.importorskip("starlette", reason="the server needs the extra `local`")

from hypothesis import given
from hypothesis import strategies as st

from localmodel.engine.scheduler import End
from localmodel.engine.template import CHATML
from localmodel.server.answer import Answering, read_call
from localmodel.server.errors import BadSettings
from localmodel.server.model import Event, Finished, Generation, TextPiece, ToolPiece, ToolStart
from localmodel.server.segments import segment_of
from localmodel.server.serve import build
from localmodel.server.settings import Settings
from traces.wire.anthropic import parts

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


class Letters:
    """A detokeniser whose tokens are characters."""

    def feed(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return ""


def answered(text: str, *, stop: tuple[str, ...] = (), end: End = "end", tools: tuple[str, ...] = ("add",),
             choice: str = "auto") -> list[Event]:  # fmt: skip
    """The events of an answer that comes letter by letter, adjacent pieces of text joined."""
    events: list[Event] = []
    request = Generation({}, 100, {name: {} for name in tools}, choice, stop=stop, seed=b"s")
    answer = Answering(request, Letters(), events.append)  # type: ignore[arg-type]
    for letter in text:
        if answer.token(ord(letter)):
            end = "enough"
            break
    answer.end(end)
    return joined(events)


def joined(events: list[Event]) -> list[Event]:
    made: list[Event] = []
    for event in events:
        if isinstance(event, TextPiece) and made and isinstance(made[-1], TextPiece):
            made[-1] = TextPiece(made[-1].text + event.text)
        else:
            made.append(event)
    return made


def shown(events: list[Event]) -> list[Any]:
    """Events as values: text, (name, arguments), and the reason at the end."""
    found: list[Any] = []
    for event in events:
        if isinstance(event, TextPiece):
            found.append(event.text)
        elif isinstance(event, ToolStart):
            found.append(event.name)
        elif isinstance(event, ToolPiece):
            found[-1] = (found[-1], event.json)
        elif isinstance(event, Finished):
            found.append(event.reason)
    return found


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("Hello there. ", ["Hello there.", "end_turn"]),
        (CALL, [("add", '{"a":1}'), "tool_use"]),
        (f"I will.\n{CALL}\n{CALL} ", ["I will.", ("add", '{"a":1}'), ("add", '{"a":1}'), "tool_use"]),
        (f"{CALL} and more", [("add", '{"a":1}'), " and more", "tool_use"]),
        (CALL.replace("</tool_call>", ""), [("add", '{"a":1}'), "tool_use"]),
        (CALL.replace("add", "sub"), [CALL.replace("add", "sub"), "end_turn"]),
        ("<tool_call>nonsense</tool_call>!", ["<tool_call>nonsense</tool_call>!", "end_turn"]),
        ("a <tool_ca", ["a <tool_ca", "end_turn"]),
        ("", ["end_turn"]),
    ],
)
def test_calls_are_told_from_text(text: str, events: list[Any]) -> None:
    assert shown(answered(text)) == events


def test_without_tools_or_with_choice_none_all_is_text() -> None:
    assert shown(answered(CALL, tools=())) == [CALL, "end_turn"]
    assert shown(answered(CALL, choice="none")) == [CALL, "end_turn"]
    assert shown(answered("kept ", tools=())) == ["kept ", "end_turn"]


def test_stop_sequences_and_lengths() -> None:
    events = answered("one two three", stop=("tw", "three"))
    assert shown(events) == ["one", "stop_sequence"]
    assert events[-1] == Finished("stop_sequence", 6, "tw")
    assert shown(answered("one tw", stop=("two",), end="length")) == ["one tw", "max_tokens"]
    assert shown(answered(CALL, stop=("arguments",), end="end"))[-1] == "stop_sequence"


@given(st.text(alphabet='<tol_ca/>{}" \n:,nameadrgus1', max_size=60))
def test_nothing_that_is_no_call_is_lost(text: str) -> None:
    found = shown(answered(text))
    if all(isinstance(one, str) for one in found):
        assert "".join(found[:-1]).rstrip() == text.rstrip()


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.text(), inner), max_leaves=8))  # fmt: skip
def test_what_a_call_may_be(value: Any) -> None:
    found = read_call(json.dumps({"name": "add", "arguments": value}))
    assert (found is not None) == isinstance(value, dict)
    assert read_call(json.dumps(value)) is None or (isinstance(value, dict) and "name" in value)


def test_blocks_are_read_as_the_model_was_trained() -> None:
    body = {
        "tools": [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}],
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
                {"type": "text", "text": "2"}]}]},
        ],
    }  # fmt: skip
    tool, *rest = [
        "".join((one.before, one.content, one.after)) for one in (segment_of(p, CHATML) for p in parts(body))
    ]
    assert '{"name": "add", "description": "Adds.", "parameters": {"type": "object"}}' in tool
    assert rest == [
        "<|im_start|>system\nBe brief.<|im_end|>\n",
        "<|im_start|>user\nHi<|im_end|>\n",
        f"<|im_start|>assistant\n{CALL}<|im_end|>\n",
        "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n",
    ]


def test_the_path_of_a_file_that_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(60))
    for name in (str(file), str(tmp_path), str(tmp_path / "none.gguf")):
        with pytest.raises(BadSettings, match="--model "):
            build(Settings(model=name))
