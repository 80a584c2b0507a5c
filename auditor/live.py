"""An audit that goes on: each call is judged when it ends, with what is known by then.

The same fold as `auditor.audit`, fed in the order in which calls end. Bodies of the latest calls are kept, since a
diagnosis reads the two that it compares. A later audit of the database sees all calls in order of start and is the one
to believe where the two differ.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

import orjson
from msgspec.structs import replace

from auditor.audit import Fold
from auditor.money import Money
from auditor.pricing import PriceList
from auditor.records import Audited
from localmodel.rules.book import Rulebook
from localmodel.rules.types import REFRESH_AT
from traces.canonical import Interner, canonical, dump
from traces.errors import MalformedRow
from traces.schema import Call, JsonObject
from traces.tokens import estimate
from traces.wire.labels import label_of

KEPT_BODIES = 32
FORGET_AFTER = 20_000
"""Calls after which the fold starts anew, so that a proxy that stands for weeks does not grow without end."""

WORTH_TELLING = 2048
"""Cached tokens that are worth a warning before they expire."""


@dataclass(frozen=True, slots=True)
class Line:
    """What to say about one call. `None` is unknown; `expires_at` is when what it left in the cache runs out."""

    call: Call
    verdict: str
    cause: str | None
    status: str | None
    lost_tokens: int | None
    usd: Decimal | None
    partial: bool
    expires_at: datetime | None
    note: str | None


@dataclass(slots=True)
class _Cached:
    """What a conversation last left in the cache: `tokens` until `expires_at`; `warned` once it was said."""

    call: Call
    tokens: int
    ttl_s: int
    expires_at: datetime
    rewrite_usd: Decimal | None
    warned: bool = False


class Live:
    """Judges calls one by one. Use it from one thread."""

    def __init__(self, book: Rulebook, prices: PriceList) -> None:
        self._book = book
        self._prices = prices
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._cached: dict[tuple[str, str, str], _Cached] = {}
        self._begin()

    def _begin(self) -> None:
        self._count = 0
        self._interner = Interner(estimate)
        self._fold = Fold(self._book, self._body)

    def _body(self, audited: Audited) -> JsonObject | None:
        raw = self._bodies.get(audited.call.id)
        value = None if raw is None else orjson.loads(raw)
        return value if isinstance(value, dict) else None

    def take(self, call: Call, conversation: str | None = None) -> Line:
        """Judge a call that has ended."""
        if self._count >= FORGET_AFTER:
            self._begin()
        try:
            prompt = canonical(call, self._interner)
        except MalformedRow:
            prompt = None
        if call.request is not None and prompt is not None:
            self._bodies[call.id] = dump(call.request)
            if len(self._bodies) > KEPT_BODIES:
                self._bodies.popitem(last=False)
        label = call.label or label_of(call.request, call.response)
        audited = self._fold.take(replace(call, request=None, response=None, tokens=None, label=label), prompt)
        self._count += 1
        return self._line(audited, conversation)

    def _line(self, audited: Audited, conversation: str | None) -> Line:
        call, diagnosis = audited.call, audited.diagnosis
        money = Money([audited], self._prices)
        cost = money.cost(audited)
        expires = self._left(audited, money, conversation)
        lost = diagnosis is not None and diagnosis.lost_tokens > 0
        primary = diagnosis.primary if diagnosis is not None and (lost or audited.verdict == "not_engaged") else None
        return Line(
            call=call,
            verdict=audited.verdict,
            cause=primary.cause if primary else None,
            status=primary.status if primary else None,
            lost_tokens=diagnosis.lost_tokens if diagnosis else None,
            usd=cost.usd if cost else None,
            partial=cost is not None and cost.partial,
            expires_at=expires,
            note=audited.note,
        )

    def _left(self, audited: Audited, money: Money, conversation: str | None) -> datetime | None:
        """When the entry at the end of a call's prompt runs out; only where its bill says that there is one."""
        call, outcome, prompt = audited.call, audited.outcome, audited.prompt
        tokens = (call.usage.read_tokens or 0) + (call.usage.write_tokens or 0)
        if outcome is None or prompt is None or outcome.last_index < 0 or not tokens or call.started_at is None:
            return None
        point = next((one for one in outcome.breakpoints if one.index == outcome.last_index), None)
        ttl = outcome.rules.ttl_s[point.ttl if point is not None else outcome.rules.default_ttl]
        expires = call.started_at + timedelta(seconds=ttl)
        row = money.row(audited)
        price = row.write_5m if row is not None and isinstance(row.write_5m, Decimal) else None
        usd = None if price is None else price * tokens / 1_000_000
        self._cached[call.trace, call.agent, conversation or ""] = _Cached(call, tokens, ttl, expires, usd)
        return expires

    def warnings(self, now: datetime) -> Iterator[str]:
        """Say once of each conversation that its cache is about to run out, in the last tenth of its lifetime."""
        for key, cached in list(self._cached.items()):
            if now >= cached.expires_at:
                del self._cached[key]
                continue
            last_tenth = cached.expires_at - timedelta(seconds=cached.ttl_s * (1 - REFRESH_AT))
            if cached.warned or cached.tokens < WORTH_TELLING or now < last_tenth:
                continue
            cached.warned = True
            seconds = round((cached.expires_at - now).total_seconds())
            cost = "" if cached.rewrite_usd is None else f", ${cached.rewrite_usd:.4f} to write again"
            name = f"{cached.call.trace}: {cached.tokens:,} cached tokens of {cached.call.agent}"
            yield f"{name} expire in {seconds} s{cost}"
