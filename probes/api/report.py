"""The record of a run: one JSON object a request, a claim and a verdict, and the same requests as a native trace."""

import os
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

from probes.api.claim import Claim
from probes.api.exchange import Exchange, call_of
from probes.api.lab import Lab
from probes.api.secret import Scrubber
from probes.errors import BadTarget
from traces import io
from traces.canonical import dump
from traces.errors import MalformedRow
from traces.schema import JsonObject

SCHEMA = "cachewright.probe/1"
TRACE_SUFFIX = ".trace.jsonl"


def row_of(exchange: Exchange, cost_usd: Decimal | None) -> JsonObject:
    """One request as a JSON object. Missing is `null`, never 0; `usage` is as returned."""
    usage = exchange.usage

    def since(moment: float | None) -> float | None:
        return None if moment is None else round(moment - exchange.sent_s, 3)

    return {
        "case": exchange.case,
        "requested_model": exchange.model,
        "response_model": exchange.response_model,
        "first_text_s": since(exchange.first_text_s),
        "request_s": since(exchange.ended_s),
        "total_input_tokens": usage.input_tokens,
        "usage": exchange.usage_raw,
        "stop_reason": exchange.stop_reason,
        "complete": exchange.complete,
        "error": exchange.error,
        "cost_usd": None if cost_usd is None else f"{cost_usd.normalize():f}",
        "read_tokens": usage.read_tokens,
        "write_tokens": usage.write_tokens,
        "uncached_tokens": usage.uncached_tokens,
        "seq": exchange.seq,
        "status": exchange.status,
        "started_at": exchange.sent_at.isoformat().replace("+00:00", "Z"),
        "first_event_s": since(exchange.began_s),
    }


def claim_row(claim: Claim, lab: Lab) -> JsonObject:
    """One claim as a JSON object, with what `probe diff` needs to compare it with other rule data."""
    return {
        "claim": claim.claim,
        "probe": claim.probe,
        "rule": claim.rule,
        "finding": claim.finding,
        "value": claim.value,
        "expected": claim.expected,
        "why": claim.why,
        "prediction": claim.prediction,
        "observation": claim.observation,
        "requests": list(claim.requests),
        "cannot_establish": list(claim.cannot),
        "model": lab.model,
        "host": lab.target.host,
        "provider": lab.target.provider,
        "at": lab.clock.now().isoformat(timespec="seconds").replace("+00:00", "Z"),
        "schema": SCHEMA,
    }


class Record:
    """Writes rows to a file and the calls to a trace beside it, each in one write, so that neither holds half a row.

    Both are readable by their owner only: they hold the document that was probed with.
    """

    def __init__(self, path: Path, trace: str, scrub: Scrubber) -> None:
        self.trace_path = Path(f"{path}{TRACE_SUFFIX}")
        self._trace, self._scrub = trace, scrub
        self._rows = _opened(path)
        try:
            self._calls = _opened(self.trace_path)
        except BadTarget:
            self._rows.close()
            path.unlink()
            raise

    def row(self, row: JsonObject) -> None:
        """Write one row."""
        self._rows.write(line(row, self._scrub))

    def call(self, exchange: Exchange) -> None:
        """Write one call to the trace. A body that no JSON text can hold is left out of it."""
        try:
            self._calls.write(_native(exchange, self._trace, self._scrub))
        except MalformedRow:
            return

    def close(self) -> None:
        """Close both files."""
        self._rows.close()
        self._calls.close()


def line(row: JsonObject, scrub: Scrubber) -> bytes:
    """A row as one line of JSON without keys."""
    return scrub(dump(row).decode(errors="replace")).encode() + b"\n"


def _native(exchange: Exchange, trace: str, scrub: Scrubber) -> bytes:
    from io import BytesIO

    made = BytesIO()
    io.write([call_of(exchange, trace)], made)
    return scrub(made.getvalue().decode(errors="replace")).encode()


def _opened(path: Path) -> BinaryIO:
    try:
        # Never over an earlier record, which may have cost money.
        return open(path, "xb", buffering=0, opener=_private)
    except FileExistsError:
        raise BadTarget(f"--out {path}: is there already; name a new file") from None
    except OSError as error:
        raise BadTarget(f"--out {path}: cannot be written: {error.strerror}") from None


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def plain(value: Any) -> str:
    """A found or expected value in words."""
    if isinstance(value, dict) and "above" in value:
        top = value.get("at_most")
        return f"more than {value['above']:g}" + ("" if top is None else f" and at most {top:g}")
    words: dict[Any, str] = {True: "yes", False: "no", None: "unknown"}
    # By type too: 1 equals True, and is a number here.
    return words[value] if isinstance(value, bool) or value is None else f"{value}"
