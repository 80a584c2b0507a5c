"""Rows of recorded exchanges, and the removal of recorded calls for good.

An exact body is one byte that says how it is kept, and the rest. Almost all clients send what orjson would write of the
same JSON, and the call's blocks hold that already:

    =    the body is the JSON text of the call's request
    d    what turns that text into the body (zstd with that text as its dictionary): other spaces, escapes, numbers
    r    the body itself, packed
"""

import sqlite3
import sys
from datetime import datetime
from typing import Any

from auditor.store_bodies import DIGEST_BYTES, dumps, pack, unpack
from auditor.store_rows import json_value, sql_text
from traces.exchange import Exchange
from traces.schema import Call

_LEAST_DICTIONARY = 16
"""Bytes; zstd takes no dictionary under 8."""

ADD_EXCHANGE = "INSERT INTO exchanges VALUES (?,?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (id) DO NOTHING"


def exchange_row(exchange: Exchange, call: bytes | None) -> tuple[Any, ...]:
    """Return the values of a row; `call` is the key of the exchange's call."""
    text = (exchange.method, exchange.path, exchange.upstream)
    return (
        exchange.id,
        exchange.started_at.isoformat(timespec="microseconds"),
        call,
        *map(sql_text, text),
        exchange.status,
        exchange.outcome,
        exchange.conversation,
        pack(dumps(exchange.facts)),
        _packed(exchange.request, exchange.call),
        None if exchange.response is None else pack(exchange.response),
    )


def exchange_of(row: tuple[Any, ...], call: Call | None) -> Exchange:
    """Return the exchange that `exchange_row` wrote. Raises zlib.error or ValueError for damaged data."""
    name, started, _, method, path, upstream, status, outcome, conversation, facts, request, response = row
    return Exchange(
        id=name,
        started_at=datetime.fromisoformat(started),
        method=method,
        path=path,
        upstream=upstream,
        status=status,
        outcome=outcome,
        conversation=conversation,
        facts=json_value(facts),
        request=_unpacked(request, call),
        response=None if response is None else unpack(response),
        call=call,
    )


def _packed(body: bytes | None, call: Call | None) -> bytes | None:
    if body is None or call is None or call.request is None:
        return None if body is None else b"r" + pack(body)
    text = dumps(call.request)
    if text == body:
        return b"="
    if len(text) < _LEAST_DICTIONARY:
        return b"r" + pack(body)
    zstd = _zstd()
    return b"d" + bytes(zstd.compress(body, zstd_dict=zstd.ZstdDict(text, is_raw=True)))


def _unpacked(kept: bytes | None, call: Call | None) -> bytes | None:
    if kept is None:
        return None
    if kept[:1] == b"r":
        return unpack(kept[1:])
    if call is None or call.request is None:
        raise ValueError("its call is gone")
    text = dumps(call.request)
    if kept == b"=":
        return text
    zstd = _zstd()
    return bytes(zstd.decompress(kept[1:], zstd_dict=zstd.ZstdDict(text, is_raw=True)))


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def purge(conn: sqlite3.Connection, trace: str | None, before: str | None) -> int:
    """Delete calls, exchanges, outcomes and the blocks that no other call holds; then rewrite the file without gaps."""
    conn.execute("PRAGMA secure_delete = ON")
    conn.execute("BEGIN IMMEDIATE")
    try:
        chosen = "(:trace IS NULL OR trace = :trace) AND (:before IS NULL OR started_at < :before)"
        names = {"trace": trace, "before": before}
        conn.execute("CREATE TEMP TABLE gone (key BLOB PRIMARY KEY)")
        conn.execute(f"INSERT INTO gone SELECT key FROM calls WHERE {chosen}", names)
        lone = "call IS NULL AND :trace IS NULL AND (:before IS NULL OR started_at < :before)"
        count = conn.execute(f"DELETE FROM exchanges WHERE call IN gone OR ({lone})", names).rowcount
        conn.execute("DELETE FROM outcomes WHERE call IN gone")
        count = max(count, conn.execute("DELETE FROM calls WHERE key IN gone").rowcount)
        _drop_blocks(conn)
        if trace is None and before is None:
            conn.execute("UPDATE settings SET value = randomblob(16) WHERE name = 'salt'")
        conn.execute("DROP TABLE gone")
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
    conn.execute("VACUUM")
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return count


def _drop_blocks(conn: sqlite3.Connection) -> None:
    """Delete blocks that no call refers to."""
    conn.execute("CREATE TEMP TABLE held (digest BLOB PRIMARY KEY)")
    for (packed,) in conn.execute("SELECT blocks FROM calls WHERE blocks IS NOT NULL").fetchall():
        names = [(packed[at : at + DIGEST_BYTES],) for at in range(0, len(packed), DIGEST_BYTES)]
        conn.executemany("INSERT OR IGNORE INTO held VALUES (?)", names)
    conn.execute("DELETE FROM blocks WHERE digest NOT IN held")
    conn.execute("DROP TABLE held")
