"""What plans, costs and searches must know of a pipeline schedule by its name; orders are made in `sim.schedules`."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Placement = Literal["loop", "v", "two directions"]
Update = Literal["together", "alone", "group", "microbatch"]


@dataclass(frozen=True)
class Pipeline:
    """Where a schedule puts its model chunks, and when it updates the weights.

    placement: rank of chunk s: s mod p; or there and back (rank r holds r and 2 p - 1 - r); or two copies of the model
    in opposite directions (rank r holds chunk r of the first and p - 1 - r of the second).
    chunks: what a rank holds if the user names no number, those of both copies counted; any_chunks: whether other
    numbers are legal.
    turns: whether the last rank runs each microbatch's backward right after its forward.
    splits: whether backwards run in two parts, or some of them, and weight gradients are made in the second one.
    updates: once a step, by all ranks together after the slowest reduction (as clipping by the global norm asks) or by
    each alone; or while microbatches are under way, after a group of them or after each one.
    """

    placement: Placement = "loop"
    chunks: int = 1
    any_chunks: bool = False
    turns: bool = True
    splits: bool = False
    updates: Update = "together"

    @property
    def copies(self) -> int:
        """Copies of the model that are trained at once (parameters of each on every rank)."""
        return 2 if self.placement == "two directions" else 1

    @property
    def asynchronous(self) -> bool:
        """Whether weights change while microbatches are under way: there is no flush."""
        return self.updates in ("group", "microbatch")

    def rank_of(self, ranks: int, chunks: int) -> tuple[int, ...]:
        """Return the rank of every chunk, `chunks` a rank; those of a second copy of the model follow the first's."""
        up = tuple(range(ranks))
        return up * chunks if self.placement == "loop" else up + up[::-1]


LOOP, V = Pipeline(chunks=2, any_chunks=True), Pipeline(placement="v", chunks=2, splits=True)
ALONE = Pipeline(updates="alone", splits=True)
PIPELINES = {
    "none": Pipeline(),
    "1f1b": Pipeline(),
    "interleaved": LOOP,
    "gpipe": Pipeline(turns=False),
    "zb-h1": ALONE,
    "zb-h2": ALONE,
    "zb-1p": ALONE,
    "zb-2p": ALONE,
    "looped-bfs": Pipeline(chunks=2, any_chunks=True, turns=False),
    "interleaved-zb": replace(LOOP, splits=True),
    "zbv": replace(V, updates="alone"),
    "v-half": V,
    "v-min": V,
    "dualpipe": Pipeline(placement="two directions", chunks=2, splits=True),
    "dualpipev": V,
    "chimera": Pipeline(placement="two directions", chunks=2),
    "2bw": Pipeline(updates="group"),
    "pipedream": Pipeline(updates="microbatch"),
}
"""Every schedule that a plan may name. The first three follow from pp and virtual_stages where none is named."""

LOOPED = tuple(name for name, pipeline in PIPELINES.items() if pipeline.any_chunks)
V_SHAPED = tuple(name for name, pipeline in PIPELINES.items() if pipeline.placement == "v")
TWO_COPIES = tuple(name for name, pipeline in PIPELINES.items() if pipeline.copies == 2)
ASYNCHRONOUS = tuple(name for name, pipeline in PIPELINES.items() if pipeline.asynchronous)


def microbatches_to_steady(microbatches: Any, ranks: Any) -> Any:
    """Return after how many microbatches a schedule without flush has shown its steady state: whole steps.

    Its order comes again after a whole number of steps that is one of turns of the ranks too. Arrays broadcast.
    """
    each = np.maximum(1, microbatches)
    period = np.lcm(each, ranks)
    return each * np.maximum(3 + 2 * period // each, -(-2 * (period + ranks + 1) // each))
