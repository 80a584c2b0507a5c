"""Caches that place their boundaries themselves, against the naive oracle; healthy traces are accused of nothing."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import automatic
import chats
import pytest
from chats import Maker, Message, Piece, Request, later

from auditor.audit import audit
from auditor.records import Audit
from localmodel.rules.book import Rulebook
from traces import io

Json = dict[str, Any]
SEEDS = 40


def audited(rows: Sequence[Json]) -> Audit:
    calls = [io.parse(json.dumps(row).encode()) for row in rows]
    bodies = {call.id: call.request for call in calls}
    return audit(calls, Rulebook(), lambda one: bodies[one.call.id])


KINDS: dict[str, tuple[str, str, Callable[[], Any], bool]] = {
    "openai_128": ("openai", "gpt-5.1", lambda: automatic.Prefixes(128), False),
    "openai_2048": ("openai", "gpt-5.5", lambda: automatic.Prefixes(2048), False),
    "openai_ends": ("openai", "gpt-6-sol", automatic.Ends, True),
    "deepseek": ("deepseek", "deepseek-flash", automatic.Units, False),
    "vllm": ("vllm", "local", lambda: automatic.Prefixes(16, 16, page=True), False),
    "sglang": ("sglang", "local", lambda: automatic.Prefixes(1, 1, page=True), False),
}
"""Provider, model, oracle, and whether its bills have a class of writes."""


def random_requests(seed: int, model: str, marks: bool) -> list[Request]:
    """Conversations that grow, fork, change and idle, in order of time."""
    rng = Random(seed)
    maker = Maker(rng, rng.choice((60, 400, 1200)))
    talks = [maker.request(model)]
    made: list[Request] = []
    now = talks[0]
    for _ in range(rng.randrange(2, 22)):
        n = rng.randrange(len(talks))
        talk = talks[n]
        roll = rng.random()
        if roll < 0.62 and len(made):
            talk = maker.turn(talk, marks)
        elif roll < 0.72:
            talks.append(talk)  # a fork: both go on from here
        elif roll < 0.9:
            talk = _changed(maker, talk)
        gap = rng.choice((0.0, 1.0, 5.0, 40.0, 400.0, 4000.0, 90_000.0, 300_000.0))
        now = replace(later(replace(now, at=now.at), gap, rng.choice((1.0, 3.0, 30.0))))
        talks[n] = talk = replace(talk, at=now.at, ended=now.ended)
        made.append(talk)
    return made


def _changed(maker: Maker, talk: Request) -> Request:
    rng = maker.rng
    roll = rng.randrange(9)
    if roll == 0:
        return replace(talk, tools=(*talk.tools, maker.piece("tool")))
    if roll == 1:
        return replace(talk, system=(maker.piece("system"),))
    if roll == 2 and len(talk.messages) > 2:
        return replace(talk, messages=talk.messages[: rng.randrange(1, len(talk.messages))])
    if roll == 3:
        n = rng.randrange(len(talk.messages))
        old = talk.messages[n]
        new = Message(old.role, (*old.pieces[:-1], maker.piece(old.pieces[-1].kind)))
        return replace(talk, messages=(*talk.messages[:n], new, *talk.messages[n + 1 :]))
    if roll == 4:
        return replace(talk, key=rng.choice(("key-a", "key-b")))
    name, values = rng.choice(
        (
            ("effort", ("low", "high", None)),
            ("format", ({"type": "json_object"}, None)),
            ("prompt_cache_key", ("a", "b", None)),
            ("prompt_cache_retention", ("in_memory", "24h", None)),
            ("user_id", ("u", None)),
            ("prompt_cache_options", ({"mode": "explicit"}, {"mode": "implicit"}, None)),
        )
    )
    return with_param(talk, name, rng.choice(values))


def with_param(talk: Request, name: str, value: Any) -> Request:
    rest = tuple(pair for pair in talk.params if pair[0] != name)
    return replace(talk, params=rest if value is None else (*rest, (name, value)))


def billed(requests: Sequence[Request], kind: str, api: str) -> list[Json]:
    """Rows with the bills that the oracle says."""
    provider, _, oracle, writes = KINDS[kind]
    server = oracle()
    rows = []
    for number, request in enumerate(requests):
        read, write = server.serve(request)
        total = automatic.ends_of(request)[-1]
        usage = chats.usage_of(read, write if writes else None, total, api)
        rows.append(chats.row(request, number, usage, api, provider))
    return rows


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("kind", KINDS)
def test_random_traces_are_predicted_as_the_oracle_says(kind: str, api: str) -> None:
    for seed in range(SEEDS):
        requests = random_requests(seed, KINDS[kind][1], KINDS[kind][3])
        for audited_call, row in zip(audited(rows := billed(requests, kind, api)).calls, rows, strict=True):
            outcome, usage = audited_call.outcome, audited_call.call.usage
            assert outcome is not None
            where = (kind, api, seed, row["id"])
            assert outcome.read_tokens == usage.read_tokens, where
            if usage.write_tokens is not None:
                assert outcome.write_tokens == usage.write_tokens, where
            total = outcome.read_tokens + outcome.write_tokens + outcome.uncached_tokens
            assert total == usage.input_tokens, where
            assert audited_call.agrees, where


# Healthy and changed traces ------------------------------------------------------------------------------------------


def growing(seed: int, model: str, turns: int = 5) -> list[Request]:
    """One conversation that only grows, with pauses shorter than any lifetime."""
    rng = Random(seed)
    maker = Maker(rng, 600)
    talk = replace(maker.request(model), system=(Piece("system", f"instructions {seed}", 3000),))
    made = [talk]
    for _ in range(turns):
        talk = later(maker.turn(talk), rng.uniform(5, 200))
        made.append(talk)
    return made


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("kind", ["openai_128", "openai_2048", "openai_ends", "deepseek", "vllm"])
def test_a_conversation_that_only_grows_is_accused_of_nothing(kind: str, api: str) -> None:
    for seed in range(30):
        rows = billed(growing(seed, KINDS[kind][1]), kind, api)
        if seed % 2:
            for row in rows:
                del row["tokens"]  # as recorded from a real provider: counts are only estimated
        calls = audited(rows).calls
        assert [call.diagnosis for call in calls] == [None] * len(calls), (kind, seed)
        assert [call.verdict for call in calls] == ["cold_write"] + ["hit"] * (len(calls) - 1), (kind, seed)


def test_a_miss_that_no_change_explains_is_the_providers() -> None:
    for kind in ("openai_128", "openai_ends", "deepseek"):
        rows = billed(growing(1, KINDS[kind][1]), kind, "chat")
        writes = KINDS[kind][3]
        total = rows[3]["response"]["usage"]["prompt_tokens"]
        rows[3]["response"]["usage"] = chats.usage_of(0, total if writes else None, total)
        found = audited(rows).calls[3]
        assert found.verdict == "miss" and found.diagnosis is not None
        assert found.diagnosis.primary.cause == "provider_side", kind
        assert {one.cause for one in found.diagnosis.also} == {"evicted"}
        assert not {"history_rewritten", "tools_changed", "system_changed"} & {
            f.cause for f in found.diagnosis.findings
        }


def _tools(maker: Maker, talk: Request) -> Request:
    return replace(talk, tools=(maker.piece("tool"), *talk.tools))


def _system(maker: Maker, talk: Request) -> Request:
    (old,) = talk.system
    return replace(talk, system=(replace(old, text=old.text + " at 10:31"),))


def _history(maker: Maker, talk: Request) -> Request:
    first = talk.messages[0]
    changed = replace(first.pieces[0], text=first.pieces[0].text + " and more")
    return replace(talk, messages=(Message(first.role, (changed, *first.pieces[1:])), *talk.messages[1:]))


CHANGES: dict[str, tuple[Callable[[Maker, Request], Request], str, str | None]] = {
    "tools": (_tools, "tools_changed", None),
    "system": (_system, "system_changed", None),
    "history": (_history, "history_rewritten", None),
    "effort": (lambda maker, talk: with_param(talk, "effort", "high"), "parameter_changed", "effort"),
    "format": (lambda maker, talk: with_param(talk, "format", {"type": "json_object"}), "parameter_changed",
               "output_format"),
    "key": (lambda maker, talk: replace(talk, key="key-b"), "scope_changed", None),
    "model": (lambda maker, talk: replace(talk, model=talk.model + "-mini"), "model_changed", "model"),
    "pause": (lambda maker, talk: later(talk, 400_000), "ttl_expired", None),
}  # fmt: skip


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("change", CHANGES)
def test_one_change_is_named(change: str, api: str) -> None:
    act, cause, parameter = CHANGES[change]
    kinds = ["openai_128", "openai_ends"] + ([] if change in ("effort", "format") else ["deepseek"])
    for kind in kinds:
        for seed in range(8):
            requests = growing(seed, KINDS[kind][1], 4)
            maker = Maker(Random(seed), 600, 10_000)
            requests[-1] = act(maker, requests[-1])
            rows = billed(requests, kind, api)
            calls = audited(rows).calls
            assert all(call.diagnosis is None for call in calls[:-1]), (kind, seed)
            found = calls[-1].diagnosis
            assert found is not None, (kind, seed)
            assert (found.primary.cause, found.primary.parameter) == (cause, parameter), (kind, seed, found)
            status = "likely" if cause == "scope_changed" else "established"
            assert found.primary.status == status, (kind, seed)


def test_prompt_cache_key() -> None:
    """Part of the key from GPT-5.6 on; before, another key may reach another machine, which explains a miss only."""
    for kind, status in (("openai_ends", "established"), ("openai_128", "likely")):
        requests = growing(3, KINDS[kind][1], 4)
        requests[-1] = with_param(requests[-1], "prompt_cache_key", "b")
        rows = billed(requests, kind, "chat")
        if kind == "openai_128":
            rows[-1]["response"]["usage"]["prompt_tokens_details"]["cached_tokens"] = 0
        found = audited(rows).calls[-1].diagnosis
        assert found is not None
        assert (found.primary.cause, found.primary.parameter) == ("scope_changed", "prompt_cache_key")
        assert (found.primary.status, found.primary.path) == (status, "/prompt_cache_key")


def test_below_the_minimum_nothing_is_cached() -> None:
    for kind in ("openai_128", "openai_ends"):
        short = Request(KINDS[kind][1], (), (), (Message("user", (Piece("text", "hello", 900),)),))
        calls = audited(billed([short, later(short, 10)], kind, "chat")).calls
        assert [call.verdict for call in calls] == ["not_engaged"] * 2
        assert calls[1].diagnosis is not None and calls[1].diagnosis.primary.cause == "below_minimum"


def test_the_age_of_an_entry_speaks_for_expiry_more_and_more() -> None:
    """In memory entries live for 5 to 10 minutes, at most an hour."""
    seen = []
    for gap in (200, 400, 1200, 4000):
        one = with_param(growing(2, "gpt-5.1", 0)[0], "prompt_cache_retention", "in_memory")
        rows = billed([one, later(one, gap)], "openai_128", "chat")
        rows[1]["response"]["usage"]["prompt_tokens_details"]["cached_tokens"] = 0
        found = audited(rows).calls[1].diagnosis
        assert found is not None
        expiry = [
            (f.status, f is found.primary) for f in [*found.findings, *found.ruled_out] if f.cause == "ttl_expired"
        ]
        seen.append(expiry)
    assert seen == [[("ruled_out", False)], [("possible", False)], [("likely", True)], [("established", True)]]
