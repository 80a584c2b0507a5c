"""Checks of single values in a rule file: each takes what TOML gave, gives what is kept, or says what it wants."""

from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from localmodel.rules.models import normalise

Check = Callable[[Any], Any]
"""Takes a value as TOML gave it; gives it as kept (lists as tuples); raises ValueError with what was expected."""


def count(value: Any) -> int:
    """A whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number, 0 or more")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def factor(value: Any) -> Decimal:
    """A multiplier from 0 to below 100."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not 0 <= value < 100:
        raise ValueError("a number from 0 to 100")
    return Decimal(value)


def text(value: Any) -> str:
    """A text that says something."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text")
    return value


def day(value: Any) -> date:
    """A date."""
    # A datetime is a date to Python, but a rule begins with a day.
    if isinstance(value, datetime) or not isinstance(value, date):
        raise ValueError("a date such as 2026-09-01, without quotes")
    return value


def one_of(*words: str) -> Check:
    """One of some words."""

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(" or ".join(words) + nearest(value, words))
        return str(value)

    return check


def each(check: Check, what: str) -> Check:
    """A list, each item by `check`."""

    def check_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"a list of {what}")
        return tuple(check(item) for item in value)

    return check_all


def exactly(*words: str) -> Check:
    """This list and no other."""

    def check(value: Any) -> tuple[str, ...]:
        if value != list(words):
            raise ValueError("[" + ", ".join(words) + "], the only order known")
        return words

    return check


def result_kind(value: Any) -> str:
    """A kind of server tool result."""
    if not isinstance(value, str) or not value.endswith("_tool_result"):
        raise ValueError("block kinds that end in _tool_result")
    return value


def model(value: Any) -> str:
    """A model's plain name, or a pattern that ends in * where a provider states a rule for a whole generation."""
    name = normalise(text(value))
    if name != value:
        raise ValueError(f"a model's plain name, {name!r}")
    return name


def some(check: Check, what: str) -> Check:
    """A list with at least one item."""
    inner = each(check, what)

    def check_some(value: Any) -> tuple[Any, ...]:
        # An empty list reads as "none of them", but an absent field means "all": refuse the doubtful form.
        if value == []:
            raise ValueError(f"at least one of the {what}, or no such field")
        return tuple(inner(value))

    return check_some


def nearest(word: Any, known: Iterable[str]) -> str:
    """A hint at the known word most like `word`, for an error message."""
    close = get_close_matches(str(word), list(known), n=1, cutoff=0.0)
    return f", nearest is {close[0]!r}" if close else ""
