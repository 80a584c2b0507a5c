"""Host and disk tier: what comes back, what is refused and why, bounds, restart, collisions."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from slabs import ROOT, Engine

from localmodel.engine.cache.disk import DiskTier
from localmodel.engine.cache.identity import PAGE_TOKENS, Chain, PageKey, Root, Tokens, blake2b_256, layout_id
from localmodel.engine.cache.tiers import (
    HEADER_BYTES,
    HostTier,
    PageBytes,
    Payload,
    Refusal,
    pack_header,
    unpack_page,
)

PAYLOAD = bytes(range(256))
FILE_BYTES = HEADER_BYTES + len(PAYLOAD)


def key(tokens: Tokens = tuple(range(16)), root: Root = ROOT) -> PageKey:
    chain = Chain(root)
    return chain.key(chain.top, tokens)


def keys(n: int) -> list[PageKey]:
    return [key((i,) * PAGE_TOKENS) for i in range(n)]


def reason(found: Payload | Refusal | None) -> str:
    assert isinstance(found, Refusal)
    return found.reason


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.fixture(params=["host", "disk", "host over disk"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> PageBytes:
    if request.param == "host":
        return HostTier(10**6)
    disk = DiskTier(tmp_path / "pages", 10**6)
    return disk if request.param == "disk" else HostTier(0, disk)


def test_a_tier_gives_back_what_it_took(tier: PageBytes) -> None:
    assert key() not in tier and tier.get(key()) is None
    assert tier.put(key(), PAYLOAD) is None
    assert tier.put(key(), PAYLOAD) is None
    for _ in range(2):  # reading removes nothing
        found = tier.get(key())
        assert not isinstance(found, Refusal) and found is not None and bytes(found) == PAYLOAD
    assert key() in tier


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("layout", layout_id("another"), "layout"),
        ("root", bytes(32), "root"),
        ("parent", bytes(32), "parent"),
        ("tokens", (*range(15), 99), "tokens"),
        ("check", bytes(16), "prefix"),
    ],
)
def test_another_page_of_the_same_identity_is_refused_and_replaced(
    tier: PageBytes, field: str, value: object, word: str
) -> None:
    changes: dict[str, object] = {field: value}
    wanted = replace(key(), **changes)  # type: ignore[arg-type]
    tier.put(key(), PAYLOAD)
    assert reason(tier.get(wanted)) == word
    kept = tier.get(key())  # the refusal removed nothing
    assert kept is not None and not isinstance(kept, Refusal)
    assert tier.put(wanted, PAYLOAD[::-1]) is None
    assert reason(tier.get(key())) == word


FIELDS = {
    "magic": (0, 8, "magic"),
    "version": (8, 10, "version"),
    "tokens of a page": (10, 12, "version"),
    "layout": (12, 28, "layout"),
    "root": (28, 60, "root"),
    "parent": (60, 92, "parent"),
    "check": (92, 108, "prefix"),
    "tokens": (108, 172, "tokens"),
    "length": (172, 180, "length"),
    "checksum": (180, 196, "checksum"),
    "filled": (196, 198, "magic"),
    "unused": (198, HEADER_BYTES, "magic"),
    "payload": (HEADER_BYTES, FILE_BYTES, "checksum"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_every_flipped_bit_is_refused_with_its_reason(field: str) -> None:
    start, end, word = FIELDS[field]
    whole = pack_header(key(), PAYLOAD) + PAYLOAD
    assert not isinstance(unpack_page(whole, key()), Refusal)
    for byte in sorted({start, (start + end) // 2, end - 1}):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[byte] ^= 1 << bit
            assert reason(unpack_page(bytes(flipped), key())) == word


def test_the_fields_cover_the_whole_file() -> None:
    spans = [span[:2] for span in FIELDS.values()]
    assert [end for _, end in spans] == [*(start for start, _ in spans[1:]), FILE_BYTES]


@pytest.mark.parametrize("size", [0, 1, 195, HEADER_BYTES - 1, HEADER_BYTES, FILE_BYTES - 1, FILE_BYTES + 1])
def test_a_file_of_another_length_is_refused(size: int) -> None:
    whole = pack_header(key(), PAYLOAD) + PAYLOAD + b"x"
    assert reason(unpack_page(whole[:size], key())) == "length"


@pytest.mark.parametrize("field", FIELDS)
def test_damage_on_disk_is_found_after_a_restart_and_heals(tmp_path: Path, field: str) -> None:
    DiskTier(tmp_path, 10**6).put(key(), PAYLOAD)
    path = only_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[FIELDS[field][0]] ^= 1
    path.write_bytes(data)
    tier = DiskTier(tmp_path, 10**6)
    found = tier.get(key())
    known = [*tier.refused_at_start, *([found] if isinstance(found, Refusal) else [])]
    assert [refusal.reason for refusal in known] == [FIELDS[field][2]]
    assert tier.put(key(), PAYLOAD) is None
    assert bytes(tier.get(key()) or b"") == PAYLOAD  # type: ignore[arg-type]
    assert tier.used_bytes == FILE_BYTES and len(tier) == 1


def test_damage_under_a_running_tier_is_refused_and_the_file_deleted(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 10**6)
    tier.put(key(), PAYLOAD)
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert reason(tier.get(key())) == "length"
    assert not path.exists() and tier.get(key()) is None and tier.used_bytes == 0
    tier.put(key(), PAYLOAD)
    only_file(tmp_path).unlink()
    assert reason(tier.get(key())) == "unreadable"


def test_the_folder_is_private_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "notes.page").write_text("mine")
    (folder / f"{'0' * 64}.page.7-0.tmp").write_text("an interrupted write")
    tier = DiskTier(folder, 10**6)
    assert [path.name for path in folder.iterdir()] == ["notes.page"] and len(tier) == 0
    fresh = tmp_path / "fresh"
    DiskTier(fresh, 1)
    assert fresh.stat().st_mode & 0o077 == 0


def test_the_disk_is_bounded_and_forgets_the_least_recently_used(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 3 * FILE_BYTES)
    a, b, c, d = keys(4)
    for i, one in enumerate((a, b, c)):
        tier.put(one, PAYLOAD)
        os.utime(tmp_path / f"{one.identity.hex()}.page", ns=(i, i))
    tier.get(a)
    again = DiskTier(tmp_path, 3 * FILE_BYTES)  # the order of use survives a restart
    again.put(d, PAYLOAD)
    assert [one in again for one in (a, b, c, d)] == [True, False, True, True]
    assert again.used_bytes == 3 * FILE_BYTES
    smaller = DiskTier(tmp_path, FILE_BYTES)
    assert len(smaller) == 1 and len(list(tmp_path.iterdir())) == 1
    assert reason(DiskTier(tmp_path, 10).put(a, PAYLOAD)) == "no_room"


def test_a_disk_that_cannot_be_written_is_a_refusal(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    tier = DiskTier(folder, 10**6)
    folder.rmdir()
    assert reason(tier.put(key(), PAYLOAD)) == "unreadable"
    assert tier.used_bytes == 0 and key() not in tier


def test_host_memory_is_bounded_and_spills(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, 10**6)
    host = HostTier(2 * len(PAYLOAD), disk)
    a, b, c = keys(3)
    host.put(a, PAYLOAD)
    host.put(b, PAYLOAD)
    host.get(a)
    host.put(c, PAYLOAD)
    assert host.used_bytes == 2 * len(PAYLOAD) and len(host) == 2 and b in disk and a not in disk
    assert all(one in host and not isinstance(host.get(one), Refusal) for one in (a, b, c))
    host.flush()
    assert all(one in disk for one in (a, b, c))
    assert reason(HostTier(10).put(a, PAYLOAD)) == "no_room"


def test_evicted_pages_come_back_and_count_as_reused(tmp_path: Path) -> None:
    engine = Engine(4, HostTier(10**6))
    prompt, other = list(range(50)), list(range(500, 564))
    assert engine.run(prompt) == (0, 0)
    assert engine.run(other) == (0, 0)
    assert engine.run(prompt) == (50, 50)  # the tail of two tokens too
    assert "restored" in {event.kind for event in engine.events}
    engine.run(other)
    with engine.cache.lease(ROOT, prompt[:32], limit=31) as lease:  # a restored page used in part
        assert (lease.matched, lease.restored) == (31, 31)
        assert [copy.tokens for copy in lease.reserve()] == [15]


@pytest.mark.parametrize("tail", [[4, 999], [4]])
def test_a_stored_page_that_reuses_more_replaces_a_tail_in_memory(tail: list[int]) -> None:
    """In the second case the tail is the start of the stored page."""
    tier = HostTier(10**6)
    engine, other, prompt = Engine(4, tier), Engine(4, tier), [*range(16), *range(4, 20)]
    engine.run([*prompt[:16], *tail])
    other.run(prompt)
    other.cache.flush()
    assert engine.cache.match(ROOT, prompt).tokens == 17
    assert engine.run(prompt) == (32, 16)
    assert engine.cache.match(ROOT, prompt).tokens == 32


def test_of_a_stored_page_the_tokens_that_agree_are_reused() -> None:
    engine, prompt = Engine(4, HostTier(10**6)), list(range(32))
    engine.run(prompt)
    engine.run(list(range(500, 564)))  # everything of the prompt is in the tier now
    assert engine.run([*prompt[:20], 999]) == (20, 20)
    engine.run(list(range(600, 664)))
    assert engine.run([*prompt[:20], 998, *range(11)]) == (20, 20)
    engine.run(list(range(500, 564)))
    assert engine.run(prompt) == (32, 32)


def test_a_tail_on_disk_gives_way_to_the_longer_page_that_begins_with_it(tmp_path: Path) -> None:
    engine = Engine(8, DiskTier(tmp_path, 10**6))
    for length in (20, 25, 32, 35):
        engine.run(list(range(length)))
        engine.cache.flush()
        assert len(list(tmp_path.iterdir())) == -(-length // 16)
    again = Engine(8, DiskTier(tmp_path, 10**6))
    assert again.run(list(range(40))) == (35, 35)


def test_pages_survive_a_restart_and_only_for_the_same_root(tmp_path: Path) -> None:
    prompt = list(range(100))
    engine = Engine(16, HostTier(10**6, DiskTier(tmp_path, 10**6)))
    engine.run(prompt)
    assert engine.cache.flush() == 7
    for changed in Root.__slots__:
        other = Engine(16, DiskTier(tmp_path, 10**6))
        assert other.run(prompt, replace(ROOT, **{changed: "other"})) == (0, 0)
    again = Engine(16, DiskTier(tmp_path, 10**6))
    assert again.run(prompt) == (100, 100)
    assert again.run(prompt) == (100, 0)


def test_a_restore_stops_at_the_first_page_that_is_refused(tmp_path: Path) -> None:
    prompt = list(range(64))
    engine = Engine(16, DiskTier(tmp_path, 10**6))
    engine.run(prompt)
    engine.cache.flush()
    chain = Chain(ROOT)
    second = chain.link(chain.link(chain.top, tuple(prompt[:16])), tuple(prompt[16:32]))
    path = tmp_path / f"{second.identity.hex()}.page"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    again = Engine(16, DiskTier(tmp_path, 10**6))
    assert again.run(prompt) == (16, 16)
    assert again.cache.refused == {"get:checksum": 1}


def test_a_restore_without_room_reports_what_it_restored() -> None:
    tier = HostTier(10**6)
    engine = Engine(4, tier)
    engine.run(list(range(64)))
    engine.run(list(range(500, 564)))
    with engine.cache.lease(ROOT, list(range(900, 932))) as busy:
        busy.reserve()
        with engine.cache.lease(ROOT, list(range(64))) as lease:
            assert lease.matched == lease.restored == 32 and len(lease.pages) == 2


def eight_bits(key: bytes, data: bytes) -> bytes:
    """A digest that collides all the time."""
    return blake2b_256(key, data)[:1].ljust(32, b"\0")


def test_identities_that_collide_never_join_two_prompts(tmp_path: Path) -> None:
    engine = Engine(8, HostTier(2000, DiskTier(tmp_path, 10**7)), eight_bits)
    same = [5] * 16
    for i in range(150):  # more prefixes than identities; `run` compares the KV of every reused page
        root = replace(ROOT, namespace=f"tenant {i % 3}")
        engine.run([*([i] * 16), *same, *same], root)
        engine.run([*([i // 2] * 16), *same, *same], root)
    assert engine.cache.refused.total() > 0


def test_equal_pages_after_prefixes_whose_identities_collide_are_not_shared() -> None:
    chain, same = Chain(ROOT, eight_bits), [5] * 16
    seen: dict[bytes, list[int]] = {}
    for i in range(300):
        first = [i] * 16
        twin = seen.setdefault(chain.link(chain.top, tuple(first)).identity, first)
        if twin is not first:
            break
    engine = Engine(8, HostTier(10**6), eight_bits)
    engine.run([*twin, *same])
    engine.cache.flush()
    engine.run(first)
    assert engine.run([*first, *same]) == (16, 0)
    assert engine.cache.refused == {"get:prefix": 1}  # the second page's twin


def test_namespaces_whose_identities_collide_share_nothing() -> None:
    seen: dict[bytes, Root] = {}
    for i in range(300):
        root = replace(ROOT, namespace=f"tenant {i}")
        twin = seen.setdefault(Chain(root, eight_bits).root, root)
        if twin is not root:
            break
    engine = Engine(8, HostTier(10**6), eight_bits)
    engine.run(list(range(48)), twin)
    engine.cache.flush()
    assert engine.run(list(range(48)), root) == (0, 0)
    assert engine.cache.refused == {"get:prefix": 1}


def test_identity_depends_on_all_32_bits_of_every_token_and_on_the_prefix() -> None:
    chain = Chain(ROOT)
    base = chain.link(chain.top, (0,) * 16)
    changed = [chain.link(chain.top, (*(0,) * i, 1 << bit, *(0,) * (15 - i))) for i in range(16) for bit in range(32)]
    assert len({base.identity, *(link.identity for link in changed)}) == 16 * 32 + 1
    assert chain.link(base, (0,) * 16).identity != base.identity
    assert len(base.identity) == 32
