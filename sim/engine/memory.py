"""Memory of every rank over time: states, plus what actions allocate and free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sim.engine.timeline import Timeline
from sim.schedules import Action, Kind
from sim.schedules.ir import COMPUTE

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries", "communication", "offload")
"""What bytes are held for; "offload" is the room for copies from and to host memory."""


@dataclass(frozen=True)
class Footprint:
    """Bytes that decide a rank's memory.

    fixed[rank]: bytes by category for the whole step. saved[stage]: kept from a forward to its backward;
    temporary[stage]: alive only during a backward; workspace: temporaries that every rank holds throughout;
    moved[stage]: the part of `saved` that is in host memory until the backward (empty: none). update[rank]: room for
    copies while the rank updates, beyond that in `fixed` (empty: none).
    """

    fixed: tuple[Mapping[str, float], ...]
    saved: tuple[float, ...]
    temporary: tuple[float, ...]
    workspace: float = 0.0
    moved: tuple[float, ...] = ()
    update: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class MemoryTimeline:
    """One rank's bytes as steps: from `at_ns[i]` on it holds `activations[i]` and `temporaries[i]` beside `fixed`.

    Instants 2 j and 2 j + 1 are the start and the end of `actions[j]`.
    """

    rank: int
    actions: Sequence[Action]
    fixed: Mapping[str, float]
    at_ns: NDArray[np.int64]
    activations: NDArray[np.float64]
    temporaries: NDArray[np.float64]

    @property
    def total(self) -> NDArray[np.float64]:
        """Bytes from each instant on."""
        return np.asarray(self.activations + self.temporaries + sum(self.fixed.values()))

    @property
    def peak_index(self) -> int:
        """Index of the first instant with the most bytes."""
        return int(np.argmax(self.total))

    @property
    def peak_action(self) -> Action:
        """The action at whose start (of an even instant) or end the peak is first reached."""
        return self.actions[self.peak_index // 2]

    @property
    def peak_bytes(self) -> float:
        """The most bytes held at once."""
        return float(self.total[self.peak_index])

    def composition(self) -> dict[str, float]:
        """Return the bytes by category at the peak."""
        i = self.peak_index
        moving = {"activations": float(self.activations[i]), "temporaries": float(self.temporaries[i])}
        return {c: moving.get(c, float(self.fixed.get(c, 0.0))) for c in CATEGORIES}


@dataclass(frozen=True)
class Levels:
    """One rank's peak as three tools report it, and what its device has (bytes).

    allocated: tensors, as `torch.cuda.max_memory_allocated`; reserved: the allocator's segments, as
    `max_memory_reserved`; nvidia_smi: those, communicators and the context, which is what has to fit.
    """

    rank: int
    allocated_bytes: float
    reserved_bytes: float
    nvidia_smi_bytes: float
    capacity_bytes: float

    @property
    def margin_bytes(self) -> float:
        """What the device has left at the peak; below 0 it does not fit."""
        return self.capacity_bytes - self.nvidia_smi_bytes


def memory_timelines(timeline: Timeline, footprint: Footprint) -> list[MemoryTimeline]:
    """Return the memory of every rank: a forward adds, its backward frees.

    Where the backward is split, I and W free their shares by the schedule's memory law.
    """
    graph = timeline.graph
    edges = [*np.flatnonzero(np.diff(graph.rank, prepend=-1)).tolist(), len(graph)]
    return [_of_rank(timeline, footprint, r, slice(a, b)) for r, (a, b) in enumerate(pairwise(edges))]


def _of_rank(timeline: Timeline, footprint: Footprint, rank: int, part: slice) -> MemoryTimeline:
    graph = timeline.graph
    kind, stage = graph.kind[part], graph.stage[part]
    saved, temporary = np.array(footprint.saved)[stage], np.array(footprint.temporary)[stage]
    moved = np.array(footprint.moved or np.zeros(len(footprint.saved)))[stage]
    forward, by_input = kind == Kind.F, timeline.schedule.input_frees
    backward = np.isin(kind, COMPUTE) & ~forward
    frees = (kind == Kind.B) + (kind == Kind.I) * by_input + (kind == Kind.W) * (1 - by_input)
    # Two instants per action, start and end; on one rank they follow each other in this order.
    at = np.stack([timeline.start[part], timeline.end[part]], axis=1).ravel()
    # What a backward has fetched it frees, or leaves on the device for W.
    fetched = (backward & (kind != Kind.W)) * moved
    activations = np.cumsum(np.stack([forward * (saved - moved), frees * -saved + fetched], axis=1).ravel())
    room = (kind == Kind.OPTIMIZER) * (footprint.update[rank] if footprint.update else 0.0)
    temporaries = np.stack([backward * temporary + room, np.zeros(len(kind))], axis=1).ravel() + footprint.workspace
    actions = timeline.schedule.actions[rank]
    return MemoryTimeline(rank, actions, footprint.fixed[rank], at, activations, temporaries)
