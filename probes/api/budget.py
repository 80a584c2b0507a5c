"""What a run may cost: the price in force, an upper bound of each request before it is sent, and what was spent.

The bound counts a token for every byte of the body (no vocabulary in use makes more) plus an allowance for what a
provider adds (a tool prompt, an image), all at the dearest price of input, and every output token allowed. What a
request really cost replaces its bound; where that cannot be told, the bound stays: unknown is not zero.
"""

from dataclasses import dataclass
from decimal import Decimal

from auditor.price_rows import MILLION, PriceRow, at
from auditor.pricing import cost
from probes.api.exchange import Exchange
from probes.errors import BudgetReached
from traces.canonical import dump
from traces.schema import JsonObject

ADDED_TOKENS = 2048
FREE = Decimal(0)


@dataclass(slots=True)
class Budget:
    """Dollars that may be spent. `row` is the model's price, `None` only where `free`."""

    row: PriceRow | None
    free: bool
    limit: Decimal | None = None
    spent: Decimal = FREE
    open: Decimal = FREE
    uncertain: bool = False

    def reserve(self, *bodies: JsonObject) -> None:
        """Set aside the most that these requests can cost. Raises `BudgetReached`: they must not be sent."""
        if self.free:
            return
        most = sum((self.bound(body) for body in bodies), FREE)
        if self.limit is not None and self.spent + self.open + most > self.limit:
            raise BudgetReached(
                f"${self.spent:.4f} of ${self.limit} are spent and the next request may cost up to ${most:.4f}; "
                "raise --budget to go on"
            )
        self.open += most

    def settle(self, exchange: Exchange) -> None:
        """Replace what was set aside for this exchange by what it cost, or keep the bound where that is unknown."""
        if self.free:
            return
        most = self.bound(exchange.body)
        self.open -= most
        if refused(exchange):
            return
        known = self.cost(exchange)
        self.uncertain = self.uncertain or known is None
        self.spent += most if known is None else known

    def bound(self, body: JsonObject) -> Decimal:
        """The most that a request can cost."""
        return self.price(len(dump(body)) + ADDED_TOKENS, _most_output(body))

    def price(self, input_tokens: int, output_tokens: int) -> Decimal:
        """Input at the dearest price of input, output at its own."""
        if self.row is None:
            return FREE
        row = self.row
        prices = [at(price, input_tokens) for price in (row.input, row.write_5m, row.write_1h, row.read)]
        dearest = max((price for price in prices if price is not None), default=FREE)
        output = at(row.output, input_tokens) or FREE
        return (input_tokens * dearest + output_tokens * output) / MILLION

    def about(self, requests: int, input_tokens: int, output_tokens: int) -> Decimal:
        """What so many requests cost together, all of a size; no length tier is reached by their sum."""
        each = self.price(input_tokens // max(1, requests), output_tokens // max(1, requests))
        return each * requests

    def cost(self, exchange: Exchange) -> Decimal | None:
        """What an exchange cost at the price in force, `None` where its usage does not tell."""
        if self.free or refused(exchange):
            return FREE
        usage = exchange.usage
        if self.row is None or not exchange.complete or usage.input_tokens is None or usage.read_tokens is None:
            return None
        found = cost(usage, self.row, tier="5m")
        return found.high if usage.output_tokens is not None else None


def refused(exchange: Exchange) -> bool:
    """Whether the API answered with an error before any response began, for which none of them charges."""
    return exchange.status is not None and exchange.status >= 400 and exchange.began_s is None


def _most_output(body: JsonObject) -> int:
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(name), int):
            return int(body[name])
    return 0
