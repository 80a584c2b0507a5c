"""Pages that outlive the process: saved as they come, healed, and dropped from the end of a prompt."""

from pathlib import Path

from slabs import Engine

from localmodel.engine.cache.disk import DiskTier
from localmodel.engine.cache.tiers import HEADER_BYTES, HostTier


def test_pages_are_saved_as_they_come_and_once(tmp_path: Path) -> None:
    """What a killed process leaves: everything that `save` had the time for, in the order in which it is of use."""
    disk = DiskTier(tmp_path, 10**6)
    engine = Engine(16, disk, lasting=True)
    prompt = list(range(100))
    engine.run(prompt)
    assert len(disk) == 0
    assert [engine.cache.save(3), len(disk), engine.cache.save(2), len(disk)] == [4, 3, 2, 5]
    assert Engine(16, DiskTier(tmp_path, 10**6)).run(prompt) == (80, 80)
    assert [engine.cache.save(9), engine.cache.save(9), len(disk)] == [0, 0, 7]
    reads = engine.reads
    assert (engine.cache.flush(), engine.reads) == (7, reads), "what is there is not read again"
    assert Engine(16, DiskTier(tmp_path, 10**6)).run(prompt) == (100, 100)


def test_a_page_evicted_before_it_was_saved_is_saved_then(tmp_path: Path) -> None:
    engine = Engine(4, HostTier(10**6, DiskTier(tmp_path, 10**6)), lasting=True)
    engine.run(list(range(64)))
    engine.run(list(range(500, 564)))
    assert engine.cache.save(9) == 0
    for prompt in (list(range(64)), list(range(500, 564))):
        assert Engine(4, DiskTier(tmp_path, 10**6)).run(prompt) == (64, 64)


def test_the_disk_drops_ends_of_prompts_before_their_beginnings(tmp_path: Path) -> None:
    engine = Engine(16, DiskTier(tmp_path, 8 * (HEADER_BYTES + 400)), lasting=True)
    one, two = list(range(96)), list(range(500, 548))
    engine.run(one)
    engine.cache.save(99)
    engine.run(two)
    engine.run(two)
    engine.run(one[:33])  # in memory, but the disk is told
    engine.cache.save(99)
    again = Engine(16, DiskTier(tmp_path, 8 * (HEADER_BYTES + 400)))
    assert again.run(two) == (48, 48)
    reused, _ = again.run(one)
    assert 33 <= reused < 96 and reused % 16 == 0
