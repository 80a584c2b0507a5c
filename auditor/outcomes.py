"""What an audit leaves in the store: predictions, verdicts and diagnoses in tokens; never money."""

from collections.abc import Iterator

from auditor.records import Audit
from auditor.report import diagnosis_json
from auditor.store_rows import OutcomeRow

_MONEY = ("policy", "avoidable_equivalents", "avoidable_usd")


def outcome_rows(result: Audit) -> Iterator[OutcomeRow]:
    """One row for each call that has a place in the store."""
    for audited in result.calls:
        if audited.call.key is None:
            continue
        outcome, diagnosis = audited.outcome, None
        if audited.diagnosis is not None:
            whole = diagnosis_json(audited.diagnosis, result.calls)
            diagnosis = {name: value for name, value in whole.items() if name not in _MONEY}
        yield OutcomeRow(
            call=audited.call.key,
            read_tokens=outcome.read_tokens if outcome else None,
            write_tokens=outcome.write_tokens if outcome else None,
            uncached_tokens=outcome.uncached_tokens if outcome else None,
            verdict=audited.verdict,
            cause=audited.diagnosis.primary.cause if audited.diagnosis else None,
            lost_tokens=audited.diagnosis.lost_tokens if audited.diagnosis else None,
            diagnosis=diagnosis,
        )
