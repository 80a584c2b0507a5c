"""What must never be kept, and how it is masked: credentials in header fields, in queries, and their copies in bodies.

A masked value becomes `[masked:FINGERPRINT]`. The fingerprint is 8 bytes of a keyed digest whose key is the database's
own salt: the same credential gives the same one in that database and nowhere else, and none leads back.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

Headers = list[tuple[bytes, bytes]]

_SECRET_FIELD = re.compile(
    rb"(^|[-_])(authorization|cookie|token|secret|api-?key|apikey|password|credentials?|signature|session-key)$", re.I
)
_AUTH = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
_QUERY = (
    rb"(?:x-(?:amz|goog)-)?"
    rb"(?:key|api[-_]?key|(?:[a-z]+_)?token|secret|password|sig|signature|credential|security-token)"
)
_IN_QUERY = re.compile(rb"([?&]" + _QUERY + rb"=)([^&\s\"'<>\\#]+)", re.I)
# A copy of a header in JSON, also inside a text of JSON, where its quotes are escaped.
_MEMBER = re.compile(
    rb"(?<=\")((?:proxy-)?authorization|(?:x-|x-goog-)?api-key|(?:set-)?cookie)(\\*\"\s*:\s*\\*\")((?:[^\"\\]|\\[^\"])*)",
    re.I,
)
_SCHEME = re.compile(rb"^(bearer|basic|token|digest)\s+", re.I)
# Short-lived tokens change while the account stays the same: their fingerprint would accuse the account of changing.
_ROTATING = (b"sk-ant-oat", b"eyJ", b"ya29.")

SHORTEST = 8
"""Values shorter than this are placeholders ("x", "none"): looking for copies of them would mask innocent text."""

KNOWN_SECRETS = 16
KNOWN_FIELDS = 1024


class Masker:
    """Masks with one salt; remembers the latest credentials, in memory only, to find their copies anywhere."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._known: dict[bytes, bytes] = {}
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
        for name, value in found.items():
            parts = re.split(rb"[;=]\s*", value) if name.endswith(b"cookie") else ()
            for secret in (value, *parts):
                self._remember(secret)
        for secret in in_query:
            self._remember(secret)
        key = next((found[name] for name in _AUTH if name in found), in_query[0] if in_query else None)
        mark = None if key is None or key.startswith(_ROTATING) else self.fingerprint(key)
        self._latest = ([] if in_query else fields, mark)
        return mark

    def _remember(self, secret: bytes) -> None:
        if len(secret) < SHORTEST:
            return
        if secret not in self._known:
            self._seen.clear()
        self._known[secret] = self._known.pop(secret, b"") or self._mask(secret)
        if len(self._known) > KNOWN_SECRETS:
            del self._known[next(iter(self._known))]

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

    def body(self, data: bytes) -> bytes:
        """A body without copies of known credentials and of credential headers. Conversation text stays as it is."""
        for secret, mask in self._known.items():
            if secret in data:
                data = data.replace(secret, mask)
        low = data.lower()
        if b"authorization" in low or b"api-key" in low or b"cookie" in low:
            data = _MEMBER.sub(lambda match: match[1] + match[2] + self._mask(match[3]), data)
        return data

    def text(self, data: bytes) -> bytes:
        """The same for texts that nobody asked to keep word for word (paths, errors): queries are masked too."""
        data = self.body(data)
        return _IN_QUERY.sub(lambda match: match[1] + self._mask(match[2]), data) if b"=" in data else data

    def held_back(self, data: bytes) -> int:
        """Bytes at the end of `data` that may be the beginning of a known credential."""
        return max((_overlap(data, secret) for secret in self._known), default=0)


@lru_cache(maxsize=1024)
def _is_secret(name: bytes) -> bool:
    """Whether a header field of this name holds a credential."""
    return _SECRET_FIELD.search(name) is not None


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
