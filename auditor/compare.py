"""Two request bodies side by side: where they part, what that does to the cache, and what did not change."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from auditor.blockers import changed
from auditor.records import CONTENT_CAUSES, Cause
from auditor.report import first_change_json
from auditor.visible import visible
from localmodel.rules.book import Rulebook
from localmodel.rules.load import Ruleset
from traces.canonical import Interner, canonical
from traces.divergence import Divergence, common_blocks, common_prefix, first_divergence, side
from traces.errors import MalformedRow
from traces.schema import Call, JsonObject, Level, Prompt
from traces.tokens import Meter, estimate
from traces.wire.dialects import BY_NAME, likely_provider


@dataclass(frozen=True, slots=True)
class Comparison:
    """What separates body B from body A as the cache sees them.

    shared_blocks / shared_tokens   the common beginning (tokens are estimated)
    parameters                      (name, value in A, value in B, first level that it invalidates)
    first_byte                      first byte at which the raw texts differ, `None` where they do not
    equal_value                     whether the bodies are the same JSON value
    """

    shared_blocks: int
    shared_tokens: int
    first: Divergence | None
    cause: Cause | None
    parameters: tuple[tuple[str, str, str, str], ...]
    appended: int
    first_byte: int | None
    equal_value: bool
    dialect: str = "messages"


def compare(
    a: JsonObject, b: JsonObject, raw: tuple[bytes, bytes], forced: Ruleset | None, moment: datetime | None
) -> Comparison:
    """Compare two bodies of one API, by its own rules or by a forced ruleset. Raises `MalformedRow` for others."""
    ruleset = forced or Rulebook().of(likely_provider(b), "")
    assert ruleset is not None  # every provider that a body can show has rules
    interner, meter = Interner(estimate), Meter()
    one, two = (_prompt(body, interner, meter) for body in (a, b))
    first = first_divergence(side(one, a), side(two, b))
    shared = common_blocks(one, two)
    cause = CONTENT_CAUSES[first.level] if first is not None else None
    parameters = _parameters(one, two, ruleset, moment)
    return Comparison(
        shared_blocks=shared,
        shared_tokens=two.tokens_before(shared),
        first=first,
        cause=cause or ("parameter_changed" if parameters else None),
        parameters=parameters,
        appended=len(two.blocks) - shared if first is None else 0,
        first_byte=_first_byte(*raw),
        equal_value=a == b,
        dialect=two.dialect,
    )


def _prompt(body: JsonObject, interner: Interner, meter: Meter) -> Prompt:
    model = body.get("model")
    name = model if isinstance(model, str) else None
    call = Call("", "", likely_provider(body), None, request=body, model=name)
    prompt = canonical(call, interner)
    if prompt is None:
        raise MalformedRow("the body has no messages list: it is not a Messages request")
    return meter.measure(prompt, call)


def _parameters(
    one: Prompt, two: Prompt, ruleset: Ruleset, moment: datetime | None
) -> tuple[tuple[str, str, str, str], ...]:
    rules = ruleset.at(two.model, two.platform, moment)
    found = [
        (name, old, new, Level(rules.invalidation[name]).name.lower()) for name, old, new in changed(one, two, rules)
    ]
    if one.model != two.model:
        found.insert(0, ("model", one.model, two.model, "tools"))
    return tuple(found)


def _first_byte(one: bytes, two: bytes) -> int | None:
    return None if one == two else common_prefix(one, two)


def as_json(found: Comparison) -> JsonObject:
    """The comparison as a JSON object."""
    paths = BY_NAME[found.dialect].parameter_paths
    parameters: list[dict[str, Any]] = [
        {"name": name, "path": paths.get(name, "/" + name), "before": old, "after": new, "invalidates": level}
        for name, old, new, level in found.parameters
    ]
    return {
        "cause": found.cause,
        "change": found.first.change if found.first else None,
        "first_change": first_change_json(found.first) if found.first else None,
        "parameters": parameters,
        "shared_blocks": found.shared_blocks,
        "shared_tokens_estimate": found.shared_tokens,
        "appended_blocks": found.appended,
        "first_byte_offset": found.first_byte,
        "semantically_equal": found.equal_value,
    }


def as_text(found: Comparison) -> str:
    """The comparison in words, one fact a line."""
    lines = []
    if found.first is None and not found.parameters:
        lines.append(
            f"B repeats A and appends {found.appended} blocks" if found.appended else "the cache sees no change"
        )
    if found.first is not None:
        lines.append(f"{found.cause}: {found.first.change.replace('_', ' ')} at {found.first.path}")
        lines += _place(found.first)
    for name, old, new, level in found.parameters:
        lines.append(f"{name}: {visible(old, 80)} in A, {visible(new, 80)} in B; invalidates from the {level} level on")
    lines.append(f"shared beginning: {found.shared_blocks} blocks, about {found.shared_tokens:,} tokens")
    if found.equal_value:
        lines.append("both bodies are the same JSON value" + (": only the bytes differ" if found.first_byte else ""))
    if found.first_byte is not None:
        lines.append(f"first differing byte: {found.first_byte:,}")
    return "\n".join(lines)


def _place(first: Divergence) -> list[str]:
    lines = []
    if first.char_offset is not None:
        lines.append(f"  at character {first.char_offset:,} of that text")
    if first.moved_to is not None:
        lines.append(f"  the block that stood there is now at {first.moved_to}")
    if first.names:
        lines.append(f"  tools: {visible(', '.join(first.names), 200)}")
    return [*lines, f"  A: {visible(first.before)}", f"  B: {visible(first.after)}"]
