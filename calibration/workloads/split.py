"""What the memory of a training step is held for at its peak, allocation by allocation.

torch's profiler records every allocation and release of the device with its address; a dispatch mode names each
operation in that record and notes which addresses are its results. What an operation allocates beside those is its
workspace. So the parts add up to the allocator's own count, on a CPU (which has none) as on a GPU.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor
from torch._C._profiler import _EventType, _RecordFunctionFast
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from calibration.workloads.results import Part
from calibration.workloads.training import Training

PARTS: tuple[Part, ...] = get_args(Part)
"""weights: parameters and buffers. gradients: of parameters. activations: the batch and what forward keeps for
backward ("feature maps" in the paper). workspace: what kernels allocate for themselves, and what was there before.
dynamic: everything else that comes and goes, as gradients of activations. optimizer: its states, and what an update
makes for itself."""

MARK = "trainsim operation "
MOST_UNSEEN = 0.03
"""Share of the peak that the record may leave unexplained (Faster R-CNN, Deep Speech 2 on an H200: 2.3, 1.6 %)."""

BLOCK = {"cpu": 1, "cuda": 512}
"""Bytes that a device's allocator rounds up to."""


@dataclass(frozen=True)
class Allocation:
    """Bytes at an address; `operation` is the number of the one that allocated them, -1 for none."""

    at_ns: int
    address: int
    size: int
    total: int
    operation: int


class Noted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names operations for the profiler; notes the addresses of their results and what is kept for backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results: list[frozenset[int]] = []
        self.updating = 0
        """Number of the first operation of the update."""

        self.kept: dict[int, set[int]] = {}
        """Number of an operation -> addresses kept for backward before it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation under its number."""
        with _RecordFunctionFast(f"{MARK}{len(self.results)}"):
            out = func(*args, **(kwargs or {}))
        self.results.append(frozenset(address(t) for t in tree_leaves(out) if isinstance(t, Tensor)))
        return out

    def pack(self, tensor: Tensor) -> Tensor:
        """Note a tensor that waits for its backward."""
        self.kept.setdefault(len(self.results), set()).add(address(tensor))
        return tensor.detach()  # the tensor itself would make a cycle


def address(tensor: Tensor) -> int:
    """Return where a tensor's storage begins."""
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True)
class Peak:
    """The most bytes held at once, by the allocator's count, and what for by `PARTS`; the parts sum to it."""

    peak_bytes: int
    parts: Mapping[Part, int]


def split(training: Training) -> Peak:
    """Take a step and return the peak of its memory; earlier steps have made the optimizer's states.

    Raises:
        RuntimeError: torch recorded no allocation, or not most of them.
    """
    training.forget()
    training.wait()
    noted, kind = Noted(), training.device
    held = _held(training)
    outside = torch.cuda.memory_allocated() - sum(held.values()) if kind == "cuda" else 0
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if kind == "cuda" else [])]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile, noted:
        with torch.autograd.graph.saved_tensors_hooks(noted.pack, lambda t: t):
            loss = training.loss(training.model, training.batch)
        torch.autograd.backward(loss)
        noted.updating = len(noted.results)
        training.update()
        training.wait()
    gradients = {address(p.grad) for p in training.model.parameters() if p.grad is not None}
    tree = profile.profiler.kineto_results.experimental_event_tree()
    return _peak(sorted(_events(tree, kind), key=lambda e: e.at_ns), noted, gradients, {**held, "workspace": outside})


def _held(training: Training) -> dict[Part, int]:
    """Return the bytes that are there before the step, by what for."""
    model = training.model
    known = set[int]()
    held: dict[Part, Iterable[Tensor]] = {
        "weights": (*model.parameters(), *model.buffers()),
        "optimizer": training.states(),
        "activations": training.batch,
    }
    return {part: _bytes(tensors, known, training.device) for part, tensors in held.items()}


def _bytes(tensors: Iterable[Tensor], known: set[int], device: str) -> int:
    """Return the bytes of the tensors' storages on the device, each once, as its allocator rounds them."""
    found = 0
    for t in tensors:
        if t.device.type == device and address(t) not in known:
            known.add(address(t))
            found += -(-t.untyped_storage().nbytes() // BLOCK[device]) * BLOCK[device]
    return found


def _events(nodes: list[Any], kind: str) -> Iterator[Allocation]:
    """Yield the allocations and releases on a kind of device in a profiler's tree, with the operation around them."""
    todo = [(node, -1) for node in nodes]
    while todo:
        node, operation = todo.pop()
        if node.name.startswith(MARK):
            operation = int(node.name.removeprefix(MARK))
        todo += [(child, operation) for child in node.children]
        tag, found = node.typed
        if tag == _EventType.Allocation and found.device.type == kind and found.alloc_size:
            yield Allocation(node.start_time_ns, found.ptr, found.alloc_size, found.total_allocated, operation)


def _peak(events: list[Allocation], noted: Noted, gradients: set[int], held: Mapping[Part, int]) -> Peak:
    """Replay the events and return what is alive where the allocator's own count is highest."""
    if not events:
        raise RuntimeError("torch.profiler recorded no allocation")
    parts = _named(events, noted, gradients)
    before = events[0].total - events[0].size
    base = sum(held.values())
    most = max(range(len(events)), key=lambda n: events[n].total)
    peak = max(0, events[most].total - before)
    alive: dict[int, int] = {}
    total, unseen = before, 0  # bytes that libraries have taken without a record
    for n, event in enumerate(events[: most + 1] if peak else []):
        gone = total + event.size - event.total
        total = event.total
        of_libraries = min(gone, unseen)
        unseen -= of_libraries
        _forget(gone - of_libraries, event, alive, events, parts)
        if event.size > 0:
            alive[event.address] = n
        elif alive.pop(event.address, None) is None:
            unseen = max(0, unseen + event.size)
    found = {part: held.get(part, 0) for part in PARTS}
    found["workspace"] += unseen
    for n in alive.values():
        found[parts[n]] += events[n].size
    # What was there before and has gone, and what libraries take in threads that are not recorded.
    rest = base + peak - sum(found.values())
    if abs(rest) > MOST_UNSEEN * (base + peak):
        raise RuntimeError(f"torch.profiler's record leaves {rest} of {base + peak} bytes unexplained")
    for part in ("workspace", "dynamic"):
        more = max(rest, -found[part])
        found[part], rest = found[part] + more, rest - more
    return Peak(base + peak, found)


def _forget(
    gone: int, event: Allocation, alive: dict[int, int], events: list[Allocation], parts: Mapping[int, Part]
) -> None:
    """Take from `alive` what was given back without a record before an event, by the allocator's count `gone` bytes.

    torch's backward lets go of gradients between two operations, where no profiler listens. What lay where the event
    allocates has gone for certain; of the rest one allocation of just so many bytes, else what comes and goes before
    what is kept, large ones first.
    """

    def size(address: int) -> int:
        return events[alive[address]].size

    while alive and gone >= min(map(size, alive)):
        end = event.address + max(event.size, 0)
        found = min(
            (a for a in alive if size(a) <= gone),
            key=lambda a: (
                not (a < end and event.address < a + size(a)), size(a) != gone, parts[alive[a]] != "dynamic", -size(a)
            ),
        )  # fmt: skip
        gone -= size(found)
        alive.pop(found)


def _named(events: list[Allocation], noted: Noted, gradients: set[int]) -> dict[int, Part]:
    """Return the part of every allocation by its place among the events."""
    parts: dict[int, Part] = {}
    alive: dict[int, int] = {}
    made: dict[tuple[int, int], int] = {}
    waiting = sorted(noted.kept.items(), reverse=True)
    for n, event in enumerate(events):
        while waiting and event.operation >= waiting[-1][0]:
            _keep(waiting.pop()[1], alive, parts)
        if event.size < 0:
            alive.pop(event.address, None)
            continue
        alive[event.address] = n
        result = event.operation >= 0 and event.address in noted.results[event.operation]
        updates = event.operation >= noted.updating
        place = event.operation, event.address
        if place in made:  # the operation has given it up again: that was no result of it
            parts[made[place]] = "workspace"
        if result:
            made[place] = n
        parts[n] = "workspace" if not result else "optimizer" if updates else "dynamic"
    for _, kept in waiting:
        _keep(kept, alive, parts)
    for n in (alive[a] for a in gradients if a in alive):
        parts[n] = "gradients"
    return parts


def _keep(addresses: set[int], alive: Mapping[int, int], parts: dict[int, Part]) -> None:
    for n in (alive[a] for a in addresses if a in alive):
        parts[n] = "activations"
