"""The ruleset that the server obeys: a named one or a file, with single values set on the command line over it."""

import tomllib
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from difflib import get_close_matches
from hashlib import sha256
from typing import Any

from localmodel.rules.errors import RulesError
from localmodel.rules.known import RULES
from localmodel.rules.load import Ruleset, load
from localmodel.rules.models import matches, normalise
from localmodel.rules.types import Rules, RuleValue
from localmodel.server.errors import BadSettings

SHORT = {"ttl.5m": "ttl_seconds_5m", "ttl.1h": "ttl_seconds_1h", "lookback.positions": "lookback_positions"}
"""Names of `--set` for rule ids; every rule id is a name too."""

_AUTOMATIC = {"ttl_seconds_5m": "ttl_max_seconds_short", "ttl_seconds_1h": "ttl_max_seconds_long"}
"""What those are called in rulesets whose lifetimes are a range: the longest one counts."""

SOURCE = "--set"


def ruleset(name: str, settings: Iterable[str]) -> "ServedRules":
    """The ruleset `name` (built-in or a file) under `KEY=VALUE` settings. Raises `BadSettings`, one line."""
    try:
        base = load(name)
    except RulesError as error:
        raise BadSettings(str(error)) from None
    for setting in settings:
        base = _with(base, *_parsed(setting))
    return ServedRules(base)


def _parsed(setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    rule = SHORT.get(key.strip(), key.strip())
    if not equals:
        raise BadSettings(f"--set {setting}: has no value; write KEY=VALUE")
    if rule not in RULES:
        names = [*SHORT, *RULES]
        near = get_close_matches(key.strip(), names, n=1, cutoff=0.0)
        raise BadSettings(f"--set {setting}: no such rule; nearest is {near[0]!r}")
    try:
        return rule, RULES[rule](_value(text.strip()))
    except ValueError as error:
        raise BadSettings(f"--set {setting}: value is {text.strip()!r}, expected {error}") from None


def _value(text: str) -> Any:
    """The value as TOML reads it; a bare word is a text."""
    try:
        return tomllib.loads(f"value = {text}", parse_float=Decimal)["value"]
    except tomllib.TOMLDecodeError:
        return text


def _with(base: Ruleset, rule: str, value: Any) -> Ruleset:
    """`base` with one value that holds for every model, platform and day."""
    rule = rule if rule in base.ranked else _AUTOMATIC.get(rule, rule)
    if rule not in base.ranked:
        raise BadSettings(f"--set {rule}: the rules of {base.provider} have no such value")
    row = RuleValue(rule, value, "assumed", datetime.now(UTC).date(), SOURCE)
    digest = sha256(f"{base.digest} {rule} {value!r}".encode()).hexdigest()
    ranked = {**base.ranked, rule: (row, *base.ranked[rule])}
    values = {**base.values, rule: (*base.values.get(rule, ()), row)}
    # Not `replace`: the new ruleset must not share the cache of the old one's answers.
    return Ruleset(digest, base.provider, values, {**base.sources, SOURCE: "set on the command line"}, ranked)


class ServedRules:
    """A ruleset for `step`, safe against clients that send a new model name with each request.

    Models that no value names share one answer, so that what is kept per model stays bounded.
    """

    def __init__(self, base: Ruleset) -> None:
        self.base = base
        rows = [row for rows in base.ranked.values() for row in rows]
        self._named = {model for row in rows for model in row.models}
        self._patterns = sorted((name for name in self._named if name.endswith("*")), key=len, reverse=True)
        self._day: date | None = None

    def at(self, model: str, platform: str, moment: datetime | None) -> Rules:
        """Rules in force for `model` on `platform` at `moment`."""
        if moment is not None and moment.date() != self._day:
            # A server that runs for months must not keep each day's answers either.
            self._day, self.base = moment.date(), replace(self.base, _cache={})
        name = normalise(model)
        if name not in self._named:
            # One answer for all models that a pattern means: the pattern is a model's name to itself.
            name = next((pattern for pattern in self._patterns if matches(name, pattern)), "")
        return self.base.at(name, platform, moment)
