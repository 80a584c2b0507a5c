"""`--record FILE`: each served call as one row of the native trace format (`cachewright.trace/1`), as JSON Lines.

`request` is the body as it was sent; `tokens` has the exact count of each block, so that an audit of the file needs
no estimate. Rows of the OpenAI dialects hold no counts by block: their bodies are mapped before they are counted.
"""

import os
import sys
from pathlib import Path
from typing import BinaryIO

from localmodel.server.errors import BadSettings
from localmodel.server.ledger import Ticket, stamp
from localmodel.server.render import HOST, PROVIDER, Rendered
from localmodel.server.usage import Counts
from traces.canonical import dump
from traces.errors import MalformedRow
from traces.schema import SCHEMA, JsonObject

Session = tuple[str, str]
"""(trace, agent) that a call belongs to."""


class Recorder:
    """Appends rows to a file, each in one write, so that a reader never sees half a row but the last."""

    def __init__(self, path: Path) -> None:
        try:
            # Bodies hold whatever the user's agent reads: nobody else's business.
            self._file: BinaryIO = open(path, "ab", buffering=0, opener=_private)  # noqa: SIM115
        except OSError as error:
            raise BadSettings(f"--record {path}: cannot be written: {error.strerror}") from None

    def write(self, ticket: Ticket, sent: JsonObject, rendered: Rendered, reply: JsonObject, session: Session) -> None:
        """Append one call. A body that no JSON text can hold is left out, and the row says so by its absence."""
        if self._file.closed:
            return
        row = {
            "schema": SCHEMA,
            "seq": ticket.number,
            "id": ticket.id,
            "trace": session[0],
            "agent": session[1],
            "kind": "prewarm" if sent.get("max_tokens") == 0 else "main",
            "provider": PROVIDER if ticket.api == "messages" else _provider(ticket.counts),
            "api": ticket.api,
            "host": HOST,
            "key_fp": ticket.who.space,
            "betas": list(ticket.who.betas),
            "started_at": stamp(ticket.at),
            "first_token_at": stamp(ticket.first_token_at),
            "ended_at": stamp(ticket.ended_at),
            "status": ticket.status,
            "request": sent,
            "response": reply or None,
            "tokens": dict(rendered.counts) if ticket.api == "messages" else None,
        }
        try:
            text = dump(row)
        except MalformedRow:
            text = dump({**row, "request": None, "tokens": None})
        try:
            self._append(text + b"\n")
        except OSError as error:
            print(f"cachewright: the record ends here, {error.strerror}; calls are still served", file=sys.stderr)
            self.close()

    def _append(self, text: bytes) -> None:
        """Write a whole row: a pipe or a full disk may take a part of it."""
        while text:
            text = text[self._file.write(text) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _provider(counts: Counts) -> str:
    """Whose rules an OpenAI dialect was served by; none but this server's where those were of another API."""
    return "cachewright" if counts.provider == PROVIDER else counts.provider


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
