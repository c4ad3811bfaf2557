"""Allocator traces of real programs: PyTorch's own history on CUDA, the profiler's memory events on a CPU."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch._C._profiler import _EventType

from sim.engine.allocator import AllocatorSettings
from sim.engine.memory_trace import ACTIONS, Entry, Header, MemoryTrace
from sim.specs.fields import InputError

MOST_ENTRIES = 2_000_000
"""Of a history: a training step of a large model makes some ten thousand."""

Run = Callable[[], object]


def record_snapshot(run: Run, cuda: Any = torch.cuda, device: int = 0) -> MemoryTrace:
    """Return what the CUDA allocator did while `run()` ran, from its first segment on.

    `cuda`: `torch.cuda`, or a fake of what is used of it here.

    Raises:
        InputError: memory is in use already, whose segments the history would not show: record in a process of its
            own; or as `from_snapshot`.
    """
    cuda.synchronize(device)
    cuda.empty_cache()
    if cuda.memory_reserved(device):
        raise InputError("memory", cuda.memory_reserved(device), "nothing reserved before the recording begins")
    cuda.reset_peak_memory_stats(device)
    cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=MOST_ENTRIES)
    try:
        run()
        cuda.synchronize(device)
        snapshot = cuda.memory._snapshot(device)
    finally:
        cuda.memory._record_memory_history(enabled=None)
    return from_snapshot(snapshot, cuda.max_memory_allocated(device), cuda.max_memory_reserved(device), device)


def from_snapshot(
    snapshot: Mapping[str, Any], allocated_peak_bytes: int, reserved_peak_bytes: int, device: int = 0
) -> MemoryTrace:
    """Return the trace in a dictionary as `torch.cuda.memory._snapshot()` gives it, with the device's own peaks.

    Raises:
        InputError: no history of this device, one that is cut off, or settings whose replay is not known.
    """
    traces = snapshot.get("device_traces", [])
    if not 0 <= device < len(traces) or not traces[device]:
        raise InputError("device", device, "a device with a recorded history")
    if len(traces[device]) >= MOST_ENTRIES:
        raise InputError("device_traces", len(traces[device]), f"fewer than {MOST_ENTRIES} entries: the rest is lost")
    entries = [_entry(raw) for raw in traces[device]]
    source = f"CUDA device {device}, torch {torch.__version__}"
    header = Header(
        source=source,
        settings=settings_of(snapshot.get("allocator_settings", {})),
        allocated_peak_bytes=allocated_peak_bytes,
        reserved_peak_bytes=reserved_peak_bytes,
    )
    return MemoryTrace(header, entries)


def _entry(raw: Mapping[str, Any]) -> Entry:
    if raw["action"] not in ACTIONS:
        raise InputError("action", raw["action"], "one of " + ", ".join(sorted(ACTIONS)))
    # An "oom" entry has the free memory of the device in place of an address.
    return Entry(raw["action"], int(raw.get("addr", 0)), int(raw["size"]), int(raw.get("stream", 0)))


def settings_of(stated: Mapping[str, Any]) -> AllocatorSettings:
    """Return the settings that a snapshot states.

    Raises:
        InputError: blocks are collected by age, or rounded differently by size.
    """
    stated = {name: value for name, value in stated.items() if value is not None}
    if (given := stated.get("garbage_collection_threshold", 0)) > 0:
        raise InputError("garbage_collection_threshold", given, "0: collection by age is not replayed")
    divisions = {max(0, int(n)) for n in stated.get("roundup_power2_divisions", {}).values()} or {0}
    if len(divisions) > 1:
        raise InputError("roundup_power2_divisions", sorted(divisions), "the same for all sizes")
    most = int(stated.get("max_split_size", -1))
    return AllocatorSettings(
        expandable_segments=bool(stated.get("expandable_segments", False)),
        # No limit is the largest unsigned number, which arrives as -1.
        max_split_bytes=most if 0 < most < 2**60 else None,
        round_divisions=next(iter(divisions)) if max(divisions) > 1 else 0,
    )


def record_profile(run: Run) -> MemoryTrace:
    """Return what `run()` allocates and frees on a CPU by torch's profiler, with the profiler's own peak of live bytes.

    What was there before is not in it; the replay says what a CUDA allocator would reserve for the same tensors.

    Raises:
        InputError: nothing was allocated.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    tree = profile.profiler.kineto_results.experimental_event_tree()
    found = sorted(_allocations(tree), key=lambda event: event[0])
    if not found:
        raise InputError("run", "no memory event", "a function that allocates tensors on the CPU")
    live: set[int] = set()
    entries, most, before = [], 0, found[0][3] - found[0][2]
    for _, address, size, total in found:
        most = max(most, total - before)
        if size > 0:
            live.add(address)
            entries.append(Entry("alloc", address, size, 0))
        elif address in live:
            live.remove(address)
            entries.append(Entry("free", address, -size, 0))
    header = Header(source=f"CPU by torch.profiler, torch {torch.__version__}", requested_peak_bytes=most)
    return MemoryTrace(header, entries)


def _allocations(nodes: list[Any]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (ns, address, bytes, bytes live by the profiler's count) of a tree's allocations on the CPU."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        todo += node.children
        kind, found = node.typed
        if kind == _EventType.Allocation and found.device.type == "cpu" and found.alloc_size:
            yield node.start_time_ns, found.ptr, found.alloc_size, found.total_allocated


def training_steps(device: Literal["cpu", "cuda"], steps: int = 3) -> Run:
    """Return a function that makes a small transformer and trains it for some steps: thousands of allocations.

    Everything is made inside the function, so that a recording begins with nothing.
    """
    large = device == "cuda"
    width, layers, tokens, batch, words = (1024, 8, 512, 8, 32_000) if large else (64, 2, 32, 4, 1_000)

    def run() -> None:
        torch.manual_seed(0)
        block = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
        body = torch.nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        model = torch.nn.Sequential(torch.nn.Embedding(words, width), body, torch.nn.Linear(width, words)).to(device)
        adam = torch.optim.AdamW(model.parameters())
        ids = torch.randint(words, (batch, tokens), device=device)
        for _ in range(steps):
            adam.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=large):
                logits = model(ids)
            torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten()).backward()  # type: ignore[no-untyped-call]
            adam.step()

    return run
