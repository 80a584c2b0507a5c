"""The report for a terminal: the bill, the calls, why tokens were lost, and what would have saved them."""

from collections.abc import Iterator
from datetime import UTC, tzinfo
from decimal import Decimal

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from auditor.figures import dollars, number, percent
from auditor.records import Audit, Audited, Diagnosis
from auditor.savings import WhatIf
from auditor.totals import NECESSARY, Totals
from auditor.visible import visible

# A longer trace shows its misses only, and of those the ones that lost most.
LONGEST_TABLE = 40
MOST_MISSES = 12

_HEADINGS = {
    "input_tokens": "input",
    "read_tokens": "read",
    "write_tokens": "written",
    "uncached_tokens": "uncached",
}
_STYLES = {"hit": "green", "partial_miss": "yellow", "miss": "red", "cold_write": "cyan", "unknown": "dim"}


def render(audit: Audit, totals: Totals, what_if: list[WhatIf], title: str, zone: tzinfo = UTC) -> Group:
    """The whole report as one rich renderable, with times of `zone`."""
    parts: list[RenderableType] = [_bill(totals, what_if, title), Text()]
    parts += [_calls(audit, zone), Text()]
    parts += [*_misses(audit), *_causes(totals)]
    if what_if and len(what_if) > 1:
        parts += [Text("What would have saved it", style="bold"), _what_if(what_if), *_footnotes(what_if)]
    parts += _warnings(audit, totals)
    return Group(*parts)


def console(width: int | None = None) -> Console:
    """A console for reports: as wide as the terminal, 100 columns where there is none; no markup, no guessing."""
    made = Console(markup=False, highlight=False, emoji=False, soft_wrap=False)
    if width is not None or not made.is_terminal:
        made.width = width or 100
    return made


def shown(renderable: RenderableType, width: int | None = None) -> str:
    """The text of a report as a terminal of that width shows it, without blanks at line ends."""
    screen = console(width)
    with screen.capture() as capture:
        screen.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _bill(totals: Totals, what_if: list[WhatIf], title: str) -> Text:
    whole, text = totals.whole, Text()
    text.append(f"{visible(title, 80)}\n", style="bold")
    text.append(
        f"{number(whole.calls)} calls, {number(whole.input_tokens)} input tokens: {percent(whole.hit_ratio)} read from "
        f"cache, {number(whole.write_tokens)} written, {number(whole.uncached_tokens)} uncached.\n"
    )
    text.append(f"Input cost {number(whole.equivalents)} input-token equivalents")
    if whole.priced_calls:
        between = "" if whole.low == whole.high else f" (between {dollars(whole.low)} and {dollars(whole.high)})"
        amounts = [] if whole.other and not whole.usd else [f"{dollars(whole.usd)}{between}"]
        amounts += [f"{currency} {amount:,.2f}" for currency, amount in whole.other.items()]
        text.append(f"; {' and '.join(amounts)} with output{' (partial)' if totals.partial else ''}")
    text.append(".")
    if what_if and what_if[-1].note:
        text.append(f"\nNo what-if: {what_if[-1].note}.")
    best = what_if[-1] if what_if else None
    if best is not None and best.saving_equivalents > 0:
        share = best.saving_equivalents / whole.equivalents if whole.equivalents else None
        text.append(
            f"\nAvoidable, proved by replay: {number(best.saving_equivalents)} ({percent(share)})"
            f"{_or_dollars(best.saving_usd)}; with all fixes {percent(best.bill.hit_ratio)} would have been read.",
            style="bold",
        )
    return text


def _or_dollars(value: Decimal | None) -> str:
    return "" if value is None else f", {dollars(value)}"


def _calls(audit: Audit, zone: tzinfo) -> Table:
    listed = audit.calls if len(audit.calls) <= LONGEST_TABLE else _worst(_lossy(audit), LONGEST_TABLE)
    columns, named = ["input_tokens", "read_tokens", "write_tokens"], _several(audit)
    if any(audited.call.usage.uncached_tokens for audited in listed):
        columns.append("uncached_tokens")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("call", "start", *columns):
        table.add_column(_HEADINGS.get(name, name), justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("cause", overflow="fold")
    for audited in listed:
        table.add_row(*_row(audited, columns, named, zone))
    return table


def _lossy(audit: Audit) -> list[Audited]:
    return [a for a in audit.calls if a.diagnosis is not None and a.diagnosis.lost_tokens]


def _worst(lossy: list[Audited], most: int) -> list[Audited]:
    """Those that lost most, in time order."""
    return sorted(sorted(lossy, key=_loss, reverse=True)[:most], key=lambda a: a.index)


def _examples(lossy: list[Audited]) -> list[Audited]:
    """The worst misses to explain, of each cause a few, so that one frequent cause does not hide the others."""
    if len(lossy) <= MOST_MISSES:
        return lossy
    by_cause: dict[str, list[Audited]] = {}
    for audited in lossy:
        by_cause.setdefault(_named(_diagnosis(audited)), []).append(audited)
    each = max(1, MOST_MISSES // len(by_cause))
    return _worst([a for group in by_cause.values() for a in _worst(group, each)], MOST_MISSES)


def _diagnosis(audited: Audited) -> Diagnosis:
    assert audited.diagnosis is not None
    return audited.diagnosis


def _loss(audited: Audited) -> int:
    return audited.diagnosis.lost_tokens if audited.diagnosis is not None else 0


def _row(audited: Audited, columns: list[str], named: bool, zone: tzinfo) -> Iterator[RenderableType]:
    call, usage, diagnosis = audited.call, audited.call.usage, audited.diagnosis
    yield Text(_label(audited, named))
    relative = call.clock == "relative"
    at = audited.at if relative else audited.at.astimezone(zone)
    yield at.strftime("%M:%S" if relative else "%H:%M:%S") if call.started_at is not None else "-"
    for name in columns:
        yield number(getattr(usage, name))
    yield Text(audited.verdict.replace("_", " "), style=_STYLES.get(audited.verdict, ""))
    if diagnosis is None:
        yield Text(visible(audited.note or ""), style="dim")
        return
    primary = diagnosis.primary
    where = f" at {primary.path}" if primary.path and not primary.parameter else ""
    yield Text(visible(_named(diagnosis) + where), style="" if diagnosis.lost_tokens else "dim")


def _named(diagnosis: Diagnosis) -> str:
    name = diagnosis.primary.cause
    if diagnosis.first is not None:
        return f"{name}: {diagnosis.first.change}"
    return f"{name}: {diagnosis.primary.parameter}" if diagnosis.primary.parameter else name


def _misses(audit: Audit) -> Iterator[RenderableType]:
    lossy = _lossy(audit)
    if not lossy:
        return
    yield Text("Why tokens were paid for again", style="bold")
    named, examples = _several(audit), _examples(lossy)
    for audited in examples:
        yield _miss(_label(audited, named), _diagnosis(audited))
    if len(lossy) > len(examples):
        rest = number(len(lossy) - len(examples))
        yield Text(f"  … and {rest} more of these causes, most of them smaller (--json lists all)", style="dim")
    yield Text()


def _several(audit: Audit) -> bool:
    """Whether calls of more than one trace are shown, so that a number alone names none."""
    return len({audited.call.trace for audited in audit.calls}) > 1


def _label(audited: Audited, named: bool) -> str:
    call = audited.call
    return f"{visible(call.trace, 16)}:{call.seq}" if named else str(call.seq)


def _miss(label: str, diagnosis: Diagnosis) -> Group:
    """One miss: a headline, and what it rests on in indented lines."""
    head = Text(f"  call {label}  ", style="bold")
    head.append(f"{visible(_named(diagnosis))} ({diagnosis.primary.status}), {number(diagnosis.lost_tokens)} tokens")
    if diagnosis.policy is not None and diagnosis.avoidable_equivalents:
        worth = f"{number(diagnosis.avoidable_equivalents)}{_or_dollars(diagnosis.avoidable_usd)}"
        head.append(f"; {diagnosis.policy} saves {worth}")
    return Group(head, Padding(Text("\n").join(_basis(diagnosis)), (0, 0, 0, 10), expand=False))


def _basis(diagnosis: Diagnosis) -> Iterator[Text]:
    for sentence in diagnosis.primary.evidence:
        yield Text(visible(sentence))
    for finding in diagnosis.also:
        if finding.status in ("established", "likely"):
            yield Text(f"also {finding.cause}: {visible(finding.evidence[0])}")
    possible = [finding.cause for finding in diagnosis.also if finding.status == "possible"]
    if possible:
        yield Text(f"remaining: {', '.join(possible)}")
    if diagnosis.ruled_out:
        excluded = "; ".join(f"{finding.cause} ({finding.evidence[0]})" for finding in diagnosis.ruled_out[:2])
        yield Text(f"not {visible(excluded)}", style="dim")
    rule = diagnosis.primary.rule
    if rule is not None:
        yield Text(f"rule {rule.id} ({rule.status}, checked {rule.checked})", style="dim")


def _causes(totals: Totals) -> Iterator[RenderableType]:
    if set(totals.by_cause) <= {NECESSARY}:
        return
    yield Text("Where paid tokens went", style="bold")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("  cause")
    for name in ("calls", "tokens", "written", "uncached", "beyond a read", "avoidable"):
        table.add_column(name, justify="right")
    for name, each in totals.by_cause.items():
        avoidable = number(each.avoidable_equivalents) if each.avoidable_equivalents else ""
        table.add_row(
            f"  {name}",
            number(each.calls),
            number(each.tokens),
            number(each.written_tokens),
            number(each.uncached_tokens),
            dollars(each.again_usd) if each.again_usd else "",
            avoidable,
        )
    yield table
    yield Text()


def _what_if(rows: list[WhatIf]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("  policy", no_wrap=True)
    for name in ("calls", "written", "read", "hit ratio", "equivalents", "saves", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        style = "bold" if row.policy == "all" else ""
        table.add_row(
            f"  {row.policy}{' *' if row.quality_risk and len(row.policies) == 1 else ''}",
            number(row.bill.calls),
            number(row.bill.write_tokens),
            number(row.bill.read_tokens),
            percent(row.bill.hit_ratio),
            number(row.bill.equivalents),
            number(row.saving_equivalents),
            dollars(row.saving_usd),
            style=style,
        )
    return table


def _footnotes(rows: list[WhatIf]) -> Iterator[RenderableType]:
    for row in rows:
        if len(row.policies) == 1 and row.quality_risk:
            yield Text(f"  * {row.policy}: {row.quality_risk}", style="dim")
        if row.paths:
            paths = ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in row.paths.items())
            yield Text(f"    {paths}", style="dim")
        if row.policy == "cheapest":
            yield Text(f"  cheapest = {' + '.join(row.policies) or 'no change'} ({row.note})", style="dim")
    yield Text("  all = the fixes of the diagnosed causes together; savings of single rows do not add up", style="dim")


def _warnings(audit: Audit, totals: Totals) -> Iterator[RenderableType]:
    for model, each in totals.unpriced.items():
        yield Text(
            f"UNPRICED: no price known for model {visible(model)!r} ({number(each.calls)} calls, {number(each.tokens)} "
            "tokens); the total leaves it out",
            style="bold red",
        )
    if totals.whole.unknown_calls:
        yield Text(f"{number(totals.whole.unknown_calls)} calls report no cache usage and are in no ratio", style="dim")
    if totals.failed_calls:
        yield Text(f"{number(totals.failed_calls)} failed calls are listed but not counted", style="dim")
    disagreeing = sum(1 for audited in audit.calls if audited.agrees is False)
    if disagreeing:
        yield Text(f"{number(disagreeing)} calls were billed otherwise than the rules predict", style="yellow")
