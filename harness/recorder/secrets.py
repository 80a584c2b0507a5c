"""What must never be kept, and how it is masked: credentials in header fields, in queries, and their copies in bodies.

A masked value becomes `[masked:FINGERPRINT]`. The fingerprint is 8 bytes of a keyed digest whose key is the database's
own salt: the same credential gives the same one in that database and nowhere else, and none leads back.
"""

import re
from binascii import Error, a2b_base64
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import product
from urllib.parse import quote_from_bytes, unquote_to_bytes

Headers = list[tuple[bytes, bytes]]

_SECRET_FIELD = re.compile(
    rb"(^|[-_])(authorization|cookie|token|secret|api-?key|password|credentials?|signature|session-key|assertion)$",
    re.I,
)
# Gateways have names of their own (helicone-auth, ocp-apim-subscription-key), and some keys are no secrets.
_PERHAPS = re.compile(rb"(?<!idempotency)(?<!cache)(?<!websocket)(?<!routing)[-_](auth|key)$", re.I)
_AUTH = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
_QUERY = (
    rb"(?:x-(?:amz|goog)-)?"
    rb"(?:key|api[-_]?key|(?:[a-z]+_)?token|secret|password|sig|signature|credential|security-token)"
)
# Without a flag in front the search for ? and & is a fast one. JSON of Go and .NET writes & as \u0026.
_IN_QUERY, _IN_ESCAPED = (
    re.compile(rb"(" + start + rb"(?i:" + _QUERY + rb")=)([^&\s\"'<>\\#]+)") for start in (rb"[?&]", rb"\\u0026")
)
# A copy of a header in JSON, also inside a text of JSON, where its quotes are escaped; and what APIs call credentials.
_MEMBER_NAMES = (b"authorization", b"api-key", b"api_key", b"apikey", b"cookie")
_MEMBER = re.compile(
    rb"((?:proxy-)?authorization(?:_token)?|(?:x-|x-goog-)?api[-_]?key|(?:set-)?cookie)"
    rb"(\\*\"\s*:\s*\\*\")((?:[^\"\\]|\\[^\"])*)",
    re.I,
)
_PREFIX = len(b"x-goog-")
# What .NET escapes in JSON, and with it what others do.
_ESCAPED = (re.compile(rb"[+&<>'`\"]"), re.compile(rb"[+&<>'`\"=/]"))
_SCHEME = re.compile(rb"^(bearer|basic|token|digest)\s+", re.I)
# Short-lived tokens change while the account stays the same: their fingerprint would accuse the account of changing.
_ROTATING = (b"sk-ant-oat", b"eyJ", b"ya29.")

SHORTEST = 8
"""Values shorter than this are placeholders ("x", "none"): looking for copies of them would mask innocent text."""

SURE = 16
"""Length from which a field that may hold a credential is taken to hold one."""

KNOWN_FORMS = 32
KNOWN_FIELDS = 1024


class Masker:
    """Masks with one salt; remembers the latest credentials, in memory only, to find their copies anywhere.

    `learn` and `headers` are for one thread at a time. The rest is for any: `known` is replaced, never changed.
    """

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self.known: Mapping[bytes, bytes] = {}
        self._seen: dict[tuple[bytes, bytes], list[str]] = {}  # clients repeat nearly all of their header fields
        self._latest: tuple[Headers, str | None] = ([], None)  # and send one key with each request

    def fingerprint(self, value: bytes) -> str:
        """16 hex digits for a value; not reversible, equal for equal values under one salt."""
        return blake2b(value, digest_size=8, key=self._salt).hexdigest()

    def digest(self, body: bytes) -> str:
        """What identifies a body: 32 hex digits, keyed, so that a short body cannot be guessed from them."""
        return blake2b(body, digest_size=16, key=self._salt).hexdigest()

    def learn(self, headers: Headers, path: bytes) -> str | None:
        """Take note of a request's credentials; returns the fingerprint of its key, `None` for none that lasts."""
        fields = [each for each in headers if _is_secret(each[0])]
        if fields and fields == self._latest[0] and b"=" not in path:
            return self._latest[1]
        found = {name.lower(): _SCHEME.sub(b"", value) for name, value in fields}
        in_query = [match[2] for match in _IN_QUERY.finditer(path)] if b"=" in path else []
        self._remember([*(one for name, value in found.items() for one in _parts(name, value)), *in_query])
        key = next((found[name] for name in _AUTH if name in found), in_query[0] if in_query else None)
        mark = None if key is None or key.startswith(_ROTATING) else self.fingerprint(key)
        self._latest = ([] if in_query else fields, mark)
        return mark

    def _remember(self, secrets: Iterable[bytes]) -> None:
        known = dict(self.known)
        for secret in secrets:
            mask = known.get(secret) or self._mask(secret)
            for form in _forms(secret):
                known.pop(form, None)
                known[form] = mask
        for oldest in list(known)[: max(0, len(known) - KNOWN_FORMS)]:
            del known[oldest]
        if known.keys() != self.known.keys():
            self._seen.clear()
        self.known = known

    def _mask(self, value: bytes) -> bytes:
        return b"[masked:%s]" % self.fingerprint(value).encode()

    def headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[list[str]]:
        """Header fields as text, in order and case, credentials masked."""
        if len(self._seen) > KNOWN_FIELDS:
            self._seen.clear()
        return [self._seen.get(each) or self._masked_field(each) for each in headers]

    def _masked_field(self, each: tuple[bytes, bytes]) -> list[str]:
        name, value = each
        self._seen[each] = masked = [_text(name), _text(self._field(name, value))]
        return masked

    def _field(self, name: bytes, value: bytes) -> bytes:
        if _is_secret(name):
            scheme = _SCHEME.match(value)
            return (scheme[0] if scheme else b"") + self._mask(_SCHEME.sub(b"", value))
        return self.text(value)

    def body(self, data: bytes, known: Mapping[bytes, bytes] | None = None) -> bytes:
        """A body without copies of known credentials and of credential headers. Conversation text stays as it is.

        `known`: what was known at another time, for calls that outlast it (default: now).
        """
        for secret, mask in (self.known if known is None else known).items():
            if secret in data:
                data = data.replace(secret, mask)
        low = data.lower()
        places = sorted(at for name in _MEMBER_NAMES for at in _places(low, name))
        return self._without_members(data, places) if places else data

    def _without_members(self, data: bytes, places: list[int]) -> bytes:
        """`places` are those of names: one expression over all would take a tenth of a second for a megabyte."""
        parts, done = [], 0
        for at in places:
            quote = data.rfind(b'"', max(done, at - _PREFIX - 1), at)
            match = _MEMBER.match(data, quote + 1) if quote >= 0 else None
            if match is not None:
                parts += [data[done : match.start(3)], self._mask(match[3])]
                done = match.end(3)
        return b"".join((*parts, data[done:]))

    def text(self, data: bytes, known: Mapping[bytes, bytes] | None = None) -> bytes:
        """The same for texts that nobody asked to keep word for word (paths, errors): queries are masked too."""
        data = self.body(data, known)
        for start, pattern in ((b"=", _IN_QUERY), (b"\\u0026", _IN_ESCAPED)):
            if start in data:
                data = pattern.sub(lambda match: match[1] + self._mask(match[2]), data)
        return data

    def held_back(self, data: bytes, known: Mapping[bytes, bytes] | None = None) -> int:
        """Bytes at the end of `data` that may be the beginning of a known credential."""
        return max((_overlap(data, secret) for secret in (self.known if known is None else known)), default=0)


@lru_cache(maxsize=1024)
def _is_secret(name: bytes) -> bool:
    """Whether a header field of this name holds a credential."""
    return _SECRET_FIELD.search(name) is not None or _PERHAPS.search(name) is not None


def _parts(name: bytes, value: bytes) -> Iterator[bytes]:
    """The credentials that a field's value (without its scheme) is or holds: pairs of a cookie, what Basic packs."""
    pieces = [value]
    if name.endswith(b"cookie"):
        pieces += re.split(rb"[;=]\s*", value)
    elif name.endswith(b"authorization"):
        try:
            user, colon, password = a2b_base64(value).partition(b":")
        except (Error, ValueError):
            colon = password = b""
        pieces += [user + colon + password, password] if colon else []
    shortest = SHORTEST if _SECRET_FIELD.search(name) else SURE
    return (piece for piece in pieces if len(piece) >= shortest)


def _forms(secret: bytes) -> set[bytes]:
    """How a text may write a credential: raw, in a URL, in JSON that escapes more than it must."""
    forms = {secret, unquote_to_bytes(secret), quote_from_bytes(secret, safe="").encode()}
    for plain in tuple(forms):
        forms.add(plain.replace(b"/", b"\\/"))
        for escaped, digits in product(_ESCAPED, (rb"\u%04x", rb"\u%04X")):
            forms.add(escaped.sub(lambda match, digits=digits: digits % match[0][0], plain))  # type: ignore[misc]
    return {form for form in forms if len(form) >= SHORTEST}


def _places(data: bytes, name: bytes) -> Iterator[int]:
    at = data.find(name)
    while at >= 0:
        yield at
        at = data.find(name, at + len(name))


def _overlap(data: bytes, secret: bytes) -> int:
    """Length of the longest end of `data` that begins `secret`, less than all of it."""
    start = max(0, len(data) - len(secret) + 1)
    while (start := data.find(secret[:1], start)) >= 0:
        if secret.startswith(data[start:]):
            return len(data) - start
        start += 1
    return 0


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
