"""Minimum length: the shortest marked prefix that is written to the cache, found by bisection on reported tokens.

Each request has a new document, so nothing can be read and writing alone decides. The tokens behind the marker (the
question) are the same each time; the first request that is written tells them, so that the prefix of a request that
was not written is known to the token too.
"""

from dataclasses import dataclass

from probes.api import bodies, filler
from probes.api.claim import Claim, between, finding_of, fits, open_claim
from probes.api.exchange import Exchange
from probes.api.foretell import WithMinimum
from probes.api.lab import Lab, Plan, long_enough

NAME, RULE = "minimum", "min_tokens"
CLAIM = "A prefix is cached from {expected} tokens on, and not below."
CANNOT = ("It holds for this model and platform on this day; minimums differ by model.",)
MOST_STEPS = 24
SHORTEST = 12


@dataclass(slots=True)
class Bracket:
    """What is known: the longest prefix that was not cached and the shortest that was, in words and tokens."""

    words_low: int
    words_high: int
    low: int
    high: int


def plan(lab: Lab) -> Plan:
    """About six requests near the minimum where the rules are right, sixteen where they are not."""
    return Plan(8, 8 * lab.words * 2, 8 * bodies.SHORT_ANSWER)


def run(lab: Lab) -> list[Claim]:
    """Find the minimum. Its value is the interval of tokens in which it lies, one token wide where that is possible.

    What it finds lets the probes behind it use shorter documents, and their predictions rest on it.
    """
    assert lab.rules is not None
    expected = lab.rules.min_tokens
    lab.engage()
    first = lab.exchanges[-1]
    tail = (first.usage.input_tokens or 0) - first.covered
    bracket = Bracket(0, lab.words, 0, first.covered)
    sent = [first]
    aims = [expected, expected - 1]
    while bracket.high - bracket.low > 1 and bracket.words_high - bracket.words_low > 1 and len(sent) < MOST_STEPS:
        words = _next(bracket, aims)
        exchange = _ask(lab, words)
        sent.append(exchange)
        _narrow(bracket, words, _prefix(exchange, tail), exchange.engaged)
        if bracket.low >= bracket.high:
            requests = tuple(one.seq for one in sent)
            why = f"a prefix of {bracket.low} tokens was not cached and one of {bracket.high} was"
            return [open_claim(NAME, RULE, CLAIM.format(expected=expected), why, requests)]
    lab.words = min(lab.words, long_enough(bracket.words_high))
    if lab.ruleset is not None:
        lab.ruleset = WithMinimum(lab.ruleset, bracket.high)
    return [_claim(lab, sent, bracket, expected, tail)]


def _ask(lab: Lab, words: int) -> Exchange:
    return lab.send("minimum", bodies.about(lab.model, filler.text(words)))


def _prefix(exchange: Exchange, tail: int) -> int:
    return exchange.covered if exchange.engaged else (exchange.usage.input_tokens or 0) - tail


def _narrow(bracket: Bracket, words: int, tokens: int, cached: bool) -> None:
    if cached:
        bracket.words_high, bracket.high = words, tokens
    else:
        bracket.words_low, bracket.low = words, tokens


def _next(bracket: Bracket, aims: list[int]) -> int:
    """Words to try: aimed at the predicted threshold while it lies inside and aims are left, else the middle."""
    low, high = max(bracket.words_low, SHORTEST), bracket.words_high
    words = (bracket.words_low + high) // 2
    while aims:
        aim = aims.pop(0)
        if bracket.low < aim < bracket.high:
            share = (aim - bracket.low) / (bracket.high - bracket.low)
            words = bracket.words_low + round(share * (high - bracket.words_low))
            break
    return min(max(words, low if low < high else bracket.words_low + 1, bracket.words_low + 1), high - 1)


def _claim(lab: Lab, sent: list[Exchange], bracket: Bracket, expected: int, tail: int) -> Claim:
    for exchange in sent:
        prefix = _prefix(exchange, tail)
        exchange.tokens = {"/system/0": prefix, "/messages/0/content": (exchange.usage.input_tokens or prefix) - prefix}
    rows = [(_prefix(one, tail), one.engaged) for one in sent]
    value = between(bracket.low, bracket.high)
    agrees = fits(value, expected)
    exact = bracket.high - bracket.low == 1
    found = f"{bracket.high}" if exact else f"more than {bracket.low} and at most {bracket.high}"
    return Claim(
        NAME, RULE, CLAIM.format(expected=expected), tuple(one.seq for one in sent),
        prediction={"cached": [tokens >= expected for tokens, _ in rows]},
        observation={"prefix_tokens": [tokens for tokens, _ in rows], "cached": [cached for _, cached in rows]},
        finding=finding_of(agrees),
        value=bracket.high if exact else value,
        expected=expected,
        why=f"{bracket.low} tokens were not cached, {bracket.high} were: the minimum is {found}",
        cannot=CANNOT,
    )  # fmt: skip
