"""One row of a what-if table, and the row where no call can be replayed."""

from dataclasses import dataclass, field
from decimal import Decimal

from auditor.money import Bill
from auditor.totals import Sum


@dataclass(slots=True)
class WhatIf:
    """One row: the whole trace as it would have been billed under some policies."""

    policy: str
    policies: tuple[str, ...]
    bill: Bill
    saving_equivalents: Decimal
    saving_usd: Decimal | None
    quality_risk: str | None
    note: str | None = None
    by_call: dict[int, Bill] = field(default_factory=dict)
    added: list[Bill] = field(default_factory=list)
    paths: dict[str, Decimal] | None = None


NOTHING = "no request with a body and a known bill was recorded, so no fix can be replayed"


def nothing(whole: Sum) -> WhatIf:
    """The only row where no call can be replayed: all of them as billed."""
    usd = whole.usd if whole.priced_calls else None
    tokens = (whole.input_tokens, whole.read_tokens, whole.write_tokens, whole.uncached_tokens)
    bill = Bill(whole.calls, *tokens, whole.equivalents, usd)
    return WhatIf("all", (), bill, Decimal(0), Decimal(0) if usd is not None else None, None, NOTHING)
