"""Usage of each provider in one meaning; the cases B07/B08, B16, B17/B18, B27, B29 of the public bug reports."""

from typing import Any

import pytest

from traces.errors import MalformedRow
from traces.schema import Usage
from traces.wire.usage import MAX_COUNT, merge_stream, normalise, of_response


def test_anthropic_total_is_remainder_plus_read_plus_write_and_the_split_is_inside() -> None:
    raw = {
        "input_tokens": 12,
        "cache_creation_input_tokens": 60_000,
        "cache_read_input_tokens": 100_000,
        "output_tokens": 500,
        "cache_creation": {"ephemeral_5m_input_tokens": 20_000, "ephemeral_1h_input_tokens": 40_000},
    }
    usage = normalise(raw, "anthropic")
    assert usage == Usage(160_012, 100_000, 60_000, 20_000, 40_000, 500)
    assert usage.uncached_tokens == 12
    assert normalise(raw, "some gateway") == usage


def test_a_missing_split_is_unknown_and_the_total_stays() -> None:
    raw = {"input_tokens": 12, "cache_creation_input_tokens": 30_000, "cache_read_input_tokens": 0, "output_tokens": 5}
    assert normalise(raw, "anthropic") == Usage(30_012, 0, 30_000, None, None, 5)


def test_a_split_that_leaves_tokens_out_is_no_split_and_a_lone_split_gives_the_total() -> None:
    split = {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 0}
    raw = {"input_tokens": 1, "cache_read_input_tokens": 0, "cache_creation": split}
    assert normalise(raw, "anthropic") == Usage(21, 0, 20, 20, 0)
    assert normalise(raw | {"cache_creation_input_tokens": 50}, "anthropic") == Usage(51, 0, 50)


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        (
            {"input_tokens": 18_020, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 18_000}},
            Usage(18_020, 0, 18_000),
        ),
        (
            {"input_tokens": 2_600, "input_tokens_details": {"cached_tokens": 2_000, "cache_write_tokens": 400}},
            Usage(2_600, 2_000, 400),
        ),
        ({"input_tokens": 18_020, "input_tokens_details": {"cached_tokens": 0}}, Usage(18_020, 0, None)),
        ({"input_tokens": 18_020, "input_tokens_details": None}, Usage(18_020)),
    ],
)
def test_responses_writes_and_reads_are_slices_of_the_input(raw: dict[str, Any], want: Usage) -> None:
    output = {"output_tokens": 100, "output_tokens_details": {"reasoning_tokens": 60}, "total_tokens": 18_120}
    usage = normalise(raw | output, "openai")
    assert usage == Usage(want.input_tokens, want.read_tokens, want.write_tokens, output_tokens=100)
    assert normalise(raw | output, "anthropic") == usage


def test_uncached_of_a_written_openai_prompt_is_what_is_left() -> None:
    raw = {"input_tokens": 18_020, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 18_000}}
    assert normalise(raw, "openai").uncached_tokens == 20


@pytest.mark.parametrize("nested", [{}, {"prompt_tokens_details": {"cached_tokens": 80_000}}])
def test_deepseek_hits_are_read_misses_are_plain_input_and_nested_values_are_not_added(nested: dict[str, Any]) -> None:
    raw = {"prompt_tokens": 100_000, "completion_tokens": 1_000, "total_tokens": 101_000}
    raw |= {"prompt_cache_hit_tokens": 80_000, "prompt_cache_miss_tokens": 20_000}
    usage = normalise(raw | nested, "deepseek")
    assert usage == Usage(100_000, 80_000, None, output_tokens=1_000)
    assert usage.uncached_tokens == 20_000


@pytest.mark.parametrize(
    ("details", "read"),
    [
        ({}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {}}, None),
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": 58_368}}, 58_368),
        ({"cached_tokens": 7}, 7),
    ],
)
def test_compatible_servers_absent_and_null_are_unknown_and_zero_is_zero(
    details: dict[str, Any], read: int | None
) -> None:
    raw = {"prompt_tokens": 59_000, "completion_tokens": 200} | details
    assert normalise(raw, "openai_compatible") == Usage(59_000, read, output_tokens=200)


def test_a_gateway_that_repeats_anthropic_names_beside_a_whole_is_not_counted_twice() -> None:
    raw = {
        "prompt_tokens": 12_003,
        "completion_tokens": 500,
        "prompt_tokens_details": {"cached_tokens": 0},
        "cache_creation_input_tokens": 12_000,
        "cache_read_input_tokens": 0,
    }
    assert normalise(raw, "anthropic") == Usage(12_003, 0, 12_000, output_tokens=500)


def test_a_bare_input_figure_is_a_remainder_only_for_anthropic() -> None:
    raw = {"input_tokens": 100, "output_tokens": 5}
    assert normalise(raw, "anthropic") == Usage(output_tokens=5)
    assert normalise(raw, "openai") == Usage(100, output_tokens=5)
    assert normalise(raw, "local") == Usage(100, output_tokens=5)


def test_anthropic_reads_without_a_write_field_count_as_no_write_class() -> None:
    assert normalise({"input_tokens": 5, "cache_read_input_tokens": 90}, "deepseek") == Usage(95, 90)


def test_gemini_output_includes_thinking() -> None:
    raw = {"promptTokenCount": 5_000, "candidatesTokenCount": 10, "thoughtsTokenCount": 30, "totalTokenCount": 5_040}
    assert normalise(raw, "gemini") == Usage(5_000, output_tokens=40)
    assert normalise(raw | {"cachedContentTokenCount": 4_096}, "gemini").read_tokens == 4_096
    assert normalise({"total_input_tokens": 9, "total_cached_tokens": 4}, "gemini") == Usage(9, 4)


def test_native_names_are_taken_as_they_are() -> None:
    raw = {"input_tokens": 10, "read_tokens": None, "write_tokens": 3}
    assert normalise(raw, "anthropic") == Usage(10, None, 3)


def test_nothing_reported_is_all_unknown() -> None:
    assert normalise(None, "anthropic") == normalise({}, "openai") == normalise({"x": 1}, "openai") == Usage()


def test_llama_cpp_timings_count_reused_tokens() -> None:
    timings = {"cache_n": 236, "prompt_n": 14, "predicted_n": 30}
    response = {"usage": {"prompt_tokens": 250, "completion_tokens": 31}, "timings": timings}
    assert of_response(response, "llama.cpp") == Usage(250, 236, output_tokens=31)
    assert of_response({"timings": timings}, "llama.cpp") == Usage(250, 236, output_tokens=30)
    assert of_response({"usageMetadata": {"promptTokenCount": 3}}, "gemini") == Usage(3)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (True, "want a whole number of tokens, got true"),
        (1.5, "want a whole number of tokens, got 1.5"),
        ("7", "want a whole number of tokens, got '7'"),
        (float("nan"), "want a whole number of tokens, got nan"),
        (float("inf"), "want a whole number of tokens, got inf"),
        (-3, "is -3, a count is 0 or more"),
        (MAX_COUNT + 1, f"is {MAX_COUNT + 1}, more than {MAX_COUNT}"),
        (10**400, "is a number of 1329 bits, more than"),
        ([1], "got a list"),
    ],
)
def test_values_that_are_no_counts_are_refused_with_field_value_and_bound(value: object, reason: str) -> None:
    with pytest.raises(MalformedRow) as caught:
        normalise({"input_tokens": 1, "cache_read_input_tokens": value}, "anthropic")
    assert str(caught.value).startswith("usage.cache_read_input_tokens")
    assert reason in str(caught.value)


def test_a_whole_float_is_a_count_and_the_largest_count_passes() -> None:
    assert normalise({"prompt_tokens": 100.0}, "x").input_tokens == 100
    assert normalise({"prompt_tokens": MAX_COUNT}, "x").input_tokens == MAX_COUNT


@pytest.mark.parametrize(
    "raw",
    [
        {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 11}},
        {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 5}},
        {"input_tokens": 10, "read_tokens": 11},
        {"cache_creation_input_tokens": 10, "cache_creation": {"ephemeral_5m_input_tokens": 11}},
    ],
)
def test_parts_larger_than_their_total_are_refused_with_both_numbers(raw: dict[str, Any]) -> None:
    with pytest.raises(MalformedRow, match=r"11|read 6 \+ write 5") as caught:
        normalise(raw, "x")
    assert "10" in str(caught.value)


@pytest.mark.parametrize("raw", [[], "x", 7, True])
def test_a_usage_that_is_no_object_is_refused(raw: object) -> None:
    with pytest.raises(MalformedRow, match="usage: want an object"):
        normalise(raw, "anthropic")


def test_details_that_are_no_object_are_refused() -> None:
    with pytest.raises(MalformedRow, match=r"usage\.prompt_tokens_details: want an object, got a list"):
        normalise({"prompt_tokens": 1, "prompt_tokens_details": [1]}, "x")


def test_stream_deltas_are_cumulative_and_never_summed() -> None:
    start = {"input_tokens": 12, "cache_creation_input_tokens": 700, "cache_read_input_tokens": 5_000}
    merged = merge_stream(start | {"output_tokens": 1}, [start | {"output_tokens": 40}, start | {"output_tokens": 95}])
    assert normalise(merged, "anthropic") == Usage(5_712, 5_000, 700, output_tokens=95)


def test_stream_late_fields_replace_the_first_report() -> None:
    late = {"input_tokens": 2, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3_600, "output_tokens": 878}
    merged = merge_stream({"input_tokens": 3_602, "output_tokens": 0}, [late])
    assert normalise(merged, "anthropic") == Usage(3_602, 3_600, 0, output_tokens=878)


def test_stream_nulls_leave_earlier_values_and_the_split() -> None:
    split = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 700}
    start: dict[str, Any] = {"input_tokens": 12, "cache_creation_input_tokens": 700, "cache_read_input_tokens": 5_000}
    start |= {"cache_creation": split, "output_tokens": 1}
    delta = {"input_tokens": None, "cache_creation_input_tokens": None, "output_tokens": 30}
    assert normalise(merge_stream(start, [delta]), "anthropic") == Usage(5_712, 5_000, 700, 0, 700, 30)
    restated = merge_stream(start, [{"cache_creation_input_tokens": 600}])
    assert normalise(restated, "anthropic") == Usage(5_612, 5_000, 600, output_tokens=1)
    assert start["cache_creation"] == split
