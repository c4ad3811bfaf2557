"""How often a run fails, and how long it then stands still or trains on fewer devices."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.checkpointing.laws import between_restarts
from sim.engine.step import Step
from sim.specs import Failures, InputError

Floats = NDArray[np.float64]

RAREST = 1e-9
"""Share of the time that is none."""
ENDLESS = 600.0
"""Failures in the time of one restart with which none comes to its end."""


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


class Phase(NamedTuple):
    """A share of a run's time, of all replicas the share that then trains, and how often, in a second of training, so
    many nodes are back that more could."""

    time: float
    replicas: float
    regrowths_per_s: float


@dataclass(frozen=True)
class Availability:
    """Of a run's time in the long run.

    `fraction` is what it would train of what all replicas do, were nothing else lost: `stopped_fraction` of the time
    none trains for want of nodes; with elastic runs fewer do at times, and `regrown_fraction` of the time goes to
    restarts when nodes are back. `mean_broken`: nodes that are away. `phases`: when any trains.
    """

    fraction: float
    stopped_fraction: float
    regrown_fraction: float
    mean_broken: float
    phases: tuple[Phase, ...] = (Phase(1.0, 1.0, 0.0),)


def availability(failures: Failures, mtbf_s: float, fleet: Fleet | None = None, restart_s: float = 0.0) -> Availability:
    """Return how much of the time a run has its nodes.

    Every failure takes a node away for `repair_s`; what stands still does not fail. The chain of the number of nodes
    that are away (births by failures, deaths by repairs) has its distribution in closed form, whatever that of repair
    times is: without elasticity the run stops as often as Erlang's loss formula says for `spares` + 1 repairs at once.
    restart_s: what it takes to go on with fewer replicas, and again with more; nodes that are back by then are missed
    by nobody. That others come back so long after a failure, and not at random, is left out: goodput is within 3 % of
    the simulated one where a run fails ten times as seldom as it takes to restart, within 10 % where it fails as often,
    and up to 20 % off where repairs, too, are as short as that.
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
    held = weight @ shares
    grows = np.zeros(len(shares))
    if failures.repair_s > restart_s:
        missed = (shares[1:] < shares[:-1]) & (shares[1:] > 0)
        grows[1:][missed] = np.flatnonzero(missed) + 1
        grows /= failures.repair_s
    regrown = _regrown(weight, shares, grows, mtbf_s, restart_s)
    every = zip(weight.tolist(), shares.tolist(), grows.tolist(), strict=True)
    return Availability(
        fraction=float(held - regrown @ shares),
        stopped_fraction=float(weight[shares == 0].sum()),
        regrown_fraction=float(regrown.sum()),
        mean_broken=float(weight @ np.arange(len(shares))),
        phases=_phases(Phase(*one) for one in every),
    )


def _regrown(weight: Floats, shares: Floats, grows: Floats, mtbf_s: float, restart_s: float) -> Floats:
    """Return the share of the time, by nodes that are away, that goes to restarts since one more was."""
    if not grows.any():
        return np.zeros(len(shares))
    with np.errstate(divide="ignore", over="ignore"):
        means = mtbf_s / shares
        at: dict[str, Any] = {
            "mtbf_s": means[1:-1],
            "restart_s": restart_s,
            "reload_s": 0.0,
            "regrowths_per_s": grows[1:-1],
        }
        often = weight[1:-1] * between_restarts()(at)["training"] * grows[1:-1]
        # Until training goes on: a restart that fails begins anew.
        lasting = means[:-2] * np.expm1(np.minimum(restart_s / means[:-2], ENDLESS))
    return np.append(np.minimum(often * lasting, weight[:-2]), [0.0, 0.0])


def _phases(every: Iterable[Phase]) -> tuple[Phase, ...]:
    """Return what differs in more than its time, without what hardly ever is."""
    times: dict[tuple[float, float], float] = {}
    for time, replicas, often in every:
        if replicas and time > RAREST:
            times[replicas, often] = times.get((replicas, often), 0.0) + time
    return tuple(Phase(time, *kind) for kind, time in times.items())


def _shares(failures: Failures, fleet: Fleet) -> np.ndarray:
    """Return the share of replicas that train by nodes that are away, up to the number with which none does."""
    found = []
    for broken in range(failures.spares + fleet.nodes + 1):
        found.append(fleet.left(broken, failures) / fleet.replicas)
        if found[-1] == 0:
            break
    return np.array(found)
