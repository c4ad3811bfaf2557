"""What the simulator says of a plan before it is executed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sim.costs.inputs import GRADIENT_BYTES
from sim.costs.profile import Profile, load_profile
from sim.costs.run_level import RunLevel, RunLevelSet
from sim.costs.stage import backward_seconds, forward_seconds
from sim.engine.step import Step, simulate, slowest
from sim.specs import Cluster, InputError, Model, PlacedPlan, Plan

Device = Literal["cpu", "cuda"]
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


def as_executed(plan: Plan) -> Plan:
    """Return the plan with what PyTorch itself does where frameworks differ: sums of gradients and the loss."""
    return plan.but(framework="torch", cross_entropy="autograd", fused_wgrad=False)


ONES = ("tp", "pp", "cp", "ep", "etp", "virtual_stages")
MOST_RANKS: Mapping[Device, int] = {"cpu": 2, "cuda": 1}


def executable(model: Model, cluster: Cluster, plan: Plan, device: Device = "cpu") -> PlacedPlan:
    """Return the placed plan if this machine's `device` can execute it as the simulator means it.

    Raises:
        InputError: with the first thing that it cannot.
    """
    placed = plan.on(model, cluster)
    for name in ONES:
        if getattr(plan, name) != 1:
            raise InputError(f"plan.{name}", getattr(plan, name), "1 in what is executed")
    most = MOST_RANKS[device]
    if placed.dp > most:
        raise InputError("plan.dp", placed.dp, f"1 to {most} on {device} in what is executed")
    wanted: dict[str, tuple[object, ...]] = {
        "zero": (0, 1),
        "recompute": ("none",),
        "precision": ("fp32",) if device == "cpu" else ("fp32", "bf16"),
        "gradient_dtype": ("fp32",),
        "schedule": ("none",),
        "compiled": (False,),
    }
    for name, allowed in wanted.items():
        if getattr(plan, name) not in allowed:
            text = " or ".join(map(str, allowed))
            raise InputError(f"plan.{name}", getattr(plan, name), f"{text} in what is executed")
    if plan.offload.used:
        raise InputError("plan.offload", "some", "none in what is executed")
    if plan.zero and plan.overlap_dp and placed.dp > 1:
        raise InputError("plan.overlap_dp", True, "false with zero 1 in what is executed")
    return placed
