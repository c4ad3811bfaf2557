"""How often a run fails, and how long it then stands still or trains on fewer devices."""

from dataclasses import dataclass
from math import inf

import numpy as np

from sim.engine.step import Step
from sim.specs import Failures, InputError


@dataclass(frozen=True)
class Fleet:
    """The nodes that a run needs, and the replicas of the model that it trains on them.

    Raises:
        InputError: a number is below 1.
    """

    nodes: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("nodes", "replicas"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "a whole number from 1")

    @classmethod
    def of(cls, step: Step) -> "Fleet":
        """Return those of a step's plan."""
        return cls(-(-step.placed.gpus // step.cluster.gpus_per_node), step.placed.dp)

    def left(self, broken: int, failures: Failures) -> int:
        """Return the replicas that train while `broken` nodes are away: all, fewer if elastic, or none.

        Nodes of a replica that is not whole stand in for others.
        """
        whole = self.nodes + failures.spares - broken
        if whole >= self.nodes:
            return self.replicas
        return max(0, whole * self.replicas // self.nodes) if failures.elastic else 0


def mtbf_s(failures: Failures, gpus: int, nodes: int) -> float:
    """Return the mean seconds between failures of a run: of devices in series, and of whole nodes beside them."""
    rate = gpus / failures.device_mtbf_s + (nodes / failures.node_mtbf_s if failures.node_mtbf_s else 0.0)
    return 1 / rate


@dataclass(frozen=True)
class Availability:
    """Of a run's time in the long run.

    `fraction` is what it would train of what all replicas do, were nothing else lost: `stopped_fraction` of the time
    none trains for want of nodes; with elastic runs fewer do at times, and `regrown_fraction` of the time goes to
    restarts when nodes are back. `mean_broken`: nodes that are away.
    """

    fraction: float
    stopped_fraction: float
    regrown_fraction: float
    mean_broken: float


def availability(failures: Failures, mtbf_s: float, fleet: Fleet | None = None, restart_s: float = 0.0) -> Availability:
    """Return how much of the time a run has its nodes.

    Every failure takes a node away for `repair_s`; what stands still does not fail. The chain of the number of nodes
    that are away (births by failures, deaths by repairs) has its distribution in closed form, whatever that of repair
    times is: without elasticity the run stops as often as Erlang's loss formula says for `spares` + 1 repairs at once.
    restart_s: what it takes to go on with fewer replicas, and again with more; nodes that are back by then are missed
    by nobody.
    """
    fleet = fleet or Fleet()
    load = failures.repair_s / mtbf_s  # nodes away in the mean, had a run any number of spares
    shares = _shares(failures, fleet)
    log_weight = np.zeros(len(shares))
    if load > 0:
        births = np.log(load * shares[:-1]) - np.log(np.arange(1, len(shares)))
        log_weight[1:] = np.cumsum(births)
    else:
        log_weight[1:] = -inf
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    shrinks = shares[1:] < shares[:-1]
    missed = shrinks & (shares[1:] > 0) & (failures.repair_s > restart_s)
    regrown = float((weight[:-1] * shares[:-1])[missed].sum()) / mtbf_s * restart_s
    return Availability(
        fraction=max(0.0, float(weight @ shares) - regrown),
        stopped_fraction=float(weight[shares == 0].sum()),
        regrown_fraction=regrown,
        mean_broken=float(weight @ np.arange(len(shares))),
    )


def _shares(failures: Failures, fleet: Fleet) -> np.ndarray:
    """Return the share of replicas that train by nodes that are away, up to the number with which none does."""
    found = []
    for broken in range(failures.spares + fleet.nodes + 1):
        found.append(fleet.left(broken, failures) / fleet.replicas)
        if found[-1] == 0:
            break
    return np.array(found)
