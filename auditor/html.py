"""The report as one HTML page: no script, nothing fetched, readable in light and dark, on paper and by ear.

A pure function of the JSON report, so its numbers are those of `audit --json`. Every value goes through `visible` and
is escaped: what a trace says can neither be markup nor turn the reading direction.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from auditor.chart import HEIGHT, WIDTH, chart, lost
from auditor.excerpt import Excerpt
from auditor.figures import dollars, number, percent
from auditor.totals import NECESSARY
from auditor.visible import visible
from traces.schema import JsonObject

MOST_CALLS = 1000
MOST_MISSES = 150
MOST_BYTES = 1_500_000
"""Of a page. Where texts are so long that it would be larger, fewer misses are explained."""

LONGEST, SHORT = 300, 40
"""Characters of one text from a trace, and of a name or a path that stands in many rows."""


def page(report: JsonObject, title: str, excerpts: Mapping[int, Excerpt]) -> str:
    """The page for a report (`cachewright.audit/1`); `excerpts` by the position of a call in it."""
    for most in (MOST_MISSES, MOST_MISSES // 3, MOST_MISSES // 10):
        made = _page(report, title, excerpts, most)
        if len(made.encode(errors="replace")) < MOST_BYTES:
            break
    return made


def _page(report: JsonObject, title: str, excerpts: Mapping[int, Excerpt], most_misses: int) -> str:
    calls = [dict(call, index=index) for index, call in enumerate(report["calls"])]
    missed = [call for call in calls if lost(call)]
    made: str = _template().render(
        title=title,
        report=report,
        totals=report["totals"],
        all=report["what_if"][-1] if report["what_if"] else None,
        span=span(calls),
        chart=chart(calls),
        chart_size=(WIDTH, HEIGHT),
        calls=worst(calls, missed, MOST_CALLS),
        left_out=max(0, len(calls) - MOST_CALLS),
        misses=sorted(missed, key=lost, reverse=True)[:most_misses],
        misses_left_out=max(0, len(missed) - most_misses),
        excerpts=excerpts,
        nothing=Excerpt(),
        replayed=replayed(calls),
        rules=rules(calls),
        necessary=NECESSARY,
        several=len({call["trace"] for call in calls}) > 1,
    )
    return made


def span(calls: Sequence[JsonObject]) -> tuple[str, str] | None:
    """First and last start of the calls that have one."""
    times = sorted(call["started_at"] for call in calls if call["started_at"])
    return (times[0], times[-1]) if times else None


def worst(calls: list[JsonObject], missed: list[JsonObject], most: int) -> list[JsonObject]:
    """At most `most` of `calls`, those that lost most, in time order."""
    if len(calls) <= most:
        return calls
    return sorted(sorted(missed, key=lost, reverse=True)[:most], key=lambda call: int(call["index"]))


def replayed(calls: Sequence[JsonObject]) -> set[str]:
    """The causes of which a replay says what was avoidable; of others that is unknown, not zero."""
    diagnoses = [call["diagnosis"] for call in calls if call["diagnosis"]]
    return {str(each["cause"]) for each in diagnoses if each["avoidable_equivalents"] is not None}


def rules(calls: Sequence[JsonObject]) -> list[JsonObject]:
    """The rules that the diagnoses rest on, each once for each of its values, by id."""
    found: dict[tuple[str, str], JsonObject] = {}
    for call in calls:
        rule = call["diagnosis"]["rule"] if call["diagnosis"] else None
        if rule is not None:
            found.setdefault((str(rule["id"]), str(rule["value"])), rule)
    return [found[key] for key in sorted(found)]


def named(diagnosis: JsonObject) -> str:
    """A cause with what it is about: tools_changed (inserted), parameter_changed (tool_choice)."""
    detail = diagnosis["change"] or diagnosis["parameter"]
    return f"{diagnosis['cause']} ({detail})" if detail else str(diagnosis["cause"])


def amount(value: Any) -> str:
    """A count or a decimal string with thousands separators, a dash where unknown."""
    return number(Decimal(value) if isinstance(value, str) else value)


def money(value: str | None) -> str:
    """Dollars, or that there is no price."""
    return "unpriced" if value is None else dollars(Decimal(value))


def when(moment: str | None) -> str:
    """A time of the report to the second, a dash where unknown."""
    return moment[:19].replace("T", " ") if moment else "-"


def short(name: str) -> str:
    """A name that stands in many rows."""
    return visible(name, SHORT)


def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(amount=amount, money=money, percent=percent, named=named, when=when, short=short)
    return environment.get_template("report.html")


def _shown(value: Any) -> Any:
    return visible(value, LONGEST) if isinstance(value, str) else value
