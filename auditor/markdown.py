"""The report as Markdown, for a pull request or a job summary: the bill, causes, misses and the what-if table.

A pure function of the JSON report. Words from a trace stand in code spans, in which Markdown knows no markup.
"""

from collections.abc import Iterator, Sequence

from auditor.chart import lost
from auditor.figures import percent
from auditor.html import amount, money, named, replayed, rules, span, worst
from auditor.totals import NECESSARY
from auditor.visible import visible
from traces.schema import JsonObject

MOST_MISSES = 40
LONGEST = 200


def page(report: JsonObject, title: str) -> str:
    """The page for a report (`cachewright.audit/1`)."""
    calls = [dict(call, index=index) for index, call in enumerate(report["calls"])]
    lines = [*_bill(report, calls, title), *_causes(report), *_misses(calls), *_what_if(report), *_rules(calls)]
    return "\n".join([*lines, *_remarks(report)]) + "\n"


def code(text: object) -> str:
    """A code span that ends where `text` does: fenced by more backticks than `text` has in a row."""
    shown = visible(str(text), LONGEST).replace("|", "\\|")
    longest, run = 0, 0
    for char in shown:
        run = run + 1 if char == "`" else 0
        longest = max(longest, run)
    fence, pad = "`" * (longest + 1), " " if shown.startswith("`") or shown.endswith("`") or not shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _bill(report: JsonObject, calls: list[JsonObject], title: str) -> Iterator[str]:
    totals, moments = report["totals"], span(calls)
    yield f"# Prompt cache report: {code(title)}"
    yield ""
    when = f", {moments[0]} to {moments[1]}" if moments else ""
    yield f"{amount(totals['calls'])} calls{when}, judged under the rules of {report['ruleset']['provider']}."
    yield ""
    rows = [
        ("input, in input-token equivalents", amount(totals["input_equivalents"])),
        ("cost with output", money(totals["cost_usd"]) + (" (partial)" if totals["partial"] else "")),
        ("input tokens", amount(totals["input_tokens"])),
        ("read from the cache", f"{percent(totals['hit_ratio'])}, {amount(totals['read_tokens'])}"),
        ("written", amount(totals["write_tokens"])),
        ("uncached", amount(totals["uncached_tokens"])),
    ]
    best = report["what_if"][-1] if report["what_if"] else None
    if best is not None and not best["note"]:
        saving = f"{amount(best['saving_equivalents'])}, {money(best['saving_usd'])}"
        rows.append(("**avoidable, proved by replay**", f"**{saving}**"))
        rows.append(("with all fixes", f"{amount(best['input_equivalents'])}, {percent(best['hit_ratio'])} read"))
    yield from _table(("the bill", ""), "lr", rows)


def _causes(report: JsonObject) -> Iterator[str]:
    yield "\n## Where the paid tokens went\n"
    rows, known = [], replayed(report["calls"])
    for name, each in report["totals"]["by_cause"].items():
        saving = "" if name == NECESSARY else amount(each["avoidable_equivalents"] if name in known else None)
        rows.append((name, *(amount(each[key]) for key in ("calls", "tokens")), saving))
    yield from _table(("cause", "calls", "tokens", "avoidable"), "lrrr", rows)


def _misses(calls: list[JsonObject]) -> Iterator[str]:
    missed = [call for call in calls if lost(call)]
    several = len({call["trace"] for call in calls}) > 1
    yield "\n## Why tokens were paid for again\n"
    if not missed:
        yield "No call paid for tokens that it could have read."
    for call in worst(missed, missed, MOST_MISSES):
        diagnosis = call["diagnosis"]
        trace = f"{code(call['trace'])} " if several else ""
        saves = ""
        if diagnosis["policy"] and diagnosis["avoidable_equivalents"]:
            worth = f"{amount(diagnosis['avoidable_equivalents'])}, {money(diagnosis['avoidable_usd'])}"
            saves = f"; `{diagnosis['policy']}` saves {worth}"
        yield f"- **call {trace}{call['seq']}** `{named(diagnosis)}` ({diagnosis['status']}), "
        yield f"  {amount(diagnosis['lost_tokens'])} tokens{saves}"
        yield from _basis(diagnosis)
    if len(missed) > MOST_MISSES:
        yield f"- … and {amount(len(missed) - MOST_MISSES)} smaller ones"


def _basis(diagnosis: JsonObject) -> Iterator[str]:
    first = diagnosis["first_change"]
    if first is not None:
        yield f"  - at {code(first['path'])}: {code(first['before'])} → {code(first['after'])}"
    for sentence in diagnosis["evidence"]:
        yield f"  - {code(sentence)}"
    if diagnosis["rule"] is not None:
        rule = diagnosis["rule"]
        yield f"  - rule `{rule['id']}` ({rule['status']}, checked {rule['checked']})"


def _what_if(report: JsonObject) -> Iterator[str]:
    yield "\n## What would have saved it\n"
    best = report["what_if"][-1] if report["what_if"] else None
    if best is None or best["note"]:
        yield best["note"] if best is not None else "Not replayed."
        return
    rows = []
    for row in report["what_if"]:
        tokens = (amount(row[key]) for key in ("calls", "write_tokens", "read_tokens"))
        worth = (amount(row["input_equivalents"]), amount(row["saving_equivalents"]), money(row["saving_usd"]))
        rows.append((f"`{row['policy']}`", *tokens, percent(row["hit_ratio"]), *worth))
    heads = ("policy", "calls", "written", "read", "hit ratio", "equivalents", "saves", "worth")
    yield from _table(heads, "lrrrrrrr", rows)
    yield ""
    for row in report["what_if"]:
        if row["quality_risk"] and len(row["policies"]) == 1:
            yield f"- `{row['policy']}`: {row['quality_risk']}"
        if row["policy"] == "cheapest":
            yield f"- cheapest = {' + '.join(row['policies']) or 'no change'} ({row['note']})"
    yield "- all = the fixes of the diagnosed causes together; savings of single rows do not add up"


def _rules(calls: list[JsonObject]) -> Iterator[str]:
    found = rules(calls)
    if found:
        yield "\n## Rules that the verdicts rest on\n"
        rows = [(f"`{r['id']}`", code(r["value"]), r["status"], r["checked"], code(r["source"])) for r in found]
        yield from _table(("rule", "value", "status", "checked", "source"), "lllll", rows)


def _remarks(report: JsonObject) -> Iterator[str]:
    totals = report["totals"]
    for model, each in totals["unpriced"].items():
        size = f"{amount(each['calls'])} calls, {amount(each['tokens'])} tokens"
        yield f"\nUNPRICED: no price known for {code(model)} ({size})"
    if totals["unknown_calls"]:
        yield f"\n{amount(totals['unknown_calls'])} calls report no cache usage and are in no ratio"


def _table(heads: Sequence[str], align: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "|".join("---:" if side == "r" else "---" for side in align) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
