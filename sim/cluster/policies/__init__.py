"""Scheduling policies by name (arXiv 2008.09213), one a file; a line in `POLICIES` adds one."""

from collections.abc import Mapping

from sim.cluster.policies.allox import AlloX
from sim.cluster.policies.base import Policy
from sim.cluster.policies.fifo import Fifo, FifoPacked, FifoPerf
from sim.cluster.policies.finish_time_fairness import (
    FinishTimeFairness,
    FinishTimeFairnessPacked,
    FinishTimeFairnessPerf,
)
from sim.cluster.policies.gandiva import Gandiva
from sim.cluster.policies.hierarchical import Hierarchical, HierarchicalAgnostic
from sim.cluster.policies.isolated import Isolated
from sim.cluster.policies.max_min_fairness import MaxMinFairness, MaxMinFairnessPacked, MaxMinFairnessPerf
from sim.cluster.policies.max_sum_throughput import (
    MaxSumThroughputByCostPackedSLOs,
    MaxSumThroughputByCostPerf,
    MaxSumThroughputByCostPerfSLOs,
    MaxSumThroughputPerf,
)
from sim.cluster.policies.min_total_duration import MinTotalDuration, MinTotalDurationPacked, MinTotalDurationPerf
from sim.cluster.policies.water_filling import WaterFilling, WaterFillingPacked, WaterFillingPerf
from sim.specs.fields import InputError

_ALL: tuple[type[Policy], ...] = (
    AlloX,
    Fifo,
    FifoPacked,
    FifoPerf,
    FinishTimeFairness,
    FinishTimeFairnessPacked,
    FinishTimeFairnessPerf,
    Gandiva,
    Hierarchical,
    HierarchicalAgnostic,
    Isolated,
    MaxMinFairness,
    MaxMinFairnessPacked,
    MaxMinFairnessPerf,
    MaxSumThroughputByCostPackedSLOs,
    MaxSumThroughputByCostPerf,
    MaxSumThroughputByCostPerfSLOs,
    MaxSumThroughputPerf,
    MinTotalDuration,
    MinTotalDurationPacked,
    MinTotalDurationPerf,
    WaterFilling,
    WaterFillingPacked,
    WaterFillingPerf,
)
POLICIES: Mapping[str, type[Policy]] = {kind.name: kind for kind in _ALL}


def policy(name: str, seed: int = 0, gavel_parity: bool = False, **options: object) -> Policy:
    """Return a new policy; `options` are those of its class. Raises InputError."""
    if name not in POLICIES:
        raise InputError("policy", name, f"one of {', '.join(POLICIES)}")
    try:
        return POLICIES[name](seed, gavel_parity, **options)
    except TypeError as error:
        raise InputError(f"policy.{name}", sorted(options), "options that the policy has") from error
