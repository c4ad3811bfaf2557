"""What the simulator says of a plan before it is executed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from calibration.execute.limits import Device, executable
from sim.costs.inputs import GRADIENT_BYTES
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import RunLevel, RunLevelSet
from sim.costs.stage import backward_seconds, forward_seconds
from sim.engine.step import Step, simulate, slowest
from sim.specs import Cluster, Model, PlacedPlan, Plan

WEIGHT_BYTES: Mapping[str, float] = {"fp32": 4.0, "bf16": 2.0}


@dataclass(frozen=True)
class Predicted:
    """Seconds of what is measured with their 80 % interval; of whole steps bytes of every data-parallel rank."""

    step_time_s: float
    interval_s: tuple[float, float]
    peak_memory_bytes: tuple[float, ...] = ()
    bytes_sent: tuple[float, ...] = ()


def kernels_alone(profile: Profile) -> RunLevelSet:
    """Return the run level of a device that was calibrated itself: its kernels and nothing else.

    The shipped parameters say what runs on GPU clusters add; they mean nothing on another machine's own profile.
    """
    return RunLevelSet(
        parameters=RunLevel(),
        sigma_log=profile.kernel_sigma_log,
        devices=(profile.name,),
        source="kernels of the calibrated device alone",
    )


def simulated(model: Model, cluster: Cluster, plan: Plan) -> Step:
    """Return the simulated step on the profile of the cluster, without what GPU clusters add to it."""
    return simulate(model, cluster, plan, level=kernels_alone(load_profile(cluster.profile)))


def predict(model: Model, cluster: Cluster, plan: Plan, device: Device = "cpu") -> Predicted:
    """Return the prediction of one whole training step.

    Raises:
        InputError: the plan breaks a rule on this model and cluster, or cannot be executed here.
    """
    placed = executable(model, cluster, plan, device)
    step = simulated(model, cluster, plan)
    each = placed.dp
    return Predicted(
        step.step_time_s,
        step.step_time_interval_s,
        (step.peak_memory_bytes,) * each,
        (bytes_sent(model, placed),) * each,
    )


def predict_block(model: Model, cluster: Cluster, plan: Plan, device: Device = "cpu") -> Predicted:
    """Return the prediction of forward and backward of one layer on one microbatch."""
    one = replace(model, layers=1, pattern="T")
    placed = executable(one, cluster, plan, device)
    profile = load_profile(cluster.profile)
    level = kernels_alone(profile)
    costs = slowest(one, cluster, placed, level)
    hosts = costs["forward_host"] + costs["backward_host"]
    seconds = float(np.sum(forward_seconds(costs) + backward_seconds(costs) + hosts))
    return Predicted(seconds, profile.interval80(seconds, level.sigma_log))


def bytes_sent(model: Model, placed: PlacedPlan) -> float:
    """Return the bytes that one rank sends in a step: a ring's (n - 1)/n of a buffer for each way through it.

    ZeRO-0 all-reduces the gradients (two ways), ZeRO-1 reduce-scatters them and gathers the weights (one way each):
    arXiv 1910.02054, section 7. What is split in parts is filled up to a multiple of the ranks.
    """
    plan, n = placed.plan, placed.dp
    gradient, weight = GRADIENT_BYTES[plan.gradient_dtype], WEIGHT_BYTES[plan.precision]
    padded = -(-model.parameters // n) * n
    moved = padded * (gradient + weight) if plan.zero else 2 * gradient * model.parameters
    return moved * (n - 1) / n
