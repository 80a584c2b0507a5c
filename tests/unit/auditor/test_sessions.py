"""Digests of sessions say what a whole audit says, whichever of them were kept; only changed ones are read again."""

import json
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from auditor.audit import audit
from auditor.digest_totals import totals_of
from auditor.digests import audited_of, decode
from auditor.money import Money
from auditor.price_rows import PriceRow
from auditor.pricing import PriceList
from auditor.records import Audit
from auditor.sessions import Kept, Read, basis_of, read, sessions_of
from auditor.store import Store
from auditor.text import render, shown
from auditor.totals import Totals, totals
from localmodel.rules.book import Rulebook
from localmodel.rules.load import load
from traces import io
from traces.files import below

Json = dict[str, Any]

FLAT = PriceRow(
    input=Decimal(3), read=Decimal("0.3"), write_5m=Decimal("3.75"), write_1h=Decimal(6), output=Decimal(15)
)
TIERED = PriceRow(
    input=((0, Decimal(3)), (20_000, Decimal(6))),
    read=((0, Decimal("0.3")), (20_000, Decimal("0.6"))),
    write_5m=Decimal("3.75"),
    output=((0, Decimal(15)), (30_000, Decimal("22.5"))),
)


@pytest.fixture(scope="module")
def rules() -> Rulebook:
    return Rulebook(load("anthropic"))


@pytest.fixture
def prices() -> PriceList:
    def lookup(provider: str, model: str) -> tuple[PriceRow, ...]:
        return {"flat": (FLAT,), "tiered": (TIERED,)}.get(model, ())

    return PriceList(lookup)


def write(folder: Path, name: str, seed: int, calls: int = 12, start: int = 0) -> Path:
    """A transcript of random usage: hits, losses, idle gaps, models with and without a price."""
    draw, rows, total, minute = random.Random(seed), [], 0, 60 * start
    parent: str | None = None
    for number in range(calls):
        minute += draw.choice([1, 2, 7])
        read = draw.choice([total, total, total, 0, total // 2])
        total += draw.randint(100, 9000)
        split = {"ephemeral_5m_input_tokens": total - read, "ephemeral_1h_input_tokens": 0}
        bill: Json = {"input_tokens": 3, "cache_read_input_tokens": read, "cache_creation_input_tokens": total - read}
        bill |= {"output_tokens": draw.randint(1, 50)} | ({"cache_creation": split} if draw.random() < 0.8 else {})
        message = {"id": f"{name}{number}", "model": draw.choice(["flat", "flat", "tiered", "other"]), "content": []}
        time = f"2026-05-{1 + minute // 1440:02}T{minute // 60 % 24:02}:{minute % 60:02}:00.000Z"
        row = {"type": "assistant", "uuid": f"{name}{number}", "parentUuid": parent, "sessionId": name, "cwd": "/p"}
        usage = bill if draw.random() < 0.95 else None
        rows.append(row | {"timestamp": time, "requestId": "r", "message": message | {"usage": usage}})
        parent = row["uuid"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_all(folder: Path, rules: Rulebook, kept: Kept, workers: int = 1) -> Read:
    return read(sessions_of(below(folder), basis_of(rules)), kept, rules, workers)


def whole(folder: Path, rules: Rulebook) -> Audit:
    calls = io.distinct(call for path in io.find([folder]) for call in io.read(path))
    return audit(calls, rules, lambda _: None)


def same_sums(made: Totals, full: Totals) -> None:
    assert made.whole == full.whole
    assert made.by_kind == full.by_kind
    assert made.by_model == full.by_model
    assert made.by_cause == full.by_cause
    assert made.unpriced == full.unpriced


@pytest.mark.parametrize("workers", [1, 2])
def test_digests_and_a_whole_audit_say_the_same(
    tmp_path: Path, rules: Rulebook, prices: PriceList, workers: int
) -> None:
    for seed in range(20):
        write(tmp_path / f"p{seed % 3}", f"s{seed:02}", seed, start=seed)
    write(tmp_path / "p0" / "s00" / "subagents", "agent-f00", 99)
    made, full = read_all(tmp_path, rules, {}, workers), whole(tmp_path, rules)
    calls = [seen for digest in made.digests for seen in digest.calls]
    assert len(calls) == len(full.calls) == 21 * 12
    sums = totals_of(calls, prices)
    same_sums(sums, totals(full.calls, Money(full.calls, prices)))
    pairs = [(miss, digest.calls[miss.seen]) for digest in made.digests for miss in digest.misses]
    pairs.sort(key=lambda pair: pair[1].at or 0)
    lossy = [audited_of(miss, seen, index) for index, (miss, seen) in enumerate(pairs)]
    assert len(lossy) > 40
    shorter = Audit(rules, lossy)
    assert shown(render(shorter, sums, [], "t")) == shown(render(full, sums, [], "t"))


def test_only_changed_sessions_are_read_again(tmp_path: Path, rules: Rulebook) -> None:
    paths = [write(tmp_path, f"s{seed}", seed) for seed in range(4)]
    first = read_all(tmp_path, rules, {})
    assert len(first.fresh) == 4
    assert read_all(tmp_path, rules, first.fresh).fresh == {}
    with paths[2].open("ab") as file:  # a session goes on while others rest
        file.write(paths[2].read_bytes().splitlines(keepends=True)[-1].replace(b"s211", b"s2xx")[:-30])
    again = read_all(tmp_path, rules, first.fresh)
    assert list(again.fresh) == [f"{tmp_path / 's2'}"]
    (digest,) = (decode(data) for _, data in again.fresh.values())
    assert ["may still be written" in remark for remark in digest.remarks] == [True]
    assert len(digest.calls) == 12


def test_a_file_replaced_in_place_is_read_again(tmp_path: Path, rules: Rulebook) -> None:
    path = write(tmp_path, "s", 1)
    first, old = read_all(tmp_path, rules, {}), path.stat()
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"input_tokens": 3', b'"input_tokens": 4'))
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns + 1))
    assert len(text) == path.stat().st_size
    assert len(read_all(tmp_path, rules, first.fresh).fresh) == 1


def test_other_rules_make_new_digests(tmp_path: Path, rules: Rulebook) -> None:
    write(tmp_path, "s", 1)
    first = read_all(tmp_path, rules, {})
    other = read(sessions_of(below(tmp_path), b"other rules"), first.fresh, rules)
    assert len(other.fresh) == 1


def test_sessions_with_copies_of_each_other_are_audited_together(
    tmp_path: Path, rules: Rulebook, prices: PriceList
) -> None:
    """Forks of one session, kept or not: counted once, and the fork's first call is held against the history."""
    for seed in (1, 2):
        write(tmp_path, f"s{seed}", seed)
    lines = (tmp_path / "s1.jsonl").read_text().splitlines()
    for fork, length in (("t", 5), ("u", 8)):
        rows = [json.loads(line) | {"sessionId": fork} for line in lines[:length]]
        last = rows[-1] | {"uuid": fork, "parentUuid": rows[-1]["uuid"], "timestamp": "2026-05-03T00:00:00Z"}
        last["message"] = last["message"] | {"id": f"{fork}-new"}
        (tmp_path / f"{fork}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, last]))
    full = whole(tmp_path, rules)
    assert len(full.calls) == 26
    first = read_all(tmp_path, rules, {})
    for made in (first, read_all(tmp_path, rules, first.fresh)):
        calls = [seen for digest in made.digests for seen in digest.calls]
        same_sums(totals_of(calls, prices), totals(full.calls, Money(full.calls, prices)))


def test_the_store_keeps_digests_and_forgets_them(tmp_path: Path, rules: Rulebook) -> None:
    write(tmp_path / "p", "s\udce9", 1)  # a name that is no UTF-8
    write(tmp_path / "p", "t", 2)
    fresh = read_all(tmp_path / "p", rules, {}).fresh
    with Store.open(tmp_path / "store.db") as store:
        store.save_sessions(fresh)
    with Store.open(tmp_path / "store.db") as store:
        kept = store.sessions()
        assert kept == fresh
        assert read_all(tmp_path / "p", rules, kept).fresh == {}
        store.save_sessions({}, gone=list(fresh)[:1])
        assert len(store.sessions()) == 1


def test_what_is_no_session_is_passed_over(tmp_path: Path, rules: Rulebook) -> None:
    (tmp_path / "notes.jsonl").write_text('{"a":1}\n')
    made = read_all(tmp_path, rules, {})
    assert [digest.calls for digest in made.digests] == [[]]
    assert read_all(tmp_path, rules, made.fresh).fresh == {}
