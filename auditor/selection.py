"""Which calls of an audit are reported: chosen after the audit, so that earlier calls still explain later ones."""

from dataclasses import dataclass, replace
from datetime import datetime

from auditor.records import Audit, Audited
from traces.facts import facts_of
from traces.schema import Call


@dataclass(frozen=True, slots=True)
class Selection:
    """Calls from `since` on and before `until`, of a model and of a project; what is `None` selects all.

    `model` is a part of the model's name in any case, `project` a part of the path of the folder that the client worked
    in. Calls without the fact that is asked for are left out.
    """

    since: datetime | None = None
    until: datetime | None = None
    model: str | None = None
    project: str | None = None

    def takes(self, call: Call) -> bool:
        """Whether a call is reported."""
        at = None if call.started_at is None else call.started_at.timestamp()
        return self.covers(at, call.model, facts_of(call).get("project"))

    def covers(self, at: float | None, model: str | None, project: str | None) -> bool:
        """Whether a call is reported that started `at` seconds since 1970."""
        if self.since is not None or self.until is not None:
            if at is None or (self.since is not None and at < self.since.timestamp()):
                return False
            if self.until is not None and at >= self.until.timestamp():
                return False
        return (self.model or "").lower() in (model or "").lower() and (self.project or "") in (project or "")


def selected(audit: Audit, selection: Selection) -> Audit:
    """The audit with the selected calls only; a reference to a call that is left out is dropped, its evidence stays."""
    if selection == Selection():
        return audit
    kept = [audited for audited in audit.calls if selection.takes(audited.call)]
    places = {audited.index: place for place, audited in enumerate(kept)}
    calls = [_moved(audited, places) for audited in kept]
    return Audit(audit.ruleset, calls, audit.warnings, audit.rejected)


def _moved(audited: Audited, places: dict[int, int]) -> Audited:
    previous = None if audited.previous is None else places.get(audited.previous)
    diagnosis = audited.diagnosis
    if diagnosis is not None and diagnosis.reference is not None:
        diagnosis = replace(diagnosis, reference=places.get(diagnosis.reference))
    return replace(audited, index=places[audited.index], previous=previous, diagnosis=diagnosis)
