"""The fan-out probe: a marker at the common endpoint (absent, present) times when B is sent (at once, after A began).

Each of the four cells is a pair A, B with a document of its own and two different questions, each marked at its own
end, so that cells share nothing and only the common endpoint's marker and the timing differ.
"""

from typing import NamedTuple

from probes.api import bodies
from probes.api.exchange import Exchange
from probes.api.lab import Lab, Plan
from traces.schema import JsonObject

CLOSE_S = 0.05
"""Moments of two requests that are no further apart than this may have another order at the server."""


class Cell(NamedTuple):
    """One of the four: its name, its two settings and the question it answers."""

    name: str
    marker: bool
    wait: bool
    question: str


CELLS = (
    Cell("absent_simultaneous", False, False, "Baseline: is anything shared without an endpoint and without a wait?"),
    Cell("absent_wait", False, True, "Can waiting alone reuse a common prefix that was never separately retained?"),
    Cell("present_simultaneous", True, False, "Is the endpoint written this round readable when B begins?"),
    Cell("present_wait", True, True, "After waiting until A's response began, is the full common prefix reused?"),
)
CANNOT = (
    "Times are this client's: what the server handled first is known only where they lie far enough apart.",
    "One pair a cell, two where the rules predict something else; routing can hide a hit that they promise.",
)
_QUESTIONS = ("Name the first word.", "Name the last word.")


def plan(words: int) -> Plan:
    """Eight requests of one document each."""
    return Plan(8, 8 * (words * 2 + 100), 8 * bodies.SHORT_ANSWER)


def run(lab: Lab) -> JsonObject:
    """Send the four pairs and give the truth table with its four answers."""
    lab.engage()
    table = [_asked(lab, cell) for cell in CELLS]
    findings = [row["finding"] for row in table]
    word = "refuted" if "refuted" in findings else "inconclusive" if "inconclusive" in findings else "confirmed"
    return {"verdict": word, "table": table, "cannot_establish": list(CANNOT)}


def _asked(lab: Lab, cell: Cell) -> JsonObject:
    """A cell's row. What the rules do not predict is asked twice: one lost entry refutes nothing."""
    row = _cell(lab, cell)
    if row["finding"] != "refuted":
        return row
    again = _cell(lab, cell)
    requests = [*row["requests"], *again["requests"]]
    if again["finding"] == "refuted":
        return {**again, "requests": requests}
    answer = f"Unknown: two pairs differ. {row['answer']} {again['answer']}"
    return {**again, "finding": "inconclusive", "reused": None, "answer": answer, "requests": requests}


def _cell(lab: Lab, cell: Cell) -> JsonObject:
    document = lab.document()
    first, second = (_body(lab, document, question, cell.marker) for question in _QUESTIONS)
    one, two = lab.send_pair(cell.name, first, second, wait=cell.wait)
    told = lab.foretell().get(two.seq)
    return _row(cell, one, two, None if told is None else told.hit)


def _body(lab: Lab, document: str, question: str, marker: bool) -> JsonObject:
    if lab.target.api != "messages":
        return bodies.about_in(lab.target.api, lab.model, document, question, mark=marker)
    return bodies.messages(
        lab.model, system=[bodies.text(document, mark=marker)], content=[bodies.text(question, mark=True)]
    )


def _row(cell: Cell, one: Exchange, two: Exchange, predicted: bool | None) -> JsonObject:
    # Of two that leave at once either may arrive first; in a new document each can only read what the other wrote.
    hit = two.hit if cell.wait or two.hit is None or one.hit is None else two.hit or one.hit
    lead = None if one.began_s is None else one.began_s - two.sent_s
    too_close = _too_close(cell, one, two, hit, lead)
    finding = "inconclusive"
    if hit is not None and predicted is not None and not too_close:
        finding = "confirmed" if hit == predicted else "refuted"
    return {
        "cell": cell.name,
        "marker": "present" if cell.marker else "absent",
        "timing": "wait" if cell.wait else "simultaneous",
        "question": cell.question,
        "a_read_tokens": one.read,
        "b_read_tokens": two.read,
        "b_hit": two.hit,
        "reused": hit,
        "predicted_hit": predicted,
        "a_began_after_b_was_sent_s": None if lead is None else round(lead, 3),
        "finding": finding,
        "answer": _answer(cell, hit, (one if one.hit and not cell.wait else two).read, too_close),
        "requests": [one.seq, two.seq],
    }


def _too_close(cell: Cell, one: Exchange, two: Exchange, hit: bool | None, lead: float | None) -> bool:
    """Whether nobody can tell which came first at the server. Only a marked endpoint's answer depends on that."""
    if cell.wait or not cell.marker:
        return False
    return read_early(one, two) is None if hit else lead is None or lead < CLOSE_S


def read_early(one: Exchange, two: Exchange) -> float | None:
    """Seconds by which one of two requests sent together began its response, having read, before the writer's began.

    `None` where neither did: that a reader was sent first proves nothing, since it may have been long on its way.
    """
    for reader, writer in ((two, one), (one, two)):
        if reader.hit and reader.began_s is not None and writer.began_s is not None:
            ahead = writer.began_s - reader.began_s
            if ahead > CLOSE_S:
                return ahead
    return None


def _answer(cell: Cell, hit: bool | None, read: int | None, too_close: bool) -> str:
    if hit is None:
        return "Unknown: the usage does not say what was read."
    if too_close:
        return "Unknown: the two came too close together; ask a server that takes longer to begin its response."
    if hit:
        return f"Yes: {read:,} tokens were read."
    return "No: nothing was read." + (" A dedicated endpoint is needed." if cell.name == "absent_wait" else "")
