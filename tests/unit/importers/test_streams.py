"""Replies put together from event streams: the cases F01, F11, B17 and B27 of the public bug reports, and what
streams do to a parser."""

import json
from pathlib import Path

import pytest

from traces import io
from traces.importers.streams import events, fold
from traces.schema import Usage
from traces.wire.usage import of_response


def message(stream: str) -> dict[str, object]:
    folded = fold(events(stream))
    assert folded is not None
    return folded


def sse(*rows: object, end: str = "\n", space: str = " ") -> str:
    return "".join(f"data:{space}{row if isinstance(row, str) else json.dumps(row)}{end}{end}" for row in rows)


def test_case_f11_a_stream_without_usage_is_unknown_and_an_error_is_kept(shared: Path) -> None:
    folder = shared / "cases" / "F11"
    expected = json.loads((folder / "expected.json").read_text())
    found = {path.stem: message(path.read_text()) for path in folder.glob("*.sse")}
    usage = {name: of_response(reply, "openai") for name, reply in found.items()}
    assert usage["no_usage"] == Usage() and "error" not in found["no_usage"]
    want = expected["with_usage"]
    assert usage["with_usage"].read_tokens == want["read"]
    assert usage["with_usage"].uncached_tokens == want["uncached"]
    assert usage["with_usage"].output_tokens == want["output"]
    assert usage["error_before_usage"] == Usage() and "error" in found["error_before_usage"]


def test_case_f11_files_are_read_as_one_call_each(shared: Path) -> None:
    for name, read in (("no_usage", None), ("with_usage", 1920), ("error_before_usage", None)):
        (call,) = io.read(shared / "cases" / "F11" / f"{name}.sse")
        assert (call.usage.read_tokens, call.api, call.started_at) == (read, "chat", None)


def test_case_b27_later_usage_overwrites_and_is_never_added(shared: Path) -> None:
    folder = shared / "cases" / "B27"
    for name, want in json.loads((folder / "expected.json").read_text()).items():
        usage = of_response(message((folder / f"{name}.sse").read_text()), "anthropic")
        assert (usage.uncached_tokens, usage.write_tokens, usage.read_tokens, usage.output_tokens) == (
            *(want["input"], want["write"], want["read"], want["output"]),
        )
        assert "write_1h" not in want or usage.write_1h_tokens == want["write_1h"]


def test_case_b17_usage_stands_in_a_chunk_without_choices(shared: Path) -> None:
    usage = of_response(message((shared / "cases" / "B17_B18" / "stream.sse").read_text()), "deepseek")
    assert (usage.read_tokens, usage.uncached_tokens, usage.write_tokens) == (80_000, 20_000, None)


def test_case_f01_text_cut_inside_characters_and_lines_is_whole(shared: Path) -> None:
    chunks = (shared / "cases" / "F01_F02" / "chunks.hex").read_text().split()
    reply = message(b"".join(map(bytes.fromhex, chunks)).decode())
    assert "価格は10円🙂です" in json.dumps(reply, ensure_ascii=False)
    usage = of_response(reply, "anthropic")
    assert (usage.uncached_tokens, usage.write_tokens, usage.read_tokens, usage.output_tokens) == (5, 0, 40, 12)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("space", ["", " "])
def test_line_ends_and_the_space_after_data_do_not_matter(end: str, space: str) -> None:
    stream = f": ping{end}{end}event: x{end}" + sse(
        {"choices": [], "usage": {"prompt_tokens": 3}}, end=end, space=space
    )
    assert of_response(message(stream), "openai").input_tokens == 3


def test_damaged_events_and_foreign_ones_are_passed_over() -> None:
    stream = sse("{broken", "[1]", "[DONE]", {"type": "ping"}, {"choices": "?", "usage": {"prompt_tokens": 3}})
    assert of_response(message(stream), "openai").input_tokens == 3
    assert fold(events(sse({"type": "ping"}))) is None


def test_a_messages_stream_that_was_cut_keeps_its_input_and_what_was_said() -> None:
    tool = {"type": "tool_use", "name": "t", "input": {}}
    start = {"id": "m", "usage": {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 1}}
    reply = message(
        sse(
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
            {"type": "content_block_start", "index": 1, "content_block": tool},
            {"type": "content_block_delta", "index": 1, "delta": {"partial_json": '{"a":'}},
            {"type": "content_block_delta", "index": 1, "delta": {"partial_json": "1}"}},
        )
    )
    assert reply["content"] == [{"type": "text", "text": "Hel"}, {"type": "tool_use", "name": "t", "input": {"a": 1}}]
    assert of_response(reply, "anthropic").input_tokens == 10


def test_an_error_inside_a_messages_stream_keeps_the_usage_seen() -> None:
    usage = {"input_tokens": 4, "cache_read_input_tokens": 6}
    reply = message(
        sse({"type": "message_start", "message": {"usage": usage}}, {"type": "error", "error": {"type": "overloaded"}})
    )
    assert reply["error"] == {"type": "overloaded"}
    assert of_response(reply, "anthropic").read_tokens == 6


def test_a_responses_stream_takes_its_last_event_and_the_items_before_it() -> None:
    item = {"type": "message", "id": "i"}
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 1}}
    reply = message(
        sse(
            {"type": "response.created", "response": {"id": "r", "status": "in_progress"}},
            {"type": "response.output_item.done", "item": item},
            {"type": "response.completed", "response": {"id": "r", "output": [], "usage": usage}},
        )
    )
    assert reply["output"] == [item]
    assert of_response(reply, "openai") == Usage(9, 8, 1)
    cut = message(sse({"type": "response.created", "response": {"id": "r", "status": "in_progress"}}))
    assert cut["id"] == "r" and of_response(cut, "openai") == Usage()


def test_gemini_and_llama_cpp_streams() -> None:
    chunks = [
        {"candidates": [], "usageMetadata": {"promptTokenCount": 9}},
        {"usageMetadata": {"candidatesTokenCount": 2}},
    ]
    assert of_response(message(sse(*chunks)), "gemini") == Usage(9, output_tokens=2)
    timed = {"choices": [], "timings": {"prompt_n": 4, "cache_n": 6, "predicted_n": 2}}
    assert of_response(message(sse(timed)), "llama.cpp") == Usage(10, 6, output_tokens=2)
