"""Memory of a device by a fake one and by a snapshot written by hand; of this CPU by the profiler, to the byte."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from calibration import memory, snapshots
from calibration.memory import check_replay
from sim.costs.profile import load_profile
from sim.engine.allocator import Allocator, AllocatorSettings
from sim.engine.memory_trace import Entry, check, read_trace, write_trace
from sim.specs import InputError

KIB, MIB = 2**10, 2**20
CONTEXT, CUBLAS, RING = 500 * MIB, 32 * MIB, 300 * MIB
BASE = 0x7F3A_0000_0000


def entry(action, address, size, stream=0, **more):
    """Return an entry as `torch.cuda.memory._snapshot()` has it."""
    at = {} if action == "oom" else {"addr": BASE + address}
    return {"action": action, **at, "size": size, "stream": stream, "time_us": 1, "frames": [], **more}


SIDE = 94_000_000_000_000
"""A side stream is the address of a driver's object."""

HISTORY = [
    # Weights: 6 MiB from a 20 MiB segment; a bias from the small pool; a segment of its own, its rest not split off.
    entry("segment_alloc", 0x400_0000, 20 * MIB),
    entry("alloc", 0x400_0000, 6 * MIB),
    entry("segment_alloc", 0x200_0000, 2 * MIB),
    entry("alloc", 0x200_0000, 1000),
    entry("segment_alloc", 0x800_0000, 16 * MIB),
    entry("alloc", 0x800_0000, 15 * MIB),
    # A forward: 4 MiB of activations beside the weights; gathered on a side stream, freed there while it is in use.
    entry("alloc", 0x400_0000 + 6 * MIB, 4 * MIB - 100),
    entry("segment_alloc", 0xA00_0000, 20 * MIB, SIDE),
    entry("alloc", 0xA00_0000, 3 * MIB, SIDE),
    entry("free_requested", 0xA00_0000, 3 * MIB, SIDE),
    entry("alloc", 0xA00_0000 + 3 * MIB, 3 * MIB, SIDE),
    entry("free_completed", 0xA00_0000, 3 * MIB, SIDE),
    # A request that fails: what is cached and whole goes back first, then it is served.
    entry("free_requested", 0x800_0000, 15 * MIB),
    entry("free_completed", 0x800_0000, 15 * MIB),
    entry("segment_free", 0x800_0000, 16 * MIB),
    entry("segment_alloc", 0xC00_0000, 40 * MIB),
    entry("alloc", 0xC00_0000, 40 * MIB),
    entry("oom", 0, 2**33, device_free=5 * MIB),
    entry("snapshot", -BASE, 0),
]
RESERVED = (20 + 2 + 20 + 40) * MIB
ALLOCATED = 6 * MIB + KIB + 4 * MIB + 3 * MIB + 40 * MIB
SNAPSHOT = {
    "segments": [],
    "device_traces": [HISTORY],
    "allocator_settings": {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "roundup_power2_divisions": {"1": 0, "2": 0},
    },
}


def test_a_snapshot_is_replayed_to_the_byte_and_to_the_address(tmp_path):
    trace = snapshots.from_snapshot(SNAPSHOT, ALLOCATED, RESERVED)
    found = check_replay(trace)
    assert found.equal and found.misplaced == 0
    assert (found.replayed_allocated_bytes, found.replayed_reserved_bytes) == (ALLOCATED, RESERVED)
    write_trace(trace, tmp_path / "trace.jsonl")
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert json.loads(lines[2]) == {"action": "alloc", "addr": BASE + 0x400_0000, "size": 6 * MIB, "stream": 0}
    assert check(read_trace(tmp_path / "trace.jsonl")) == found


def test_a_wrong_peak_or_place_is_noticed():
    assert not check_replay(snapshots.from_snapshot(SNAPSHOT, ALLOCATED + 512, RESERVED)).equal
    moved = [e | {"addr": e["addr"] + 512} if e["action"] == "alloc" and e["size"] == 40 * MIB else e for e in HISTORY]
    assert check_replay(snapshots.from_snapshot({"device_traces": [moved]}, ALLOCATED, RESERVED)).misplaced == 1


def test_of_equal_blocks_the_one_at_the_lower_address_serves():
    """The device's second segment lies below its first: only with its addresses does the replay find the same place."""
    history = [
        entry("segment_alloc", 0x800_0000, 12 * MIB),
        entry("alloc", 0x800_0000, 12 * MIB),
        entry("segment_alloc", 0x400_0000, 12 * MIB),
        entry("alloc", 0x400_0000, 12 * MIB),
        *(
            entry(f"free_{part}", at, 12 * MIB)
            for at in (0x800_0000, 0x400_0000)
            for part in ("requested", "completed")
        ),
        entry("alloc", 0x400_0000, 12 * MIB),
    ]
    assert check_replay(snapshots.from_snapshot({"device_traces": [history]}, 24 * MIB, 24 * MIB)).misplaced == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device_traces": [[]]}, "device: got 0; allowed: a device with a recorded history"),
        ({"device_traces": []}, "device: got 0; allowed: a device with a recorded history"),
        ({"device_traces": [[entry("jump", 0, 0)]]}, "action: got 'jump'"),
        ({"allocator_settings": {"garbage_collection_threshold": 0.8}}, "garbage_collection_threshold: got 0.8"),
        ({"allocator_settings": {"roundup_power2_divisions": {"1": 2, "2": 4}}}, "the same for all sizes"),
    ],
)
def test_histories_that_cannot_be_replayed(change, message):
    with pytest.raises(InputError) as caught:
        snapshots.from_snapshot(SNAPSHOT | change, 0, 0)
    assert message in str(caught.value)


def test_settings_of_a_snapshot():
    stated = {"expandable_segments": True, "max_split_size": 64 * MIB, "roundup_power2_divisions": {"1": 8, "2": 8}}
    wanted = AllocatorSettings(expandable_segments=True, max_split_bytes=64 * MIB, round_divisions=8)
    assert snapshots.settings_of(stated) == wanted
    assert snapshots.settings_of({}) == snapshots.settings_of(dict.fromkeys(stated)) == AllocatorSettings()


class FakeCuda:
    """What `calibration` uses of `torch.cuda`, over the simulator's allocator."""

    def __init__(self, devices=1, **settings):
        self.allocator, self.next, self.others = Allocator(AllocatorSettings(**settings)), 0, CONTEXT
        self.devices, self.history, self.allocated_peak, self.reserved_peak = devices, None, 0, 0
        self.memory = SimpleNamespace(_record_memory_history=self._record, _snapshot=lambda device: self._snapshot())

    def caching_allocator_alloc(self, size, device=0):
        self.next += 1
        before = {s.address for s in self.allocator.segments()}
        self.allocator.malloc(self.next, size)
        new = [s for s in self.allocator.segments() if s.address not in before]
        self.allocated_peak = max(self.allocated_peak, self.allocator.allocated)
        self.reserved_peak = max(self.reserved_peak, self.allocator.reserved)
        self._write(*(("segment_alloc", s.address, s.size) for s in new), ("alloc", self._place(), size))
        return self.next

    def caching_allocator_delete(self, name):
        block = self.allocator.live[name]
        self.allocator.free(name)
        self._write(("free_requested", block.address, 0), ("free_completed", block.address, 0))

    def _place(self):
        return self.allocator.live[self.next].address

    def _write(self, *entries):
        if self.history is not None:
            self.history += [{"action": a, "addr": at, "size": size, "stream": 0} for a, at, size in entries]

    def _record(self, enabled="all", **how):
        assert enabled is None or how["context"] is None
        self.history = None if enabled is None else []

    def _snapshot(self):
        return {"device_traces": [list(self.history)], "segments": []}

    def synchronize(self, device=0):
        pass

    def empty_cache(self):
        self.allocator.release_cached()

    def memory_allocated(self, device=0):
        return self.allocator.allocated

    def memory_reserved(self, device=0):
        return self.allocator.reserved

    def max_memory_allocated(self, device=0):
        return self.allocated_peak

    def max_memory_reserved(self, device=0):
        return self.reserved_peak

    def reset_peak_memory_stats(self, device=0):
        self.allocated_peak = self.reserved_peak = 0

    def mem_get_info(self, device=0):
        return 2**36 - self.others - self.allocator.reserved, 2**36

    def device_count(self):
        return self.devices


def device_memory():
    return memory.DeviceMemory(
        constants=memory.SIMULATED, as_simulated=True, workspace_bytes=CUBLAS, context_bytes=CONTEXT
    )


def test_constants_are_found_by_asking():
    assert memory.constants(FakeCuda()) == memory.SIMULATED
    other = memory.constants(FakeCuda(large_segment_bytes=32 * MIB))
    assert other.large_segment == 32 * MIB and other.large_request == 10 * MIB


def test_a_device_is_measured():
    cuda = FakeCuda()
    found = memory.measure(cuda, lambda: cuda.caching_allocator_alloc(CUBLAS))
    assert found == device_memory()


def test_what_was_measured_replaces_what_was_assumed():
    assumed = load_profile("h100-sxm-80gb").memory
    found = device_memory()
    made = memory.profile_memory(found, assumed)
    assert (made.context_bytes, made.workspace_bytes) == (CONTEXT, CUBLAS)
    assert made.communicator_bytes == assumed.communicator_bytes
    assert made.source.startswith("measured: context, workspaces, allocator (its other constants as in the replay); ")
    assert memory.profile_memory(replace(found, communicator_bytes=RING), assumed).communicator_bytes == RING


def test_communicators_take_memory_outside_the_allocator():
    cuda = FakeCuda(devices=2)

    def reduce():
        cuda.others += RING

    assert memory.communicator_bytes(cuda, reduce) == RING
    assert memory.communicator_bytes(FakeCuda(), reduce) is None


def test_memory_in_use_is_a_reason_not_to_measure():
    cuda = FakeCuda()
    cuda.caching_allocator_alloc(1)
    for begin in (memory.constants, lambda c: snapshots.record_snapshot(lambda: None, c)):
        with pytest.raises(InputError, match="memory: got 2097152; allowed: nothing reserved before"):
            begin(cuda)
    with pytest.raises(InputError, match="a size at which the boundary is not crossed yet"):
        memory.last(lambda size: size < 3, 3, 9)


def test_a_history_is_recorded_and_stopped():
    cuda = FakeCuda()

    def run():
        held = [cuda.caching_allocator_alloc(size) for size in (700, 3 * MIB, 30 * MIB, 5 * MIB)]
        cuda.caching_allocator_delete(held[1])
        cuda.caching_allocator_alloc(2 * MIB)

    trace = snapshots.record_snapshot(run, cuda)
    assert cuda.history is None
    assert trace.entries[:2] == [Entry("segment_alloc", 2 * MIB, 2 * MIB, 0), Entry("alloc", 2 * MIB, 700, 0)]
    found = check_replay(trace)
    assert found.equal and found.misplaced == 0 and found.recorded_reserved_bytes == 52 * MIB


def test_a_failing_run_stops_the_recording():
    cuda = FakeCuda()
    with pytest.raises(ZeroDivisionError):
        snapshots.record_snapshot(lambda: 1 // 0, cuda)
    assert cuda.history is None


def test_training_on_this_cpu_keeps_the_profilers_peak_to_the_byte():
    found = check_replay("cpu")
    assert found.equal and found.recorded_requested_bytes == found.replayed_requested_bytes > MIB
    assert found.recorded_allocated_bytes is None and found.events > 1000
    assert 1 <= found.replayed_allocated_bytes / found.replayed_requested_bytes < 1.1
    assert 1 <= found.replayed_reserved_bytes / found.replayed_allocated_bytes < 1.3


def test_a_session_is_plain_data():
    assert json.loads(json.dumps(memory.session("cpu")))["replay"]["equal"]


def test_nothing_to_profile_is_refused():
    with pytest.raises(InputError, match="run: got 'no memory event'"):
        snapshots.record_profile(lambda: None)
    with pytest.raises(InputError, match="source: got 3; allowed: a MemoryTrace, or cpu or cuda"):
        check_replay(3)
