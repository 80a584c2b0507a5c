"""`cachewright lint`: what a Messages body would do to the cache, before it is sent.

Errors are what the provider refuses, warnings what it takes but caches badly; infos rest on something unknown. The
order of tools is not judged: it is the client's choice, only its change costs.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from auditor.lint_checks import ERRORS, Finding, view
from auditor.lint_warnings import WARNINGS
from localmodel.rules.step import DatedRules
from traces.errors import MalformedRow, TraceError, UnreadableInput
from traces.io import opened, parse
from traces.rows import loads
from traces.schema import Call, JsonObject

__all__ = ["Finding", "as_json", "as_text", "lint", "lint_file", "read_body", "read_body_and_text", "read_calls"]

MAX_BYTES = 64 * 1024 * 1024
"""Largest body that is read."""


OnReject: TypeAlias = Callable[[TraceError], None]


def _refuse(error: TraceError) -> None:
    raise error


def lint(
    body: JsonObject, ruleset: DatedRules, *, moment: datetime | None, platform: str = "claude_api"
) -> list[Finding]:
    """Findings of one Messages body, errors first, each with its remedy.

    `moment` chooses the dated rule values (`None`: the latest). Tokens are estimated. Raises `MalformedRow` for a
    body of a shape that no Messages request has.
    """
    return _findings(_unsent(body), ruleset, moment, platform)


def _unsent(body: JsonObject) -> Call:
    model = body.get("model")
    model = model if isinstance(model, str) else None
    return Call(id="", trace="", provider="anthropic", started_at=None, api="messages", request=body, model=model)


def _findings(call: Call, ruleset: DatedRules, moment: datetime | None, platform: str) -> list[Finding]:
    seen = view(call, ruleset, moment, platform)
    return [finding for check in (*ERRORS, *WARNINGS) for finding in check(seen)]


def lint_file(
    path: Path,
    ruleset: DatedRules,
    *,
    moment: datetime | None,
    platform: str = "claude_api",
    on_reject: OnReject = _refuse,
) -> list[tuple[str, list[Finding]]]:
    """(place, findings) of each body of a file; of a trace, a finding is kept at the first call that has it.

    Raises `TraceError`, one line with the place in front, for a file that cannot be used. Rows of a trace that cannot
    be used go to `on_reject`, which raises them too unless told otherwise.
    """
    results: list[tuple[str, list[Finding]]] = []
    known: set[tuple[str, tuple[str, ...]]] = set()
    for place, call in read_calls(path, on_reject):
        try:
            findings = _findings(call, ruleset, moment, platform)
        except MalformedRow as error:
            refused = MalformedRow(f"{place}: {error}")
            if not _is_trace(path):
                raise refused from error
            on_reject(refused)
            continue
        fresh = [finding for finding in findings if (finding.code, finding.paths) not in known]
        known.update((finding.code, finding.paths) for finding in fresh)
        results.append((place, fresh))
    return results


def read_calls(path: Path, on_reject: OnReject = _refuse) -> Iterator[tuple[str, Call]]:
    """(place, call) of a JSON file with one body, or of each Messages call of a native trace (see `_is_trace`).

    A row that is no whole call (one with a request alone) will do; a whole one brings the tokens that were counted.
    Calls without a recorded body or of another API are left out, rows that are no JSON go to `on_reject`. Raises
    `UnreadableInput`.
    """
    if not _is_trace(path):
        yield str(path), _unsent(read_body(path))
        return
    found = False
    for number, line in enumerate(_lines(path), 1):
        place = f"{path}:{number}"
        try:
            row = _parsed(place, line)
        except UnreadableInput as error:
            on_reject(error)
            continue
        body = row.get("request") if isinstance(row, dict) else None
        if isinstance(row, dict) and isinstance(body, dict) and "messages" in body and row.get("api") != "chat":
            found = True
            try:
                yield place, parse(line)
            except MalformedRow:
                yield place, _unsent(body)
    if not found:
        raise UnreadableInput(f"{path}: no call has a Messages request; record bodies, or give a request as .json")


def read_body(path: Path) -> JsonObject:
    """The Messages body in a JSON file: bare, or under "request" or "body" of an object.

    Raises `UnreadableInput` for a file that is missing, larger than `MAX_BYTES`, not JSON or not a request.
    """
    return read_body_and_text(path)[0]


def read_body_and_text(path: Path) -> tuple[JsonObject, bytes]:
    """The same with the file's text, read at once: a pipe can be read only once. Raises as `read_body`."""
    text = next(_read(path, lines=False), b"")
    value = _parsed(str(path), text)
    if not isinstance(value, dict):
        raise UnreadableInput(f"{path}: not an object; give the JSON body of a Messages request")
    for body in (value, value.get("request"), value.get("body")):
        if isinstance(body, dict) and "messages" in body:
            return body, text
    raise UnreadableInput(f'{path}: no "messages", also not under "request" or "body"; give a Messages request')


def _is_trace(path: Path) -> bool:
    """Whether a file holds calls, one a line: by its name, else (standard input, pipes) by its first line."""
    if path.name.removesuffix(".gz").endswith((".jsonl", ".json")):
        return path.name.removesuffix(".gz").endswith(".jsonl")
    return b'"schema"' in next(_read(path, lines=True), b"") and _is_json(next(_read(path, lines=True)))


def _lines(path: Path) -> Iterator[bytes]:
    """Lines with content; a growing file's torn last line is still to come."""
    for line in _read(path, lines=True):
        if line.strip() and (line.endswith(b"\n") or _is_json(line)):
            yield line


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _read(path: Path, *, lines: bool) -> Iterator[bytes]:
    """The file's bytes at once, or line by line; nothing longer than `MAX_BYTES`."""
    try:
        with opened(path) as handle:
            while data := (handle.readline(MAX_BYTES + 1) if lines else handle.read(MAX_BYTES + 1)):
                if len(data) > MAX_BYTES:
                    raise UnreadableInput(f"{path}: larger than {MAX_BYTES >> 20} MiB; give one request body")
                yield data
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise UnreadableInput(f"{path}: cannot be read: {why}; give the JSON body of a Messages request") from error


def _parsed(place: str, data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        with contextlib.suppress(MalformedRow):  # lone surrogates are read as an audit reads them
            return loads(data)
        at = f"line {error.lineno} column {error.colno}"
        raise UnreadableInput(f"{place}: not JSON: {error.msg} at {at}; give the JSON body of a request") from error


def as_text(file: str, findings: Iterable[Finding]) -> str:
    """One line a finding, `FILE:/json/pointer: error code: message; remedy`; "" for none."""
    return "".join(_line(file, finding) + "\n" for finding in findings)


def _line(file: str, finding: Finding) -> str:
    place = f"{file}:{finding.paths[0]}" if finding.paths else file
    return _printable(f"{place}: {finding.severity} {finding.code}: {finding.message}; {finding.remedy}")


def _printable(text: str) -> str:
    """One line that no terminal takes for a command: what cannot be printed is written as its code."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def as_json(file: str, findings: Iterable[Finding]) -> JsonObject:
    """`{"file": …, "findings": [{code, severity, paths, message, remedy, rule}]}`; `rule` as {id, status, checked}."""
    return {"file": _printable(file), "findings": [_as_object(finding) for finding in findings]}


def _as_object(finding: Finding) -> JsonObject:
    rule = finding.rule
    return {
        "code": finding.code,
        "severity": finding.severity,
        "paths": [_printable(path) for path in finding.paths],
        "message": _printable(finding.message),
        "remedy": finding.remedy,
        "rule": rule and {"id": rule.id, "status": rule.status, "checked": rule.checked.isoformat()},
    }
