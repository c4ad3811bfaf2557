"""The compute operations of one microbatch as numbers: what each takes, computes and moves in the stage model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sim.costs.algebra import Interpreted, symbol
from sim.costs.layers import ends
from sim.costs.layers.block import block
from sim.costs.layers.ops import PHASE_OF, Op
from sim.costs.layers.structure import Structure

PARTS = ("seconds", "flop", "bytes", "launches")
RATES = {symbol(f"rate_{direction}") for direction in PHASE_OF}
"""What a precision's recipe makes of a device's rate (`sim.costs.kernels.product_seconds`)."""


@dataclass(frozen=True)
class Operation:
    """A kernel of one layer, or of an end of the model, for one microbatch on one device.

    phase: forward, backward_input or backward_weight; flop: 0 where memory bounds it; bytes: read and written;
    launches: how many times it runs, all of them together here; count: the layers of the whole model that have it;
    by_recipe: whether it runs at the rate of the plan's precision, which leaves attention and the head at 16 bit.
    """

    name: str
    phase: str
    seconds: float
    flop: float
    bytes: float
    launches: float
    count: int
    by_recipe: bool


@lru_cache
def _compute(structure: Structure) -> tuple[tuple[tuple[Op, int | None], ...], Interpreted]:
    """Return the operations with their kind of layer (None: an end), and what they take as expressions."""
    kinds = [(op, k) for k, kind in enumerate(structure.kinds) for op in block(kind, k)]
    found = [*kinds, *((op, None) for op in (*ends.embedding(structure), *ends.head(structure)))]
    kept = tuple((op, kind) for op, kind in found if op.kind == "compute")
    parts = {f"{i} {part}": getattr(op, part) for i, (op, _) in enumerate(kept) for part in PARTS}
    return kept, Interpreted(parts)


def operations(structure: Structure, layers: tuple[int, ...], values: Mapping[str, Any]) -> tuple[Operation, ...]:
    """Return what runs in a forward and a backward pass, without recompute, optimizer and collectives.

    layers: how many there are of each kind; `values` are all symbols of the stage model.
    """
    kept, expressions = _compute(structure)
    out = expressions(values)
    made = []
    for i, (op, kind) in enumerate(kept):
        seconds, flop, size, launches = (float(np.mean(out[f"{i} {part}"])) for part in PARTS)
        count = 1 if kind is None else layers[kind]
        by_recipe = not RATES.isdisjoint(op.seconds.free_symbols)
        made.append(Operation(op.name, op.phase, seconds, flop, size, launches, count, by_recipe))
    return tuple(one for one in made if one.seconds > 0 and one.bytes > 0)
