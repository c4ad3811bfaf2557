"""Which kernels a step really uses: their sizes, and the share of its compute time that each family takes.

Nothing here is a second copy of a formula. The layers are asked once what kernels they call, and shares are
sensitivities of the compiled stage model: every form is homogeneous, so that rates divided and its seconds (the
floor, and what waits in turn) multiplied by 1 + h makes the kernel's time 1 + h times as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sim.costs import kernels, memory
from sim.costs.algebra import Compiled, Interpreted
from sim.costs.layers import ends
from sim.costs.layers.block import block, repeats
from sim.costs.layers.structure import Structure
from sim.costs.stage import states

STEP = 1e-4
RATES = ("rate", "bandwidth")
TIMES = ("t0", "odd_t0", "even_t0", "few_t0", "cold", "serial", "row_serial", "column_serial")
Key = tuple[str, str]


@dataclass(frozen=True)
class Used:
    """A kernel at one shape; `share`: of the step's compute time (those of a kernel's shapes add up to its own)."""

    op: str
    direction: str
    share: float
    inputs: Mapping[str, float]

    @property
    def size(self) -> float:
        """FLOP, or bytes where memory bounds the kernel."""
        return float(kernels.size_of(self.inputs))


@lru_cache
def _calls(structure: Structure) -> tuple[tuple[kernels.Call, ...], tuple[int, ...], Interpreted]:
    """Return the kernels of every layer, both ends and the optimizer, with their inputs and times as expressions.

    Of the first ones also the kind of layer that calls them.
    """
    kinds: list[int] = []
    again = [repeats(kind, k) for k, kind in enumerate(structure.kinds)]
    with kernels.listening() as heard:
        for k, kind in enumerate(structure.kinds):
            block(kind, k)
            kinds += [k] * (len(heard) - len(kinds))
        ends.embedding(structure)
        ends.head(structure)
        states(structure)
    calls = tuple(heard)  # asking for their times below would be heard too
    expressions = {f"{i} {name}": e for i, call in enumerate(calls) for name, e in call.inputs.items()}
    often = [c.times for c in calls]
    for i, k in enumerate(kinds):
        if calls[i].part.phase == "forward":
            often[i] *= 1 + memory.repeated * again[k](calls[i].part)
    times = {
        f"{i}": n * kernels.seconds(c.op, c.direction, **c.inputs)
        for i, (n, c) in enumerate(zip(often, calls, strict=True))
    }
    return calls, tuple(kinds), Interpreted(expressions | times)


def compute_seconds(costs: Mapping[str, Any], microbatches: float, ranks: int, updates: float = 1) -> float:
    """Return the mean compute time of a pipeline rank in one step, recompute and its optimizer's updates included."""
    a_microbatch = sum(
        float(np.sum(v)) for name, v in costs.items() if name.endswith("_compute") or name == "recompute"
    )
    update = costs["optimizer_only"] if ranks == 1 else costs["optimizer_middle"]
    return microbatches * a_microbatch / ranks + updates * float(np.mean(update))


def _busy_seconds(model: Compiled, values: Mapping[str, Any], updates: float) -> float:
    """Return `compute_seconds` with what a device waits for its host."""
    costs, microbatches, ranks = model(values), values["microbatches"], int(values["pp"])
    # Only the last chunk has the head, whose costs stand beside every chunk.
    waiting = float(np.sum(costs["forward_host"] + costs["backward_host"]) + np.ravel(costs["head_backward_host"])[-1])
    return compute_seconds(costs, microbatches, ranks, updates) + float(microbatches * waiting / ranks)


def issue_share(model: Compiled, values: Mapping[str, Any], updates: float = 1) -> float:
    """Return how a step's compute time grows with what hosts take to issue kernels: 0 where nothing waits for them, 1
    where all does; more where they also issue collectives that it waits for. `updates`: of a rank's weights a step."""
    slower = {name: values[name] * (1 + STEP) for name in model.symbols if name.endswith("issue_s")}
    waits, base = (_busy_seconds(model, {**values, **changed}, updates) for changed in (slower, {}))
    return (waits / base - 1) / STEP


def shares(model: Compiled, values: Mapping[str, Any], updates: float = 1) -> dict[Key, float]:
    """Return each kernel's share of a step's compute time; `values` are all symbols of the stage model.

    A kernel that is done before its host has issued the next has none.
    """
    base, found = _busy_seconds(model, values, updates), {}
    for key in (*kernels.KERNELS, *kernels.FALLBACK):
        names = kernels.form_of(*key).names
        held = {n: kernels.parameter(*key, n) for n in (*RATES, *TIMES) if n in names}
        if not any(name in model.symbols for name in held.values()):
            continue
        slower = {s: values[s] * (1 + STEP if n in TIMES else 1 / (1 + STEP)) for n, s in held.items()}
        found[key] = (_busy_seconds(model, {**values, **slower}, updates) / base - 1) / STEP
    return found


def used(structure: Structure, model: Compiled, values: Mapping[str, Any], updates: float = 1) -> tuple[Used, ...]:
    """Return the kernels of a step with their shapes; the share of each shape is that of its time in all layers."""
    calls, kinds, expressions = _calls(structure)
    out = expressions(values)
    by_kernel = shares(model, values, updates)
    layers = [float(np.sum(values[f"layers_{k}"])) for k in kinds] + [1.0] * (len(calls) - len(kinds))
    times = [n * float(np.mean(out[f"{i}"])) for i, n in enumerate(layers)]
    inputs = [{name: float(np.mean(out[f"{i} {name}"])) for name in call.inputs} for i, call in enumerate(calls)]
    sizes = [[x for name, x in each.items() if name not in kernels.NARROW_ROWS] for each in inputs]
    real = [i for i, time in enumerate(times) if time > 0 and all(sizes[i])]
    keys = [(call.op, call.direction) for call in calls]
    whole: dict[Key, float] = {}
    for i in real:
        whole[keys[i]] = whole.get(keys[i], 0.0) + times[i]
    return tuple(Used(*keys[i], by_kernel.get(keys[i], 0.0) * times[i] / whole[keys[i]], inputs[i]) for i in real)
