"""Records are held up to a number of bytes, the least recently used let go first."""

from __future__ import annotations

import numpy as np

from rlep.services.pool.cache import RecordCache
from rlep.services.pool.storage.codec import Sections
from rlep.services.pool.storage.draw import Drawn


def record(size: int) -> Sections:
    """One that counts for ``size`` bytes, of which 400 are Python's."""
    return Sections(1, bytes(4), np.dtype("<f2"), bytes(2), True, bytes(size - 406))


def key(number: int) -> tuple[int, bytes]:
    return 1, bytes([number])


def held(cache: RecordCache, count: int) -> list[int]:
    """Which of the keys 0 … count − 1 are held, without using them."""
    return [number for number in range(count) if key(number) in cache._held]


def test_the_least_recently_used_go_first() -> None:
    cache = RecordCache(3000)
    cache.keep([key(0), key(1), key(2)], [record(1000)] * 3)
    assert cache.bytes == 3000
    assert [found is not None for found in cache.find([key(0), key(9)])] == [True, False]
    cache.keep([key(3)], [record(500)])
    assert (held(cache, 4), cache.bytes) == ([0, 2, 3], 2500)
    cache.keep([key(4)], [record(1500)])
    assert (held(cache, 5), cache.bytes) == ([0, 3, 4], 3000)


def test_what_is_larger_than_all_room_is_not_held() -> None:
    cache = RecordCache(1000)
    cache.keep([key(0), key(1)], [record(1000), record(1001)])
    assert (held(cache, 2), cache.bytes) == ([0], 1000)
    nothing = RecordCache(0)
    nothing.keep([key(0)], [record(406)])
    assert (held(nothing, 1), nothing.bytes) == ([], 0)


def test_a_record_kept_twice_counts_once() -> None:
    cache = RecordCache(3000)
    cache.keep([key(0), key(0)], [record(1000)] * 2)
    assert cache.bytes == 1000


def test_what_is_unpacked_takes_the_place_of_what_was_stored() -> None:
    cache = RecordCache(3000)
    cache.keep([key(0), key(1)], [bytes(100), bytes(200)])
    assert cache.bytes == 500 + 600
    cache.keep([key(0)], [record(1000)])
    assert (held(cache, 2), cache.bytes) == ([0, 1], 1000 + 600)
    cache.keep([key(0)], [record(3001)])
    assert (held(cache, 2), cache.bytes) == ([1], 600)


def test_another_edition_is_another_record() -> None:
    cache = RecordCache(3000)
    cache.keep([(1, b"id"), (2, b"id")], [record(1000), record(900)])
    assert [
        isinstance(found, Sections) and len(found.details) for found in cache.find([(1, b"id"), (2, b"id"), (3, b"id")])
    ] == [
        594,
        494,
        False,
    ]


def test_a_draw_is_divided_by_prompts_and_by_records() -> None:
    counts = [2, 0, 3, 1, 0, 9, 1]
    held = [b"".join(bytes([p, k]) * 8 for k in range(10)) for p in range(7)]  # ten records each, the last ones picked
    picks = np.array([9 - k for count in counts for k in range(count)])
    drawn = Drawn([f"q{p}" for p in range(7)], np.array(counts, np.int32), picks, held, list(range(7)))

    def divided(prompts: int, records: int) -> list[list[int]]:
        parts = list(drawn.parts(prompts=prompts, records=records))
        assert [list(part.prompt_ids) for part in parts] == [[f"q{p}" for p in part.editions] for part in parts]
        assert [ids for part in parts for ids in part.ids()] == [
            [bytes([p, 9 - k]) * 8 for k in range(count)] for p, count in enumerate(counts)
        ]
        assert [part.counts.tolist() for part in parts] == [[counts[p] for p in part.editions] for part in parts]
        return [part.editions for part in parts]

    assert divided(3, 100) == [[0, 1, 2], [3, 4, 5], [6]]
    assert divided(100, 5) == [[0, 1, 2], [3, 4], [5], [6]]  # one prompt's 9 stay together
    assert divided(7, 16) == [[0, 1, 2, 3, 4, 5, 6]]
    nothing = Drawn([], np.zeros(0, np.int32), np.zeros(0, np.int64), [], [])
    assert list(nothing.parts(prompts=3, records=3)) == []
