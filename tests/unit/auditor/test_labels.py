"""The providers' own labels: each value means one thing, and none is a miss by itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from auditor.audit import audit
from auditor.records import Audited
from auditor.store import Store
from localmodel.rules.book import Rulebook
from traces import io
from traces.schema import Call, Label
from traces.wire.labels import anthropic_label, label_of, openai_label

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("found", "asked", "value", "finds", "what"),
    [
        ({"cache_miss_reason": {"type": "tools_changed", "cache_missed_input_tokens": 7}}, None, "tools_changed",
         "change", "tools"),
        ({"cache_miss_reason": {"type": "messages_changed"}}, True, "messages_changed", "change", "messages"),
        ({"cache_miss_reason": {"type": "previous_message_not_found"}}, True, "previous_message_not_found",
         "not_found", None),
        ({"cache_miss_reason": {"type": "unavailable"}}, True, "unavailable", "unavailable", None),
        ({"cache_miss_reason": {"type": "something_new"}}, True, "something_new", "unavailable", None),
        ({"cache_miss_reason": None}, True, "cache_miss_reason: null", "pending", None),
        (None, True, "null", "none", None),
    ],
)  # fmt: skip
def test_each_anthropic_value_says_one_thing(
    found: Any, asked: bool | None, value: str, finds: str, what: str | None
) -> None:
    label = anthropic_label(found, asked=asked)
    assert label is not None and (label.value, label.finds, label.what) == (value, finds, what)


def test_null_says_nothing_where_nothing_was_asked() -> None:
    assert anthropic_label(None, asked=None) is anthropic_label(None, asked=False) is None
    assert label_of({"diagnostics": {"previous_message_id": None}}, {"diagnostics": None}) is None
    asked = label_of({"diagnostics": {"previous_message_id": "msg_1"}}, {"diagnostics": None})
    assert asked is not None and asked.finds == "none"
    assert label_of(None, {"usage": {}}) is label_of(None, None) is None


@pytest.mark.parametrize(
    ("found", "finds", "what"),
    [
        ({"type": "cache_hit"}, "none", None),
        ({"type": "comparison_response_not_found"}, "not_found", None),
        ({"type": "unavailable"}, "unavailable", None),
        ({"type": "cache_miss", "reason": "reasoning_effort_changed"}, "change", "effort"),
        ({"type": "cache_miss", "reason": "prompt_cache_key_changed"}, "change", "key"),
        ({"type": "cache_miss", "reason": "new_reason"}, "unavailable", None),
    ],
)
def test_each_openai_value_says_one_thing(found: Json, finds: str, what: str | None) -> None:
    label = openai_label(found)
    assert label is not None and (label.finds, label.what) == (finds, what)


def second(label: Any, read: int, minutes: int = 1, provider: str = "anthropic") -> Audited:
    """The second of two calls without bodies: 50,000 tokens were cached, `read` of them were read."""
    field = "diagnostics" if provider == "anthropic" else "prompt_cache_diagnostics"
    rows = [
        {"provider": provider, "trace": "t", "started_at": "2026-11-02T10:00:00Z", "model": "m",
         "usage": {"input_tokens": 50_000, "read_tokens": 0, "write_tokens": 50_000}},
        {"provider": provider, "trace": "t", "started_at": f"2026-11-02T10:{minutes:02}:00Z", "model": "m",
         "usage": {"input_tokens": 51_000, "read_tokens": read, "write_tokens": 51_000 - read},
         "response": {field: label}},
    ]  # fmt: skip
    calls = [io.parse(json.dumps(row).encode()) for row in rows]
    return audit(calls, Rulebook(), lambda one: None).calls[1]


def reason(word: str) -> Json:
    return {"cache_miss_reason": {"type": word, "cache_missed_input_tokens": 40_000}}


@pytest.mark.parametrize(
    ("word", "cause"),
    [("tools_changed", "tools_changed"), ("system_changed", "system_changed"), ("model_changed", "model_changed"),
     ("messages_changed", "history_rewritten")],
)  # fmt: skip
def test_a_label_of_a_change_names_a_loss_that_numbers_cannot(word: str, cause: str) -> None:
    found = second(reason(word), 0).diagnosis
    assert found is not None
    assert (found.primary.cause, found.primary.status, found.lost_tokens) == (cause, "established", 50_000)
    assert word in found.primary.evidence[0]


@pytest.mark.parametrize("label", [reason("previous_message_not_found"), reason("unavailable"), None,
                                   {"cache_miss_reason": None}])  # fmt: skip
def test_other_labels_leave_the_cause_open(label: Any) -> None:
    found = second(label, 0).diagnosis
    assert found is not None and found.primary.cause == "unknown"


def test_a_label_without_a_read_drop_is_no_miss() -> None:
    for word in ("system_changed", "messages_changed", "unavailable"):
        found = second(reason(word), 50_000)
        assert (found.verdict, found.diagnosis) == ("hit", None)


def test_idle_time_that_suffices_stays_the_cause_or_stands_beside_the_change() -> None:
    found = second(reason("previous_message_not_found"), 0, minutes=30).diagnosis
    assert found is not None and found.primary.cause == "ttl_expired"
    assert "no longer knew the earlier request" in found.primary.evidence[-1]
    both = second(reason("tools_changed"), 0, minutes=30).diagnosis
    assert both is not None and both.primary.cause == "tools_changed"
    assert [(one.cause, one.status, one.lost_tokens) for one in both.also][:1] == [("ttl_expired", "likely", 0)]


def test_openai_compared_and_found_nothing() -> None:
    found = second({"type": "cache_hit"}, 0, provider="openai").diagnosis
    assert found is not None and (found.primary.cause, found.primary.status) == ("provider_side", "likely")
    key = second({"type": "cache_miss", "reason": "prompt_cache_key_changed"}, 0, provider="openai").diagnosis
    assert key is not None
    assert (key.primary.cause, key.primary.parameter) == ("scope_changed", "prompt_cache_key")


def test_labels_are_kept_and_older_rows_have_them_among_their_facts(tmp_path: Path) -> None:
    kept = Call("a", "t", "anthropic", None, label=Label("tools_changed", "change", "tools", 57))
    older = Call("b", "t", "anthropic", None, facts={"client": "x", "label": {"type": "messages_changed"}})
    empty = Call("c", "t", "anthropic", None, facts={"label": None})
    with Store.open(tmp_path / "s.db") as store:
        store.add([kept, older, empty])
        labels = {each.id: (each.label, each.facts) for each in store.calls()}
    assert labels["a"] == (kept.label, None)
    assert labels["b"] == (Label("messages_changed", "change", "messages"), {"client": "x"})
    assert labels["c"] == (Label("null", "none"), {})
