"""Heads of HTTP/1.1 messages: everything but hop-by-hop fields passes on as it came, in its order and case.

Hop-by-hop fields: RFC 9110, section 7.6.1. `Proxy-Authorization` is passed on (RFC 9110, 11.7.2): this is a reverse
proxy, such a field is meant for somebody behind it.
"""

from typing import TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]

_KEPT = frozenset((b"host", b"content-length", b"transfer-encoding"))
"""Nobody may take these away from a message."""

HEAD_BYTES = 2**20
"""A head that is longer is none: without a bound it would fill the memory. Clients send some kilobytes."""

_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"))


def value_of(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a field, by its lower-case name."""
    for key, value in headers:
        if len(key) == len(name) and key.lower() == name:
            return value
    return None


def is_chunked(headers: Headers) -> bool:
    """Whether the body comes in chunks, whose borders are the hop's own."""
    return any(name.lower() == b"transfer-encoding" and b"chunked" in value.lower() for name, value in headers)


def passed_on(headers: Headers) -> Headers:
    """The fields to forward: without hop-by-hop ones and those that `Connection` names."""
    drop = _HOP
    for name, value in headers:
        if len(name) == len(b"connection") and name.lower() == b"connection":
            drop |= {token.strip().lower() for token in value.split(b",")} - _KEPT
    return [each for each in headers if each[0].lower() not in drop]


def request_head(method: bytes, path: bytes, authority: bytes, headers: Headers) -> bytes:
    """The head to send upstream: the client's, with the upstream's name in `Host`."""
    lines = [method + b" " + path + b" HTTP/1.1"]
    named = False
    for name, value in passed_on(headers):
        if name.lower() == b"host":
            if named:
                continue
            named, value = True, authority
        lines.append(name + b": " + value)
    if not named:
        lines.append(b"Host: " + authority)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def response_head(status: int, reason: bytes, headers: Headers, *, close: bool, dechunk: bool) -> bytes:
    """The head to send to the client. `dechunk`: it speaks HTTP/1.0, so the body ends with the connection."""
    lines = [b"HTTP/1.1 %d " % status + reason]
    for name, value in passed_on(headers):
        if not (dechunk and name.lower() == b"transfer-encoding"):
            lines.append(name + b": " + value)
    if close:
        lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def chunk(piece: bytes) -> bytes:
    """A piece of a body as one chunk."""
    return b"%x\r\n" % len(piece) + piece + b"\r\n"


LAST_CHUNK = b"0\r\n\r\n"
