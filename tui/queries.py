"""Read-only questions of the terminal app, answered from the store. Values only; each opens the file for itself.

Every function may run in a thread of its own: a store belongs to the thread that opened it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from auditor import summary
from auditor.errors import StoreError
from auditor.pricing import PriceList
from auditor.store import Store
from auditor.store_file import explained
from auditor.store_rows import undamaged
from localmodel.rules.book import Rulebook

if TYPE_CHECKING:  # loaded where they are used: the first screen needs no audit
    from auditor.context import BodyOf
    from auditor.money import Money
    from auditor.records import Audit, Audited
    from auditor.savings import WhatIf
    from auditor.totals import Totals
    from auditor.whatif import Policy, Trial
    from traces.schema import JsonObject

BUSY_S = 2.0
"""Somebody looks at a screen: a lock that takes longer is told, and asked for again later."""

SEARCH_BUDGET = 60_000


@dataclass(frozen=True, slots=True)
class Source:
    """What the app looks at: a store, and how its calls are judged and priced."""

    db: Path
    book: Rulebook
    prices: PriceList


class Overview(NamedTuple):
    """Sessions, and the version of the store they were read from: the number of calls in it."""

    sessions: list[summary.Session]
    version: int


@dataclass(slots=True)
class Judged:
    """One session, audited by its own calls alone; `rows` is its what-if table once somebody asked for it."""

    audit: "Audit"
    money: "Money"
    totals: "Totals"
    trial: "Trial"
    rows: "list[WhatIf]" = field(default_factory=list)


class Saving(NamedTuple):
    """What a session would have cost with all fixes."""

    row: "WhatIf"
    ceiling: float | None


@contextmanager
def _opened(source: Source) -> Iterator[Store]:
    """The store; a file that went away is said, not made anew."""
    if not source.db.exists():
        raise StoreError(f"{source.db}: the file is gone; put it back, or quit and name another one")
    with Store.open(source.db, busy_s=BUSY_S) as store:
        yield store


@contextmanager
def _summed(source: Source) -> Iterator[Store]:
    """The store, for sums whose rows nobody checked before."""
    with _opened(source) as store, explained(source.db), undamaged("a stored call"):
        yield store


def overview(source: Source) -> Overview:
    """All sessions, the latest first."""
    with _summed(source) as store:
        version = _version(store)
        return Overview(summary.sessions(store, source.prices), version)


def latest(source: Source, most: int) -> Overview:
    """The sessions of the latest calls: what can be shown at once of a large store."""
    with _summed(source) as store:
        version = _version(store)
        return Overview(summary.latest(store, source.prices, most), version)


def version(source: Source) -> int:
    """A number that grows with each call or verdict that is stored."""
    with _summed(source) as store:
        return _version(store)


def _version(store: Store) -> int:
    return int(store.select("SELECT ifnull(max(number), 0) FROM calls")[0][0])


def lost(source: Source) -> dict[str, int]:
    """Tokens paid for again by session, as far as calls were judged."""
    with _summed(source) as store:
        return summary.lost(store, source.book.basis)


def sparks(source: Source, traces: Sequence[str]) -> dict[str, list[float | None]]:
    """Share of input read, call by call, for some sessions."""
    with _summed(source) as store:
        return {trace: summary.spark(store, trace) for trace in traces}


def breakdown(source: Source) -> dict[summary.Dimension, dict[str, summary.Cost]]:
    """Costs of the whole store along each dimension."""
    with _summed(source) as store:
        return summary.breakdown(store, source.prices, source.book.basis)


def judge(source: Source, trace: str) -> Judged:
    """Audit one session. Raises StoreError."""
    from auditor.audit import audit
    from auditor.money import Money
    from auditor.totals import totals
    from auditor.whatif import Trial

    with _opened(source) as store:
        result = audit(store.calls(trace=trace), source.book, body_reader(store))
    money = Money(result.calls, source.prices)
    return Judged(result, money, totals(result.calls, money), Trial(result, money))


def what_if(judged: Judged, policies: "Sequence[Policy]") -> None:
    """Fill in the what-if table, and with it what each diagnosis could have saved."""
    from auditor.whatif import table

    judged.rows = table(judged.trial, policies, budget=SEARCH_BUDGET)


def chosen(judged: Judged, policies: "Sequence[Policy]") -> "WhatIf":
    """The bill of a session under the policies somebody chose."""
    from auditor.whatif import run

    return run(judged.trial, policies, "chosen")


def saving(judged: Judged, policies: "Sequence[Policy]") -> Saving | None:
    """The bill with the fixes of all diagnosed causes; `None` where no call can be replayed."""
    from auditor.whatif import run

    if not judged.trial.requests:
        return None
    fixes = [policy for policy in policies if policy.remedy and judged.trial.diagnosed(policy)]
    row = run(judged.trial, fixes, "all")
    return Saving(row, row.bill.hit_ratio)


def request(source: Source, audited: "Audited") -> "JsonObject | None":
    """The body of a call; `None` where none was recorded."""
    with _opened(source) as store:
        return body_reader(store)(audited)


def body_reader(store: Store) -> "BodyOf":
    """How a diagnosis reads a body again."""

    def body_of(audited: "Audited") -> "JsonObject | None":
        return None if audited.call.key is None else store.request(audited.call.key)

    return body_of
