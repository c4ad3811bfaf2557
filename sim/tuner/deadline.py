"""How few nodes train a model in time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from sim.specs import Cluster, InputError, Model, Training
from sim.tuner.infeasible import no_plan, nothing_fits
from sim.tuner.rows import scored
from sim.tuner.score import bounds
from sim.tuner.space import Space
from sim.units import DAY_S, digits3

if TYPE_CHECKING:
    from sim.tuner.staged import StagedSearch
    from sim.tuner.tune import Tuned

ROOM = 1.02
"""How much faster the engine may run a plan than its closed form says: a size is searched, not excluded, within it."""


@dataclass(frozen=True)
class Deadline:
    """What must be done: `training` with batches of `global_batch` in `days`, on at most the nodes of `cluster`.

    Raises:
        InputError: there is no `training`, or the cluster has groups of different nodes.
    """

    model: Model
    cluster: Cluster
    global_batch: int
    training: Training | None
    days: float

    def __post_init__(self) -> None:
        if self.training is None:
            raise InputError("training", None, "required with objective gpus_for_deadline: tokens or steps")
        if self.cluster.groups:
            raise InputError("cluster.groups", self.cluster.device, "one kind of nodes for gpus_for_deadline")

    def days_of(self, step_time_s: float) -> float:
        """Return the days of the whole training when every step takes this long (as `sim.run.whole_run` counts)."""
        assert self.training
        steps = self.training.steps or ceil((self.training.tokens or 0.0) / self.tokens_per_step)
        return 1 / DAY_S * (steps / self.training.goodput * step_time_s)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one global batch."""
        return self.global_batch * self.model.tokens_per_sample

    @property
    def step_time_s(self) -> float:
        """The longest step with which the training is done in time."""
        return self.days / self.days_of(1.0)

    def met(self, days: float) -> bool:
        """Return whether so many days are few enough, but for rounding."""
        return days <= self.days * (1 + 1e-9)

    def on(self, nodes: int) -> Cluster:
        """Return the cluster cut to so many nodes."""
        return replace(self.cluster, nodes=nodes)


def fewest_nodes(
    deadline: Deadline,
    build: Callable[[Cluster], Space],
    unequal: Callable[[Space, float], "StagedSearch | None"],
    search: Callable[[Cluster], "Tuned"],
    progress: Callable[[str, int, int], None],
) -> tuple["Tuned", str]:
    """Return the best plan on the fewest whole nodes that meet the deadline by the predicted median, and why these.

    More nodes need not be faster (11 nodes may have no plan where 10 have one), so no bisection proves that fewer are
    too few. Each smaller size is excluded by itself instead: by the lower bounds of its plans where these suffice,
    by a search where they do not. What bisection would save, the bounds save: a size costs no simulation. `unequal`
    searches a space's plans of unequal stages alone, for those that take less than so many seconds.

    Raises:
        InputError: even all nodes take longer (the least days are named), or no plan fits on any number of them.
    """
    most = deadline.cluster.nodes
    near: list[tuple[float, int]] = []
    for nodes in range(1, most + 1):
        progress("nodes", nodes, most)
        space = build(deadline.on(nodes))
        least = _least_days(deadline, space)
        staged = None if deadline.met(least) else unequal(space, ROOM * deadline.step_time_s)
        if staged and staged.interrupted:  # of no size is a plan known yet
            raise KeyboardInterrupt
        if deadline.met(least) or (staged and (staged.found or not staged.certified)):
            found = search(deadline.on(nodes))
            least = deadline.days_of(found.best.step.step_time_s)
            if deadline.met(least) or found.interrupted:
                return found, _why(deadline, nodes, least, near)
        elif staged:
            least = min(least, max(deadline.days, deadline.days_of(staged.bound)))
        if np.isfinite(least):
            near.append((least, nodes))
    if not near:
        raise nothing_fits(space, scored(space)) if space.allowed.any() else no_plan(space)
    least, nodes = min(near)
    allowed = f"at least {digits3(least)} days, on {nodes} of the cluster's {counted_nodes(most)}; or more nodes"
    raise InputError("tune.deadline_days", deadline.days, allowed)


def _least_days(deadline: Deadline, space: Space) -> float:
    """Return days that no plan of the space beats, nor one that fits if this many would do; infinite without any."""
    if not space.allowed.any():
        return np.inf
    least = np.where(space.allowed, bounds(space), np.inf)
    if deadline.met(deadline.days_of(float(least.min()))):
        least = np.where(scored(space).fits, least, np.inf)
    return deadline.days_of(float(least.min()))


def _why(deadline: Deadline, nodes: int, days: float, near: list[tuple[float, int]]) -> str:
    """Return what the chosen size does and what the smaller ones lack."""
    gpus = nodes * deadline.cluster.gpus_per_node
    text = f"{counted_nodes(nodes)} ({gpus} devices) take {digits3(days)} of {digits3(deadline.days)} days"
    if nodes == 1:
        return text
    if not near:
        return f"{text}; no smaller number of whole nodes has a plan that fits"
    best, fewer = min(near)
    return f"{text}; no smaller number of whole nodes does: the fastest, {fewer}, takes at least {digits3(best)} days"


def counted_nodes(nodes: int) -> str:
    """Return a number of nodes in words: `1 node`, `12 nodes`."""
    return f"{nodes} node{'s' if nodes > 1 else ''}"
