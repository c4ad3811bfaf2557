"""How the time of a step follows from the numbers behind it: evaluated again with others, and differentiated.

The compiled path engine takes the longest of many paths. At the longest one the derivative is the sum of the
derivatives of what lies on it (envelope theorem), so that rates of costs become a rate of the step, whatever the
schedule.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs import offload, stage
from sim.costs.algebra import Compiled, Interpreted, Values, derivative, symbol
from sim.costs.layers.structure import Structure
from sim.engine.assembly import (
    Costs,
    action_seconds,
    delayed_seconds,
    durations,
    hidden_seconds,
    longer_seconds,
    pace,
    step_schedule,
)
from sim.engine.critical import CriticalPath, Spent, path_to
from sim.engine.graph import graph_of
from sim.engine.path import run_path
from sim.engine.placed import beside_longest, slowest
from sim.engine.steady import window
from sim.engine.step import Step
from sim.engine.timeline import Timeline
from sim.schedules import SCHEDULES, Kind
from sim.specs import Cluster

Floats = NDArray[np.float64]
Along = Callable[[str], str | None]
"""Symbol name -> the name of the direction that it grows along in proportion to itself, or None."""


def times_with(step: Step, factors: Mapping[str, Floats]) -> Floats:
    """Return the seconds of a step, [n], on the path engine with symbols of its costs times `factors`, each [n].

    The order of a searched schedule stays as it is; what waiting for the slowest device adds stays in proportion.
    """
    schedule = step_schedule(step.placed, step.costs)

    def ticks(costs: Costs) -> int:
        timeline = run_path(schedule, durations(schedule, costs))
        flushes = not SCHEDULES[schedule.name].asynchronous
        return timeline.period if flushes else pace(timeline, step.placed.microbatches).ticks

    found = np.array([ticks(costs) for costs in _costs_with(step, factors)], dtype=float)
    return step.step_time_s * found / ticks(step.costs)


def _costs_with(step: Step, factors: Mapping[str, Floats]) -> Iterator[Costs]:
    """Yield the costs with each set of factors, evaluated together where one device and one plan make them."""

    models = MODELS | {"offload": offload.offload_costs(bool(step.plan.stages))}

    def scaled(by: Mapping[str, Any]) -> Costs:
        return _costs(step, step.cluster, lambda kind, structure: _Scaled(models[kind](structure), by))

    sets = range(len(next(iter(factors.values()))))
    if len(step.cluster.members) > 1:
        yield from (scaled({k: float(v[i]) for k, v in factors.items()}) for i in sets)
        return
    table = {k: np.asarray(v) for k, v in scaled({k: v[:, None] for k, v in factors.items()}).items()}
    for i in sets:
        yield {k: v if v.ndim < 2 else v[i, 0] if v.shape[1] == 1 else v[i] for k, v in table.items()}


@dataclass(frozen=True)
class _Scaled:
    """A cost model that is evaluated with some symbols times a factor."""

    model: Compiled | Interpreted
    factors: Mapping[str, Any]

    def __call__(self, values: Values) -> dict[str, Any]:
        return self.model({**values, **{k: values[k] * f for k, f in self.factors.items() if k in values}})


def _costs(step: Step, cluster: Cluster, model: Callable[[str, Structure], Callable[[Values], Any]]) -> dict[str, Any]:
    """Return what `simulate` computes as the costs of the step's plan, with other models in place of its own."""
    costs: dict[str, Any] = {}
    for kind in models_of(step):
        costs |= slowest(step.model, cluster, step.placed, step.level, partial(model, kind))
    return costs


def models_of(step: Step) -> tuple[str, ...]:
    """Return which of `MODELS` make the costs of a step: copies to and from host memory only where there are any."""
    return tuple(MODELS) if step.plan.offloads else ("stage",)


def log_rates(step: Step, along: Along, names: Sequence[str]) -> dict[str, float]:
    """Return d log(step time) / d log of each direction `names`, by the critical path of the path engine."""
    schedule = step_schedule(step.placed, step.costs)
    paths = _deciding(run_path(schedule, durations(schedule, step.costs)))

    graph = graph_of(schedule)

    def on_path(costs: Costs, hidden: Floats, delayed: Floats) -> float:
        longer, aside = (each if len(each) else np.zeros(len(graph)) for each in longer_seconds(schedule, costs))
        whole = longer + aside
        whole[graph.pairs[1]] -= hidden
        whole += delayed if len(delayed) else 0
        return sum(sign * _seconds(path, whole, aside, *action_seconds(schedule, costs)) for sign, path in paths)

    def rate(name: str) -> float:
        rates = cost_rates(step, along, {n: float(n == name) for n in names})
        return on_path(rates, *(each(schedule, step.costs, rates) for each in (hidden_seconds, delayed_seconds)))

    whole = on_path(step.costs, *(each(schedule, step.costs) for each in (hidden_seconds, delayed_seconds)))
    return {name: rate(name) / whole for name in names}


def cost_rates(step: Step, along: Along, direction: Mapping[str, float]) -> dict[str, Any]:
    """Return how fast each of the step's costs grows along `direction` (an amount for every name that `along` gives).

    On a mixed cluster those of the device count whose costs are the step's, as it is the slowest.
    """
    given = {f"dlog_{name}": amount for name, amount in direction.items()}
    members = step.cluster.members
    each = [_costs(step, m, lambda kind, s: _Directed(_rates(s, kind, along), given)) for m in members]
    if len(members) == 1:
        return each[0]
    timed = [_costs(step, m, lambda kind, s: MODELS[kind](s)) for m in members]
    costs, each = (beside_longest(those, step.cluster, step.placed, timed) for those in (timed, each))
    same = [{k: np.isclose(c[k], step.costs[k], rtol=1e-12, atol=0) * 1.0 for k in c} for c in costs]
    return {k: sum(w[k] * r[k] for w, r in zip(same, each, strict=True)) / sum(w[k] for w in same) for k in each[0]}


MODELS: dict[str, Callable[[Structure], Compiled]] = {
    "stage": stage.stage_model,
    "offload": offload.offload_walked,
}


@dataclass(frozen=True)
class _Chained:
    """Rates of expressions over parts, by the chain rule: written out, the parts would stand in them many times."""

    parts: Interpreted
    moving: Interpreted
    outer: Interpreted

    def __call__(self, values: Values) -> dict[str, Any]:
        held = {offload.part_name(name): value for name, value in self.parts(values).items()}
        rates = {_moving(name): value for name, value in self.moving(values).items()}
        return self.outer({**values, **held, **rates})


def _moving(part: str) -> str:
    return f"rate_of_{offload.part_name(part)}"


@lru_cache(maxsize=16)
def _rates(structure: Structure, kind: str, along: Along) -> Interpreted | _Chained:
    """Return the rates of a cost model's outputs, walked: a look at one plan is not worth ten seconds' compiling."""
    named = ((name, along(name)) for name in MODELS[kind](structure).symbols)
    seeds = {name: symbol(name) * symbol(f"dlog_{direction}") for name, direction in named if direction}
    if kind == "stage":
        return Interpreted(derivative(stage.expressions(structure), seeds))
    parts = offload.parts(structure)
    inner = {offload.part_name(name): symbol(_moving(name)) for name in parts}
    outer = derivative(offload.outputs(tuple(parts)), seeds | inner)
    return _Chained(Interpreted(parts), Interpreted(derivative(parts, seeds)), Interpreted(outer))


@dataclass(frozen=True)
class _Directed:
    """The rates of a cost model along one direction."""

    rates: Interpreted | _Chained
    direction: Mapping[str, float]

    def __call__(self, values: Values) -> dict[str, Any]:
        return self.rates({**values, **self.direction})


def _deciding(timeline: Timeline) -> list[tuple[float, CriticalPath]]:
    """Return signed paths whose lengths add up to the time of a step, or to a multiple of it.

    With a barrier the critical path. Without, the path to the last end of the rank with the longest span less that to
    its first start; without flush the paths to both ends of the steady state.
    """
    run, schedule = timeline.run, timeline.schedule
    if SCHEDULES[schedule.name].asynchronous:
        before, last, _ = window(timeline)
        return [(1.0, path_to(run, last)), (-1.0, path_to(run, before))]
    if schedule.barrier:
        return [(1.0, path_to(run, int(run.end.argmax())))]
    own = np.flatnonzero(timeline.graph.rank == timeline.decides())
    first, last = int(own[run.start[own].argmin()]), int(own[run.end[own].argmax()])
    until = path_to(run, first).segments
    return [(1.0, path_to(run, last)), (-1.0, CriticalPath(tuple(s for s in until if s.operation != first)))]


def _seconds(
    path: CriticalPath, longer: Floats, aside: Floats, table: Mapping[Kind, Any], message: Any, back: Any
) -> float:
    """Return the sum over a path of a quantity that is given by kind and stage, and for messages by boundary: there
    and back; and of what single operations have more (`longer`), of a fused pair the second half, of which messages do
    not wait for what is `aside`."""
    total = 0.0
    for s in path.segments:
        _, kind, _ = s.action
        at = s.action.stage
        if s.spent is not Spent.MESSAGE and s.ticks >= 0:
            total += table[kind][at] + longer[s.operation]
        else:
            total += (message[at + 1] if kind is Kind.F else back[at]) - aside[s.operation]
    return float(total)
