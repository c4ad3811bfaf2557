"""What uncertain throughputs mean for a schedule: the same jobs where the true speeds are others than predicted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from sim.cluster.jobs import ClusterJob
from sim.cluster.policies.base import Policy
from sim.cluster.results import Simulated
from sim.cluster.simulate import Rounds, simulate
from sim.cluster.throughputs import Throughputs
from sim.costs.fitted import Z80
from sim.specs.fields import InputError


@dataclass(frozen=True)
class Sensitivity:
    """What was expected, and the central 80 % of what came of drawn speeds."""

    makespan_s: float
    average_jct_s: float
    makespan_interval_s: tuple[float, float]
    average_jct_interval_s: tuple[float, float]
    draws: int


def drawn(throughputs: Throughputs, random: np.random.Generator) -> Throughputs:
    """Return throughputs drawn from their intervals: log-normal, each kind of job on each type by itself."""
    found = dict(throughputs.alone)
    for kind, (low, high) in throughputs.interval.items():
        wide = [log(b / a) / (2 * Z80) if a > 0 else 0.0 for a, b in zip(low, high, strict=True)]
        found[kind] = throughputs.alone[kind] * np.exp(random.normal(0.0, wide))
    return replace(throughputs, alone=found, interval={})


def sensitivity(
    jobs: Sequence[ClusterJob],
    throughputs: Throughputs,
    devices: Mapping[str, int],
    policy: Callable[[], Policy],
    rounds: Rounds | None = None,
    *,
    switch_s: Mapping[str, float] | None = None,
    usd_per_hour: Mapping[str, float] | None = None,
    entity_weights: Mapping[str, float] | None = None,
    draws: int = 20,
    seed: int = 0,
) -> Sensitivity:
    """Return how far makespan and completion times move when true speeds are drawn from the throughputs' intervals.

    The policy, made anew for every run, goes on believing the throughputs; deadlines and shares are by these. The other
    arguments are those of `simulate`.

    Raises:
        InputError: the throughputs have no intervals, or there are no draws.
    """
    if not throughputs.interval:
        raise InputError("throughputs.interval", None, "predicted throughputs: measured ones have none")
    if draws < 1:
        raise InputError("draws", draws, "1 or more")
    random = np.random.default_rng(seed)

    def run(true: Throughputs, believed: Throughputs | None = None) -> Simulated:
        return simulate(
            jobs, true, devices, policy(), rounds, believed=believed, switch_s=switch_s, usd_per_hour=usd_per_hour,
            entity_weights=entity_weights, seed=seed,
        )  # fmt: skip

    expected = run(throughputs)
    runs = [run(drawn(throughputs, random), throughputs) for _ in range(draws)]
    ends, means = [run.makespan_s for run in runs], [run.average_jct_s for run in runs]
    return Sensitivity(expected.makespan_s, expected.average_jct_s, _middle(ends), _middle(means), draws)


def _middle(values: list[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.1, 0.9])
    return float(low), float(high)
