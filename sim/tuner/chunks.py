"""Rows whose pipelines have chunks of different layers: no closed form holds for them, and their orders are run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs import inputs
from sim.costs.algebra import Compiled
from sim.engine.closed_form import CHUNK, RANK
from sim.engine.unequal import Floats, Pipeline
from sim.schedules import Shape
from sim.specs import Model
from sim.tuner.grids import distinct, evaluated
from sim.tuner.space import Column


@dataclass(frozen=True, eq=False)
class Stack:
    """How a model's layers lie in a pipeline: the kinds of chunks and of ranks that differ, [kind of layer, such kind],
    and of which of them every stage and every rank is."""

    chunks: Floats
    of_stage: Column
    ranks: Floats
    of_rank: Column

    def shape(self, microbatches: int) -> Shape:
        """Return the shape of its pipeline."""
        ranks = len(self.of_rank)
        return Shape(ranks, microbatches, len(self.of_stage) // ranks)

    @property
    def equal(self) -> bool:
        """Whether all chunks hold the same."""
        return len(set(self.of_stage.tolist())) == 1


@lru_cache(maxsize=1_024)
def stack(model: Model, pp: int, chunks: int) -> Stack:
    """Return the stack of `model` on `pp` ranks of so many chunks each, which take turns."""
    stages = pp * chunks
    counts = inputs.layer_counts(model, [model.layers // stages] * stages)
    on_rank = counts.reshape(len(counts), chunks, pp).sum(axis=1)
    (each, stage), (every, rank) = (np.unique(c, axis=1, return_inverse=True) for c in (counts, on_rank))
    return Stack(each, stage.ravel(), every, rank.ravel())


@dataclass(frozen=True, eq=False)
class Stacks:
    """The stacks of rows, which[row] of `every`."""

    every: Sequence[Stack]
    which: Column

    @classmethod
    def of(cls, models: Sequence[Model], model: Column, pp: Column, chunks: Column) -> "Stacks":
        """Return those of rows, each of models[model]."""
        first, which = distinct(model, pp, chunks)
        each = zip(*(column[first].tolist() for column in (model, pp, chunks)), strict=True)
        return cls([stack(models[m], p, v) for m, p, v in each], which)

    @property
    def uneven(self) -> NDArray[np.bool_]:
        """Which rows' chunks differ."""
        return np.array([not one.equal for one in self.every], dtype=bool)[self.which]

    def of_rows(self, at: Column) -> "Stacks":
        """Return those of some rows alone."""
        kept, which = np.unique(self.which[at], return_inverse=True)
        return Stacks([self.every[k] for k in kept.tolist()], which.ravel())

    def layers(self) -> dict[str, Floats]:
        """Return the layers of every kind of chunk, [row, chunk, 1], and of every kind of rank, [row, 1, rank]."""
        chunks, ranks = (self._padded([getattr(one, name) for one in self.every]) for name in ("chunks", "ranks"))
        named = {f"layers_{k}": chunks[self.which, k, :, None] for k in range(chunks.shape[1])}
        return named | {f"rank_layers_{k}": ranks[self.which, k, None] for k in range(ranks.shape[1])}

    @staticmethod
    def _padded(each: Sequence[Floats]) -> Floats:
        most = max(one.shape[1] for one in each)
        return np.stack([np.pad(one, ((0, 0), (0, most - one.shape[1])), mode="edge") for one in each])


@dataclass(frozen=True, eq=False)
class Pipelines:
    """Pipelines of one schedule, a row each. barrier[row]: no rank updates before all have reduced their gradients."""

    schedule: str
    stacks: Stacks
    barrier: NDArray[np.bool_]

    def scored(self, form: Compiled, values: Mapping[str, Any], alike: Column) -> tuple[Floats, Floats]:
        """Return step times (s) and peaks (bytes).

        form: the schedule's `chunk_form`; values: of its symbols but layers numbers, or columns; alike: as `evaluated`
        takes it.
        """
        given = {name: value[:, None, None] if np.ndim(value) else value for name, value in values.items()}
        out = evaluated(form, given | self.stacks.layers(), alike=alike, threads=False)
        time, peak = np.empty(len(alike)), np.empty(len(alike))
        microbatches = np.broadcast_to(values["microbatches"], len(alike)).astype(np.int64)
        first, of = distinct(self.stacks.which, microbatches, self.barrier.astype(np.int64))
        for n, row in enumerate(first.tolist()):
            at, one = np.flatnonzero(of == n), self.stacks.every[self.stacks.which[row]]
            pipeline = Pipeline(self.schedule, one.shape(int(microbatches[row])), bool(self.barrier[row]))
            costs = _costs(one, out, at)
            # All ranks wait for the slowed last backwards of the others, as in the closed forms of equal chunks.
            time[at] = pipeline.step_s(costs) + costs["slowed"][1:].sum(axis=0)
            peak[at] = pipeline.peak_bytes(costs)
        return time, peak


def _costs(one: Stack, out: Mapping[str, Any], at: Column) -> dict[str, Floats]:
    """Return the costs of rows `at`, all of one stack, as `Pipeline` takes them."""
    ranks, stages = len(one.of_rank), len(one.of_stage)
    shape = np.broadcast_shapes(*(np.shape(value) for value in out.values()))

    def of_stages(name: str, some: slice = slice(None)) -> Floats:
        value = np.broadcast_to(out[name], shape).transpose(1, 2, 0)
        every: Floats = value[one.of_stage[some, None], np.resize(one.of_rank, stages)[some, None], at]
        return every

    costs = {name: of_stages(name) for name in CHUNK}
    for end, where in (("embedding", slice(0, 1)), ("head", slice(stages - 1, stages))):
        for name in ("forward", "backward", "weight", "saved"):
            costs[name][where] += of_stages(f"{end}_{name}", where)
    last = slice(stages - 1, stages)
    # The head runs backward first and frees its part before the blocks below it do.
    below = costs["temporary"][last] - of_stages("head_saved", last)
    costs["temporary"][last] = np.maximum(of_stages("head_beside", last), below)
    message = of_stages("message")
    costs["back"] = message - costs["late"] - np.roll(costs["met"], 1, axis=0)
    costs["message"] = message - costs["ahead"]
    places = ["first", *["middle"] * (ranks - 2), "last"]
    for name in RANK:
        each = [of_stages(f"{name}_{place}", slice(r, None, ranks)) for r, place in enumerate(places)]
        costs[name] = np.max(each, axis=1)  # of the room for copies, that of its largest chunk
    return costs
