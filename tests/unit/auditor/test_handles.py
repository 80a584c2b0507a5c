"""Gemini: a request that names cached content read it; what it adds is cached implicitly or not at all."""

import json
from typing import Any

from auditor.audit import audit
from localmodel.rules.book import Rulebook
from traces import io

Json = dict[str, Any]


def row(minute: int, cached: int, total: int, **body: Any) -> Json:
    contents = [{"role": "user", "parts": [{"text": "What does the book say?"}]}]
    usage = {"promptTokenCount": total, "cachedContentTokenCount": cached, "candidatesTokenCount": 5}
    return {
        "provider": "gemini", "model": "gemini-3.8-flash", "trace": "t", "started_at": f"2026-11-02T10:{minute:02}:00Z",
        "request": {"contents": contents, **body}, "response": {"usageMetadata": usage},
    }  # fmt: skip


def test_a_handle_is_read_and_nothing_is_accused() -> None:
    rows = [row(n, 80_000, 80_012, cachedContent="cachedContents/book") for n in range(3)]
    calls = [io.parse(json.dumps(one).encode()) for one in rows]
    for call in audit(calls, Rulebook(), lambda one: None).calls:
        assert call.outcome is not None and call.outcome.style == "handles"
        assert (call.outcome.read_tokens, call.verdict, call.diagnosis, call.agrees) == (80_000, "hit", None, True)


def test_without_a_handle_caching_is_implicit_and_promises_nothing() -> None:
    rows = [row(0, 0, 9000), row(1, 8192, 9000), row(2, 0, 9000)]
    calls = [io.parse(json.dumps(one).encode()) for one in rows]
    found = audit(calls, Rulebook(), lambda one: None).calls
    assert [call.verdict for call in found] == ["cold_write", "hit", "miss"]
    assert found[2].diagnosis is not None and found[2].diagnosis.primary.cause == "provider_side"
