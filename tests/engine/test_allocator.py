"""PyTorch's caching allocator: its rules by hand, a naive one beside it, and what must hold for any sequence."""

from bisect import insort
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.allocator import Allocator, AllocatorSettings, OutOfMemoryError
from sim.engine.replay import replay
from sim.specs import InputError

KIB, MIB = 2**10, 2**20


def after(*requests, **settings):
    """Return the allocator after requests of these sizes, named 0, 1, ..."""
    made = Allocator(AllocatorSettings(**settings))
    for name, size in enumerate(requests):
        made.malloc(name, size)
    return made


@pytest.mark.parametrize(
    ("request_bytes", "allocated", "reserved"),
    [
        (0, 0, 0),
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
        (25 * MIB, 26 * MIB, 26 * MIB),
        (64 * MIB, 64 * MIB, 64 * MIB),
    ],
)
def test_one_request(request_bytes, allocated, reserved):
    """A rest of up to 1 MiB of a large block is handed out with it: allocated counts whole blocks."""
    made = after(request_bytes)
    assert (made.allocated, made.reserved, made.requested) == (allocated, reserved, request_bytes)


def test_pools_never_mix():
    made = after(12 * MIB, 512)
    made.free(0)
    made.malloc(2, 512)
    assert made.reserved == 14 * MIB and [s.small for s in made.segments()] == [False, True]


def test_streams_never_mix():
    made = after(12 * MIB)
    made.free(0)
    made.malloc(1, 12 * MIB, stream=1)
    assert made.reserved == 24 * MIB


def test_the_smallest_block_that_fits_and_the_lowest_of_equal_ones():
    made = after(30 * MIB, 14 * MIB, 14 * MIB)
    places = [made.live[n].address for n in range(3)]
    for name in range(3):
        made.free(name)
    for name in (3, 4, 5):
        made.malloc(name, 13 * MIB)
    assert [made.live[n].address for n in (3, 4, 5)] == [places[1], places[2], places[0]]


def test_neighbours_merge_and_serve_a_larger_request():
    made = after(4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB)
    made.free(1)
    made.free(3)
    assert [live for _, _, live in made.segments()[0].blocks] == [True, False, True, False]
    made.free(2)
    made.malloc(4, 9 * MIB)
    assert made.reserved == 20 * MIB and made.live[4].address == made.live[0].address + 4 * MIB
    made.free(0)
    made.free(4)
    assert made.segments()[0].blocks == ((0, 20 * MIB, False),)


def test_memory_that_another_stream_still_uses_does_not_serve():
    made = after(12 * MIB)
    made.request_free(0)
    assert made.allocated == 0
    made.malloc(1, 12 * MIB)
    assert made.reserved == 24 * MIB
    made.complete_free(0)
    made.malloc(2, 12 * MIB)
    assert made.reserved == 24 * MIB


def test_cached_segments_are_released_when_memory_runs_out():
    made = after(12 * MIB, 30 * MIB, capacity_bytes=60 * MIB)
    made.free(0)
    made.malloc(2, 30 * MIB)
    assert (made.reserved, made.retries) == (60 * MIB, 1)
    with pytest.raises(OutOfMemoryError, match="1048577 bytes requested, 62914560 reserved of 62914560"):
        made.malloc(3, MIB + 1)


def test_a_replay_stops_where_memory_runs_out():
    events = [("alloc", 0, 12 * MIB, 0), ("alloc", 1, 30 * MIB, 0), ("alloc", 2, 1, 0)]
    found = replay(events, AllocatorSettings(capacity_bytes=20 * MIB))
    assert (found.failed_at, found.reserved_peak_bytes, found.retries) == (1, 12 * MIB, 1)


def test_rounding_to_parts_of_a_power_of_two():
    """PyTorch's own example: 1200 with 4 divisions is 1280 (of KiB here: it applies above 512 bytes a division)."""
    made = Allocator(AllocatorSettings(round_divisions=4))
    assert [made.rounded(n * KIB) for n in (1024, 1200, 1281, 2000)] == [n * KIB for n in (1024, 1280, 1536, 2048)]
    assert made.rounded(1025) == 1536


def test_large_blocks_are_not_split_above_a_limit():
    made = after(100 * MIB, max_split_bytes=50 * MIB)
    made.free(0)
    made.malloc(1, 12 * MIB)  # does not break up the large one
    assert made.reserved == 112 * MIB
    made.malloc(2, 85 * MIB)  # within 20 MiB of it: takes it whole
    assert (made.reserved, made.allocated) == (112 * MIB, 112 * MIB)
    made.free(2)
    made.malloc(3, 60 * MIB)
    assert made.reserved == 172 * MIB


def test_blocks_above_the_limit_are_released_first():
    made = after(100 * MIB, 12 * MIB, max_split_bytes=50 * MIB, capacity_bytes=120 * MIB)
    made.free(0)
    made.free(1)
    made.malloc(2, 60 * MIB)
    assert (made.reserved, made.retries) == (72 * MIB, 0)  # the small one stays cached


def test_parts_of_a_segment_that_expands_are_not_released_for_being_large():
    own = {"expandable_segments": True, "max_split_bytes": 25 * MIB, "capacity_bytes": 300 * MIB}
    made = after(60 * MIB + 512, 70 * MIB, 10 * MIB, **own)
    made.free(1)
    made.malloc(3, 180 * MIB)
    assert made.reserved == sum(segment.size for segment in made.segments()) == 300 * MIB


def test_segments_that_expand_grow_by_pages():
    made = after(30 * MIB, 5 * MIB, 3 * KIB, expandable_segments=True)
    assert (made.allocated, made.reserved) == (35 * MIB + 3 * KIB, 42 * MIB)
    made.malloc(3, 10 * MIB)
    assert made.reserved == 62 * MIB and len(made.segments()) == 2
    made.free(0)
    made.malloc(4, 28 * MIB)
    assert made.reserved == 62 * MIB
    for name in (1, 2, 3):
        made.free(name)
    made.release_cached()
    assert made.reserved == 40 * MIB  # the pages under the 28 MiB that live
    made.free(4)
    made.release_cached()
    assert made.reserved == 0 and made.segments() == []


def test_pages_that_were_given_back_are_mapped_again_where_they_were():
    made = after(40 * MIB, 40 * MIB, expandable_segments=True, capacity_bytes=90 * MIB)
    first = made.live[0].address
    made.free(0)
    made.release_cached()
    assert made.reserved == 40 * MIB and [s.size for s in made.segments()] == [40 * MIB]
    made.malloc(2, 30 * MIB)
    assert made.live[2].address == first and made.reserved == 80 * MIB
    with pytest.raises(OutOfMemoryError):
        made.malloc(3, 40 * MIB)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (("free", 7, 0, 0), r"events[1].id: got 7; allowed: a live allocation"),
        (("free_completed", 0, 0, 0), r"events[1].id: got 0; allowed: an allocation whose free was requested"),
        (("alloc", 0, 1, 0), r"events[1].id: got 0; allowed: an allocation that is not live"),
        (("alloc", 1, -1, 0), r"events[1].bytes: got -1; allowed: a whole number >= 0"),
        (("alloc", 1, 0.5, 0), r"events[1].bytes: got 0.5; allowed: a whole number >= 0"),
        (
            ("jump", 0, 0, 0),
            "events[1].action: got 'jump'; allowed: one of alloc, free, free_requested, free_completed, release",
        ),
    ],
)
def test_events_that_cannot_be(event, message):
    with pytest.raises(InputError) as caught:
        replay([("alloc", 0, 1, 0), event])
    assert str(caught.value) == message


def test_settings_are_checked():
    with pytest.raises(InputError, match="round_divisions: got 3; allowed: 0 or a power of two"):
        AllocatorSettings(round_divisions=3)
    with pytest.raises(InputError, match="max_split_bytes: got 12582912; allowed: at least large_segment_bytes"):
        AllocatorSettings(max_split_bytes=12 * MIB)
    with pytest.raises(InputError, match="large_segment_bytes"):
        AllocatorSettings(large_segment_bytes=10 * MIB)


class Naive:
    """The documented rules over plain lists: no pools of free blocks, no links, every search looks at everything."""

    def __init__(self):
        self.segments, self.top, self.where = [], 0, {}

    def malloc(self, name, request, stream):
        size = max(512, -(-request // 512) * 512)
        small = size <= MIB
        fits = [
            (block["size"], segment["at"] + sum(b["size"] for b in segment["blocks"][:i]), n, i)
            for n, segment in enumerate(self.segments)
            if segment["stream"] == stream and segment["small"] == small
            for i, block in enumerate(segment["blocks"])
            if not block["live"] and block["size"] >= size
        ]
        if fits:
            _, _, n, i = min(fits)
        else:
            whole = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            block = {"size": whole, "live": False}
            self.segments.append({"at": self.top, "stream": stream, "small": small, "blocks": [block]})
            self.top, n, i = self.top + whole, len(self.segments) - 1, 0
        blocks = self.segments[n]["blocks"]
        rest = blocks[i]["size"] - size
        if rest >= 512 if small else rest > MIB:
            blocks[i : i + 1] = [{"size": size, "live": False}, {"size": rest, "live": False}]
        blocks[i]["live"] = True
        self.where[name] = blocks[i]

    def free(self, name):
        self.where.pop(name)["live"] = False
        for segment in self.segments:
            merged = []
            for block in segment["blocks"]:
                if merged and not block["live"] and not merged[-1]["live"]:
                    merged[-1]["size"] += block["size"]
                else:
                    merged.append(block)
            segment["blocks"] = merged

    @property
    def levels(self):
        blocks = [b for s in self.segments for b in s["blocks"]]
        return sum(b["size"] for b in blocks if b["live"]), sum(b["size"] for b in blocks)


SIZES = st.one_of(st.integers(0, 3 * KIB), st.integers(0, 3 * MIB), st.integers(8 * MIB, 45 * MIB))
STEPS = st.lists(st.one_of(st.tuples(SIZES, st.integers(0, 1)), st.integers(0, 30)), max_size=60)


def sequence(steps):
    """Return events: sizes with a stream are allocated, a number picks a live allocation to free."""
    live, events = [], []
    for name, step in enumerate(steps):
        if isinstance(step, tuple):
            insort(live, name)
            events.append(("alloc", name, *step))
        elif live:
            events.append(("free", live.pop(step % len(live)), 0, 0))
    return events, live


@given(STEPS)
def test_a_naive_allocator_says_the_same(steps):
    events, _ = sequence(steps)
    naive, levels = Naive(), []
    for action, name, size, stream in events:
        if size or action == "free":
            if action == "alloc":
                naive.malloc(name, size, stream)
            elif name in naive.where:
                naive.free(name)
        levels.append(naive.levels)
    found = replay(events)
    assert list(zip(found.allocated.tolist(), found.reserved.tolist(), strict=True)) == levels


@given(STEPS, st.booleans(), st.sampled_from([0, 2, 8]))
def test_what_holds_for_any_sequence(steps, expandable, divisions):
    events, live = sequence(steps)
    settings = AllocatorSettings(expandable_segments=expandable, round_divisions=divisions)
    made = Allocator(settings)
    for action, name, size, stream in events:
        made.malloc(name, size, stream) if action == "alloc" else made.free(name)
        segments = made.segments()
        assert made.reserved == sum(s.size for s in segments) >= made.allocated >= made.requested
        assert made.allocated == sum(size for s in segments for _, size, used in s.blocks if used)
        assert all(s.size % (2 * MIB) == 0 for s in segments)
        for s in segments:  # blocks lie end to end, and no two free ones side by side
            assert all(a + n == b for (a, n, _), (b, _, _) in pairwise(s.blocks))
            assert all(one or other for (_, _, one), (_, _, other) in pairwise(s.blocks))
        places = sorted((b.address, b.size) for b in made.live.values() if b)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(places))
    again = replay(events, settings)
    assert again.segments == tuple(made.segments())
    assert again.reserved_peak_bytes >= again.allocated_peak_bytes >= again.requested_peak_bytes
    for name in live:
        made.free(name)
    assert made.allocated == made.requested == 0
    assert all(len(s.blocks) == 1 for s in made.segments())
    made.release_cached()
    assert made.reserved == 0 and made.segments() == []


@given(st.lists(SIZES, max_size=40))
def test_expandable_segments_reserve_the_pages_that_are_needed(sizes):
    made = after(*sizes, expandable_segments=True)
    blocks = [max(512, -(-n // 512) * 512) for n in sizes if n]
    small, large = (sum(n for n in blocks if (n <= MIB) == kind) for kind in (True, False))
    assert made.allocated == small + large
    assert made.reserved == -(-small // (2 * MIB)) * 2 * MIB + -(-large // (20 * MIB)) * 20 * MIB


@given(STEPS, st.integers(10, 120))
def test_capacity_is_never_exceeded_and_a_failure_changes_nothing_live(steps, mib):
    events, _ = sequence(steps)
    found = replay(events, AllocatorSettings(capacity_bytes=mib * MIB))
    assert found.reserved_peak_bytes <= mib * MIB
    if found.failed_at is not None:
        assert len(found.reserved) == found.failed_at
        live = sum(size for s in found.segments for _, size, used in s.blocks if used)
        assert live == (found.allocated[-1] if found.failed_at else 0)


def test_peaks_and_fragmentation():
    events = [("alloc", 0, 12 * MIB, 0), ("free", 0, 0, 0), ("alloc", 1, 24 * MIB, 0), ("free", 1, 0, 0)]
    found = replay(events)
    assert found.reserved_over_allocated == 36 / 24
    assert found.fragmentation == pytest.approx(1 / 3)
    assert replay([]).fragmentation == 0 and replay([]).reserved_over_allocated == 1
