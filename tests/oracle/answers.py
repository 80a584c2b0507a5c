"""What the product answers for hand-written rows: the real pipeline, read back from its JSON report."""

import json
from typing import Any

from auditor.audit import audit
from auditor.money import Money
from auditor.policies import POLICIES
from auditor.pricing import PriceList
from auditor.report import lines
from auditor.totals import totals
from auditor.whatif import Trial, table
from localmodel.rules.load import load
from traces import io

Json = dict[str, Any]


def report(rows: list[Json]) -> Json:
    """The report of `cachewright audit --json` on these rows (without prices: equivalents come from the rules)."""
    calls = [io.parse(json.dumps(row).encode()) for row in rows]
    bodies = {call.id: call.request for call in calls}
    result = audit(calls, load("anthropic"), lambda audited: bodies[audited.call.id])
    money = Money(result.calls, PriceList(lambda provider, model: (), None))
    rows_of_table = table(Trial(result, money), POLICIES, budget=60_000)
    found: Json = json.loads(b"".join(lines(result, totals(result.calls, money), rows_of_table, money)))
    return found


def answers(rows: list[Json]) -> dict[int, Json]:
    """Calls of the report by `seq`."""
    return {call["seq"]: call for call in report(rows)["calls"]}


def accused(rows: list[Json]) -> dict[int, str]:
    """Causes of all calls that lost tokens or are said to be broken, by `seq`; empty where nothing is wrong."""
    found = answers(rows)
    return {seq: call["diagnosis"]["cause"] for seq, call in found.items() if call["diagnosis"]}


def said(call: Json) -> Json:
    """An answer in the words of the table of public reports; causes ruled out and their evidence are left aside."""
    found = call["diagnosis"]
    if found is None:
        return {"verdict": call["verdict"]}
    answer = {"verdict": call["verdict"], "lost": found["lost_tokens"]}
    answer |= {name: found[name] for name in ("cause", "status", "change", "path", "policy")}
    return answer | {"also": [one["cause"] for one in found["also"]]}


def excluded(call: Json) -> set[str]:
    """Causes that the answer rules out."""
    return {one["cause"] for one in call["diagnosis"]["ruled_out"]}


def because(call: Json) -> str:
    """All evidence of an answer as one text."""
    found = call["diagnosis"]
    parts = [found, *found["also"], *found["ruled_out"]]
    return " | ".join(text for part in parts for text in part["evidence"])
