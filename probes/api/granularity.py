"""Boundaries of OpenAI's automatic cache: in what steps reads are counted, and whether a common beginning is enough.

Documents of several lengths are sent, repeated, and sent once more with another question behind them. What repeats
read tells the step (their greatest common divisor, or exactly the input); what the other question reads tells whether
a prefix shared without a boundary of its own is reused (older models) or not (GPT-5.6 and later).
"""

from math import gcd

from probes.api import bodies, filler
from probes.api.claim import Claim, finding_of, open_claim
from probes.api.exchange import Exchange
from probes.api.lab import Lab, Plan

STEP, SHARED = "granularity", "shared_prefix"
STEP_RULE = "read_granularity_tokens"
STEP_CLAIM = "Repeats read in steps of a fixed number of tokens."
SHARED_CLAIM = "A request reads a prefix that it shares with an earlier one as its rules predict."
CANNOT = (
    "Reads are counted after hidden tokens are taken off on some models, so the steps are of what is reported.",
    "Another machine may answer: a miss of a single repeat does not refute.",
)
LENGTHS = (1.0, 1.17, 1.31, 1.53)
_QUESTIONS = (bodies.QUESTION, "Name the first word of all this.")


def plan(lab: Lab) -> Plan:
    """Three requests for each of four lengths."""
    count = 3 * len(LENGTHS)
    return Plan(count, round(count * lab.words * 2 * 1.3), count * bodies.SHORT_ANSWER)


def run(lab: Lab) -> list[Claim]:
    """Send them and judge both claims."""
    rows = [_row(lab, round(lab.words * factor)) for factor in LENGTHS]
    requests = tuple(one.seq for row in rows for one in row)
    if any(one.read is None for row in rows for one in row):
        why = "the usage does not say what was read"
        return [open_claim(STEP, STEP_RULE, STEP_CLAIM, why, requests), _silent(why, requests)]
    return [_step(lab, rows, requests), _shared(lab, rows, requests)]


def _silent(why: str, requests: tuple[int, ...]) -> Claim:
    return open_claim(SHARED, None, SHARED_CLAIM, why, requests)


def best_effort(lab: Lab, predicted: list[bool], seen: list[bool]) -> bool | None:
    """Whether hits are as predicted; `None` without a prediction, and where only unpromised hits are missing."""
    if len(predicted) != len(seen):
        return None
    unpromised = not lab.value("guaranteed", True)
    differ = [(told, got) for told, got in zip(predicted, seen, strict=True) if told != got]
    return None if differ and unpromised and all(told for told, _ in differ) else not differ


def _row(lab: Lab, words: int) -> tuple[Exchange, Exchange, Exchange]:
    document = filler.text(words)
    asked = (_QUESTIONS[0], _QUESTIONS[0], _QUESTIONS[1])
    made = [bodies.about_in(lab.target.api, lab.model, document, question, mark=False) for question in asked]
    one, two, three = (lab.send(f"granularity_{n}", body) for n, body in enumerate(made, 1))
    return one, two, three


def step_of(reads: list[int], inputs: list[int]) -> int | None:
    """The step of reads: 1 where each repeat read all it could, else their divisor; `None` where none read.

    A repeat that reads all but the same few tokens (the framing of the answer) counts as all.
    """
    if not all(reads):
        return None
    rests = {whole - read for read, whole in zip(reads, inputs, strict=True)}
    if len(rests) == 1:
        return 1
    found = 0
    for read in reads:
        found = gcd(found, read)
    return found


def _step(lab: Lab, rows: list[tuple[Exchange, Exchange, Exchange]], requests: tuple[int, ...]) -> Claim:
    reads = [row[1].read or 0 for row in rows]
    inputs = [row[1].usage.input_tokens or 0 for row in rows]
    value = step_of(reads, inputs)
    expected = lab.value(STEP_RULE, None)
    why = f"repeats read {reads} of {inputs} tokens"
    if value is None:
        why += ": not every repeat was read"
    elif expected is None:
        why += "; the rule data has no value for the step"
    agrees = None if value is None or expected is None else value == expected
    return Claim(
        STEP, STEP_RULE, STEP_CLAIM, requests, {"step": expected}, {"read_tokens": reads, "input_tokens": inputs},
        finding_of(agrees), value, expected, why, CANNOT,
    )  # fmt: skip


def _shared(lab: Lab, rows: list[tuple[Exchange, Exchange, Exchange]], requests: tuple[int, ...]) -> Claim:
    told = lab.foretell()
    seen = [bool(row[2].hit) for row in rows]
    predicted = [told[row[2].seq].hit for row in rows if row[2].seq in told]
    steady = len(set(seen)) == 1 and all(row[1].hit for row in rows)
    agrees = best_effort(lab, predicted, seen) if steady else None
    why = f"another question behind the document was read from the cache in {sum(seen)} of {len(seen)} cases"
    if not predicted:
        why += "; the rules make no prediction for these requests"
    elif not steady:
        why += ", and not every repeat was read"
    return Claim(
        SHARED, None, SHARED_CLAIM, requests, {"hit": predicted}, {"hit": seen}, finding_of(agrees),
        seen[0] if len(set(seen)) == 1 else None, predicted[0] if predicted else None, why, CANNOT,
    )  # fmt: skip
