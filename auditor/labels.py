"""The provider's own word on a call, weighed as evidence: it compares requests and knows nothing of the cache.

A label without lost tokens is no miss. Where bodies were recorded, what they show stands, and a label supports it or is
quoted beside it. Where only usage was, a label that names a change names the cause (idle time that suffices as well
holds beside it); all others leave it open.
"""

from auditor.records import Audited, Cause, Diagnosis, Finding, Status
from traces.schema import Label

_CAUSES: dict[str, Cause] = {
    "model": "model_changed",
    "tools": "tools_changed",
    "system": "system_changed",
    "messages": "history_rewritten",
    "input": "history_rewritten",
    "key": "scope_changed",
    "compaction": "compaction",
}
_CONTENT: tuple[Cause, ...] = ("tools_changed", "system_changed", "history_rewritten", "model_changed")
_SAYS = {
    "not_found": "it no longer knew the earlier request, as after idle time; this does not say that the prompt changed",
    "unavailable": "it could not tell: another parameter may differ, or the prompt is too long",
    "pending": "it had not finished comparing",
    "none": "it compared the requests and found no difference",
}


def cause_of(label: Label) -> Cause | None:
    """The cause that a label names, `None` where it names none."""
    if label.finds != "change" or label.what is None:
        return None
    return _CAUSES.get(label.what, "parameter_changed")


def weigh(audited: Audited) -> None:
    """Take the call's label into its diagnosis."""
    label, diagnosis = audited.call.label, audited.diagnosis
    if label is None or diagnosis is None:
        return
    cause = cause_of(label)
    if not diagnosis.lost_tokens:
        if diagnosis.primary.cause == "compaction" and cause is not None:
            diagnosis.primary.evidence.append(f"the provider's own label agrees: {label.value}")
        return  # nothing was lost: whatever was compared, no miss came of it
    if cause is None:
        _open(diagnosis, label)
    elif cause in {finding.cause for finding in diagnosis.findings if finding.lost_tokens}:
        diagnosis.primary.evidence.append(f"the provider's own label agrees: {label.value}")
    elif audited.outcome is None or diagnosis.primary.cause == "unknown":
        _named(diagnosis, label, cause)
    else:
        # Bodies already explain the loss; both may hold, since a label knows nothing of the cache.
        found = Finding(cause, "possible", [f"the provider's own label: {label.value}"], parameter=_parameter(label))
        diagnosis.also = [one for one in diagnosis.also if one.cause != cause or one.lost_tokens] + [found]


def _named(diagnosis: Diagnosis, label: Label, cause: Cause) -> None:
    """A loss that numbers alone could not explain for certain, and a label that names a change."""
    old = diagnosis.primary
    size = "" if label.missed_tokens is None else f", about {label.missed_tokens:,} tokens behind it"
    said = f"the provider compared this request with an earlier one: {label.value}{size}"
    rest = [line for line in old.evidence if "the change itself cannot be shown" not in line]
    expired = old.cause == "ttl_expired"
    # "input" is instructions or history, so the cause is not certain.
    status: Status = "likely" if label.what == "input" else "established"
    evidence = [said] if expired else [said, *rest]
    diagnosis.primary = Finding(cause, status, evidence, old.lost_tokens, parameter=_parameter(label))
    diagnosis.also = [one for one in diagnosis.also if one.cause != cause and one.cause not in _CONTENT]
    diagnosis.ruled_out = [one for one in diagnosis.ruled_out if one.cause != cause]
    if expired:
        old.lost_tokens = 0
        diagnosis.also.insert(0, old)


def _open(diagnosis: Diagnosis, label: Label) -> None:
    """A label that names no change: what it does say is told, and an unknown cause stays one."""
    diagnosis.primary.evidence.append(f"the provider's own label is {label.value}: {_SAYS[label.finds]}")
    if label.finds != "none" or diagnosis.primary.cause != "unknown":
        return
    old = diagnosis.primary
    diagnosis.primary = Finding("provider_side", "likely", old.evidence, old.lost_tokens)
    gone = [one for one in diagnosis.also if one.cause in _CONTENT]
    diagnosis.also = [one for one in diagnosis.also if one not in gone and one.cause != "provider_side"]
    diagnosis.ruled_out += [Finding(one.cause, "ruled_out", ["the provider found no difference"]) for one in gone]


def _parameter(label: Label) -> str | None:
    known = _CAUSES.get(label.what or "")
    if known == "scope_changed":
        return "prompt_cache_key"
    return label.what if known is None else None
