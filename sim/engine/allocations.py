"""The allocations and frees of one pipeline rank, made up from the schedule's order and the memory law.

What is exact is the sum: bytes asked for at once peak where `memory_timelines` says. How a sum is cut into tensors and
in which order they come and go is that of a usual implementation, not of a recorded one: parameters, gradients and
master weights first; a forward makes a layer's tensors one after the other; a backward makes again what was dropped,
holds gradients beside it and frees in reverse; Adam's moments come with the first update, into segments that
activations left behind; what ZeRO-3 gathers lies on a stream of its own, as FSDP's does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat

import numpy as np

from sim.costs import inputs
from sim.costs.layers.structure import Structure
from sim.costs.tensors import LayerTensors, layer_tensors, pieces, tensor_model
from sim.engine.allocator import AllocatorSettings
from sim.engine.memory_trace import Entry, Header, MemoryTrace
from sim.engine.placed import slowest
from sim.engine.replay import Event, Replay, replay
from sim.engine.step import Step
from sim.schedules import SCHEDULES, Action, Kind
from sim.specs.arguments import checked
from sim.specs.fields import InputError

COMPUTE_STREAM, GATHER_STREAM = 0, 1
MATRICES = (3, 1, 4, 4)
"""Shares of a layer's weights: query-key-value, output, up and down products of a GPT block (4 h^2 and 8 h^2)."""
LAZY = 2 / 3
"""Share of the optimizer's bytes that Adam makes at its first update: two of three fp32 numbers."""
MOST_STEPS = 100
MOST_EVENTS = 2_000_000
"""Of a replay: half a minute, and half of what the reader of traces takes."""


@checked
def replay_allocator(
    step: Step, rank: int | None = None, settings: AllocatorSettings | None = None, steps: int = 2
) -> Replay:
    """Return what PyTorch's allocator reserves on a pipeline rank (None: the fullest) in `steps` steps.

    settings: None for the usual ones, with segments as the profile's device has them.

    Raises:
        InputError: no such rank; the plan keeps something in host memory, whose copies are not replayed; more than two
            million events.
    """
    return replay(allocations(step, rank, steps), settings or measured_settings(step))


def measured_settings(step: Step) -> AllocatorSettings:
    """Return the allocator's usual settings with the segments of the step's device."""
    return AllocatorSettings(large_segment_bytes=step.profile.memory.large_segment_bytes)


def memory_trace(step: Step) -> tuple[MemoryTrace, Replay]:
    """Return the events of `replay_allocator` as a trace like a recorded one, with the peaks of its replay.

    Of the fullest rank; an allocation's name stands for its address.

    Raises:
        InputError: as `replay_allocator`.
    """
    events = allocations(step)
    settings = measured_settings(step)
    found = replay(events, settings)
    peaks = {f"{n}_peak_bytes": getattr(found, f"{n}_peak_bytes") for n in ("allocated", "reserved", "requested")}
    header = Header(
        source=f"simulated: {step.model.name}, pipeline rank {step.fullest.rank}"[:200], settings=settings, **peaks
    )
    return MemoryTrace(header, [Entry(*event) for event in events]), found  # type: ignore[arg-type]


def allocations(step: Step, rank: int | None = None, steps: int = 2) -> list[Event]:
    """Return the events of `replay_allocator`; a schedule without flush runs once, with all the steps it holds.

    Raises:
        InputError: as `replay_allocator`.
    """
    rank = step.fullest.rank if rank is None else rank
    if not 0 <= rank < len(step.memory):
        raise InputError("rank", rank, f"a pipeline rank, 0 to {len(step.memory) - 1}")
    if step.plan.stages or step.plan.recompute_layers:
        name = "stages" if step.plan.stages else "recompute_layers"
        raise InputError(f"plan.{name}", getattr(step.plan, name), "left out: only layers treated alike are replayed")
    if step.plan.offload.used:
        raise InputError("plan.offload", step.plan.offload, "nothing offloaded: copies are not replayed")
    if not 1 <= steps <= MOST_STEPS:
        raise InputError("steps", steps, f"1 to {MOST_STEPS}")
    once = SCHEDULES[step.timeline.schedule.name].asynchronous
    return _Rank(step, rank, _Stages.of(step)).run(1 if once else steps)


@dataclass(frozen=True)
class _Stages:
    """Bytes of every stage's layers in forward order, of their gathered weights, of their weights' gradients before
    these are in shards (own, and the copy they are reduced from), and of the two ends."""

    layers: tuple[tuple[LayerTensors, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    unreduced: tuple[tuple[tuple[float, float], ...], ...]
    embedding: tuple[int, ...]
    head: tuple[int, ...]
    beside_head: tuple[int, ...]

    @classmethod
    def of(cls, step: Step) -> "_Stages":
        structure, costs = Structure.of(step.model), step.costs
        sizes = slowest(step.model, step.cluster, step.placed, step.level, tensor_model)
        kinds = range(len(structure.kinds))
        tensors = [layer_tensors(structure, k, sizes, step.plan.recompute, step.plan.tempo) for k in kinds]
        counts = inputs.layer_counts(step.model, step.plan.split(step.model)).astype(int).T.tolist()
        # Every gradient of the loss is a tensor as large as the fp32 logits (`memory.head_bytes`).
        logits = float(sizes["logits"])
        return cls(
            layers=tuple(tuple(tensors[k] for k in kinds for _ in range(n[k])) for n in counts),
            weights=tuple(tuple(float(sizes[f"weights_{k}"]) for k in kinds for _ in range(n[k])) for n in counts),
            unreduced=tuple(
                tuple(
                    (float(sizes[f"unreduced_{k}"]), float(sizes[f"reduced_{k}"])) for k in kinds for _ in range(n[k])
                )
                for n in counts
            ),
            embedding=pieces(float(costs["saved_embedding_bytes"]), 0),
            head=pieces(float(costs["saved_head_bytes"]), logits),
            beside_head=pieces(float(costs["head_temporary_bytes"]), logits),
        )


Kept = list[list[int]]
"""Names of what a forward leaves: the embedding's, every layer's, the head's."""


@dataclass
class _Rank:
    step: Step
    rank: int
    stages: _Stages
    events: list[Event] = field(default_factory=list)
    names: int = 0

    def run(self, steps: int) -> list[Event]:
        """Return the events of several steps."""
        plan, held, schedule = self.step.plan, self.step.memory[self.rank], self.step.timeline.schedule
        own = {s % schedule.depth for s, r in enumerate(schedule.rank_of) if r == self.rank}
        layers = sum(len(self.stages.layers[s]) for s in own)
        gathers = [max(self.stages.weights[s], default=0.0) for s in own] if plan.zero == 3 else []
        at_once = min(2, max(len(self.stages.layers[s]) for s in own))  # the running layer's and the next one's
        self.gathered = min(max(gathers, default=0.0), held.fixed["communication"] / max(at_once, 1))
        # torchtitan's fp32 shards are the master weights: its optimizer has moments only.
        lazy = 1.0 if plan.framework == "torch" and plan.zero == 3 else LAZY
        self._hold(pieces(self.step.profile.memory.workspace_bytes, 0))
        self._hold(_matrices(held.fixed["parameters"], layers))
        self._hold(_matrices(held.fixed["optimizer"] * (1 - lazy), layers))
        # Megatron-LM keeps gradients in one buffer, FSDP in shards of every matrix.
        self._hold(_matrices(held.fixed["gradients"], layers if plan.zero == 3 else 0))
        self._hold(pieces(held.fixed["communication"] - at_once * self.gathered, 0))
        self.states = _matrices(held.fixed["optimizer"] * lazy, layers)
        self.kept: dict[tuple[int, int], Kept] = {}
        whole, microbatches = steps * len(held.actions), f"{schedule.microbatches} microbatches"
        for done, action in enumerate(chain.from_iterable(repeat(held.actions, steps)), 1):
            self._act(action)
            if len(self.events) > MOST_EVENTS:
                about = f"about {whole * len(self.events) // done} in {steps} steps of {microbatches}"
                raise InputError("allocations", about, f"at most {MOST_EVENTS}: fewer microbatches or steps")
        return self.events

    def _hold(self, sizes: Sequence[int], stream: int = COMPUTE_STREAM) -> list[int]:
        names = list(range(self.names, self.names + len(sizes)))
        self.names += len(sizes)
        self.events += [("alloc", n, size, stream) for n, size in zip(names, sizes, strict=True)]
        return names

    def _drop(self, names: Sequence[int]) -> None:
        self.events += [("free", n, 0, 0) for n in names]

    def _act(self, action: Action) -> None:
        where, schedule = (action.stage, action.microbatch), self.step.timeline.schedule
        stage = action.stage % schedule.depth
        if action.kind is Kind.F:
            self.kept[where] = self._forward(stage)
        elif action.kind is Kind.I:
            self._backward(stage, self.kept[where], schedule.input_frees)
        elif action.kind in (Kind.W, Kind.B):
            self._backward(stage, self.kept.pop(where), 1.0)
        elif action.kind is Kind.OPTIMIZER:
            self._hold(self.states)
            self.states = ()

    def _forward(self, stage: int) -> Kept:
        kept = [self._hold(self.stages.embedding if stage == 0 else ())]
        for layer, gathered in zip(self.stages.layers[stage], self._gathers(stage, 1), strict=True):
            passing = self._hold(layer.rebuilt)
            kept.append(self._hold(layer.kept))
            self._drop(passing)
            self._drop(gathered)
        return [*kept, self._hold(self.stages.head if self._is_last(stage) else ())]

    def _is_last(self, stage: int) -> bool:
        return stage == len(self.stages.layers) - 1

    def _gathers(self, stage: int, direction: int) -> Iterator[list[int]]:
        """Yield for every layer the gathered weights to free after it; those of the next one are there by then."""
        sizes = [pieces(min(w, self.gathered), 0) for w in self.stages.weights[stage][::direction]]
        ahead = self._hold(sizes[0], GATHER_STREAM) if sizes else []
        for i in range(len(sizes)):
            mine = ahead
            ahead = self._hold(sizes[i + 1], GATHER_STREAM) if i + 1 < len(sizes) else []
            yield mine

    def _backward(self, stage: int, kept: Kept, share: float) -> None:
        """Run a backward pass that frees `share` of what is kept; its first weights are there before the head."""
        gathers = self._gathers(stage, -1)
        first = list(islice(gathers, 1))
        if self._is_last(stage) and kept[-1]:
            beside = self._hold(self.stages.beside_head)
            self._free(kept[-1], share)
            self._drop(beside)
        layers, copy = self.stages.layers[stage], list[int]()
        for i, gathered in zip(reversed(range(len(layers))), chain(first, gathers), strict=True):
            own, reduced = (pieces(size, 0) for size in self.stages.unreduced[stage][i])
            again, beside = self._hold(layers[i].rebuilt), self._hold(layers[i].gradients)
            weights = self._hold(own)
            self._drop(again[::-1])
            self._free(kept[i + 1], share)
            self._drop(beside)
            self._drop(copy)  # one layer later than its own
            copy = self._hold(reduced)
            self._drop(weights)
            self._drop(gathered)
        self._drop(copy)
        self._free(kept[0], share)

    def _free(self, names: list[int], share: float) -> None:
        """Free the last `share` of the tensors, the last first."""
        for _ in range(round(len(names) * share)):
            self._drop([names.pop()])


def _matrices(size: float, layers: int) -> tuple[int, ...]:
    """Return `size` bytes as the matrices of so many layers; as one buffer where there are none to tell apart."""
    shares = np.tile(MATRICES, layers) if layers else np.ones(1)
    edges = np.rint(np.cumsum([0, *shares]) * (size / shares.sum())).astype(np.int64)
    return tuple(n for n in np.diff(edges).tolist() if n)
