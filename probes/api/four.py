"""The four-request probe: prepare, confirm, new question, changed beginning.

One run id in the document's head keeps earlier runs out; the cache marker ends the document and the question stands
behind it; answers are not carried forward. The run stops after an incomplete request, and after request 2 unless it
read from the cache.
"""

from typing import Any

from probes.api import bodies
from probes.api.exchange import Exchange
from probes.api.filler import run_id
from probes.api.lab import Lab, Plan
from traces.canonical import dump
from traces.schema import JsonObject

CASES = ("1_prepare", "2_confirm", "3_new_question", "4_changed_prefix")
OUTPUT_TOKENS = 96
_SUMMARY = "Summarize this reference in one sentence."
_POINTS = "List three key points from this reference."

CANNOT = (
    "One run establishes no stable speed-up, and times of single requests vary.",
    "It tests caching, not what it is worth for a whole task.",
    "The provider's bill is authoritative; costs here are the price table times the reported usage.",
    "A miss is not explained by it: see `cachewright audit` for the same calls.",
)


def requests(document: str, model: str, api: str, ident: str) -> list[tuple[str, JsonObject]]:
    """The four (case, body) pairs for a document."""
    head = f"Experiment ID: {ident}\nDocument version: A\nAnswer using the following reference.\n"
    changed = head.replace("Document version: A", "Document version: B", 1)
    plan = ((head, _SUMMARY), (head, _SUMMARY), (head, _POINTS), (changed, _POINTS))
    made = [
        bodies.about_in(api, model, start + document, question, max_tokens=OUTPUT_TOKENS) for start, question in plan
    ]
    return list(zip(CASES, made, strict=True))


def plan(document: str) -> Plan:
    """Four times the document, at three bytes a token."""
    each = len(dump(document)) // 3 + 300
    return Plan(4, 4 * each, 4 * OUTPUT_TOKENS)


def run(lab: Lab, document: str) -> JsonObject:
    """Send up to four requests and give the verdict.

    Raises what `Lab.send` raises; `verdict` then speaks of what was sent until then.
    """
    for case, body in requests(document, lab.model, lab.target.api, run_id()):
        exchange = lab.send(case, body)
        if case == "2_confirm" and not exchange.hit:
            break
    return verdict(lab)


def verdict(lab: Lab) -> JsonObject:
    """What the requests so far prove, step by step.

    `verdict` is confirmed (every step as documented), refuted (a later step is not), unconfirmed (request 2 read
    nothing), unknown (usage does not say) or incomplete.
    """
    sent = {exchange.case: exchange for exchange in lab.exchanges}
    told = _predicted(lab)
    steps = [_step(case, sent, told) for case in CASES if case in sent]
    return {
        "verdict": _word(sent, steps),
        "steps": steps,
        "predicted_read_tokens": told or None,
        "as_the_rules_predict": _as_predicted(sent, told),
        "cannot_establish": list(CANNOT),
    }


def _word(sent: dict[str, Exchange], steps: list[JsonObject]) -> str:
    complete = [exchange for exchange in sent.values() if exchange.complete]
    if len(complete) < len(sent) or not sent:
        return "incomplete"
    second = sent.get("2_confirm")
    if second is None:
        return "incomplete"
    if not second.hit:
        return "unknown" if second.hit is None else "unconfirmed"
    if len(sent) < len(CASES):
        return "incomplete"
    found = [step["finding"] for step in steps]
    if "refuted" in found:
        return "refuted"
    return "unknown" if "inconclusive" in found else "confirmed"


def _as_predicted(sent: dict[str, Exchange], told: dict[str, int]) -> bool | None:
    """Whether hits and misses are those the rules predict, `None` where one is unknown."""
    pairs = [(exchange.hit, case in told and told[case] > 0) for case, exchange in sent.items()]
    if not told or any(hit is None for hit, _ in pairs) or len(told) < len(sent):
        return None
    return all(hit == predicted for hit, predicted in pairs)


def _predicted(lab: Lab) -> dict[str, int]:
    told = lab.foretell()
    return {one.case: told[one.seq].read_tokens for one in lab.exchanges if one.seq in told}


def _step(case: str, sent: dict[str, Exchange], told: dict[str, int]) -> JsonObject:
    exchange = sent[case]
    if not exchange.complete:
        said, finding = f"incomplete: {exchange.error}; usage so far is kept", "inconclusive"
    elif exchange.read is None:
        said, finding = "the usage does not say what was read from the cache", "inconclusive"
    elif case == "3_new_question" and not exchange.read and told.get(case) == 0:
        # Automatic caches need not keep an entry at the document's end; their rules then say so.
        said, finding = "nothing was read behind a new question, as the rules predict", "confirmed"
    else:
        said, finding = _STEPS[case](exchange, sent)
    return {"case": case, "finding": finding, "text": said}


def _prepared(exchange: Exchange, sent: dict[str, Exchange]) -> tuple[str, str]:
    usage = exchange.usage
    if usage.read_tokens:
        return f"read {usage.read_tokens:,} tokens although the run id is new: not a cold start", "refuted"
    if usage.write_tokens is None:
        return "read nothing; writes are not reported by this API", "confirmed"
    if not usage.write_tokens:
        return f"wrote nothing of {usage.input_tokens:,} tokens: too short, or the model does not cache", "inconclusive"
    return f"wrote {usage.write_tokens:,} tokens", "confirmed"


def _confirmed(exchange: Exchange, sent: dict[str, Exchange]) -> tuple[str, str]:
    read = exchange.read or 0
    if read:
        return f"hit: read {read:,} of {exchange.usage.input_tokens:,} tokens", "confirmed"
    return "no hit: check the document's length, the model's minimum and the lifetime", "refuted"


def _reused(exchange: Exchange, sent: dict[str, Exchange]) -> tuple[str, str]:
    before, read = sent["2_confirm"].read or 0, exchange.read or 0
    if read >= before * 0.99:
        return f"partial reuse: the document's {read:,} tokens were read behind a new question", "confirmed"
    if read:
        return f"read {read:,} tokens, fewer than request 2's {before:,}: a shorter boundary was reused", "confirmed"
    return "nothing was read: an entry ends at the document only where it is marked or detected", "refuted"


def _lost(exchange: Exchange, sent: dict[str, Exchange]) -> tuple[str, str]:
    read = exchange.read or 0
    before = sent["3_new_question"].read or sent["2_confirm"].read or 0
    if read < before * 0.5:
        written = exchange.usage.write_tokens
        again = "" if written is None else f", {written:,} written anew"
        return f"loss: read {read:,} tokens after one changed letter at the beginning{again}", "confirmed"
    return f"read {read:,} tokens although the beginning changed: reuse does not depend on the prefix", "refuted"


_STEPS: dict[str, Any] = dict(zip(CASES, (_prepared, _confirmed, _reused, _lost), strict=True))
