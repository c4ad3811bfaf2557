"""What the simulator says of a plan before it is executed."""

from dataclasses import dataclass, replace

import numpy as np

from calibration.execute.limits import Device, executable
from sim.costs.inputs import GRADIENT_BYTES
from sim.costs.stage import backward_seconds, forward_seconds
from sim.engine.step import simulate
from sim.specs import Cluster, Model, PlacedPlan, Plan
from sim.specs.catalog import precision


@dataclass(frozen=True)
class Predicted:
    """Seconds of what is measured with their 80 % interval; of whole steps bytes of every data-parallel rank."""

    step_time_s: float
    interval_s: tuple[float, float]
    peak_memory_bytes: tuple[float, ...] = ()
    bytes_sent: tuple[float, ...] = ()


def predict(model: Model, cluster: Cluster, plan: Plan, device: Device = "cpu") -> Predicted:
    """Return the prediction of one whole training step.

    Raises:
        InputError: the plan breaks a rule on this model and cluster, or cannot be executed here.
    """
    placed = executable(model, cluster, plan, device)
    step = simulate(model, cluster, plan)
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
    executable(one, cluster, plan, device)
    step = simulate(one, cluster, plan)
    costs = step.costs
    hosts = costs["forward_host"] + costs["backward_host"]
    seconds = float(np.sum(forward_seconds(costs) + backward_seconds(costs) + hosts))
    return Predicted(seconds, step.profile.interval80(seconds, step.sigma_log))


def bytes_sent(model: Model, placed: PlacedPlan) -> float:
    """Return the bytes that one rank sends in a step: a ring's (n - 1)/n of a buffer for each way through it.

    ZeRO-0 all-reduces the gradients (two ways), ZeRO-1 reduce-scatters them and gathers the weights (one way each):
    arXiv 1910.02054, section 7. What is split in parts is filled up to a multiple of the ranks.
    """
    plan, n = placed.plan, placed.dp
    gradient, weight = GRADIENT_BYTES[plan.gradient_dtype], precision(plan.precision).activation_bytes.value
    padded = -(-model.parameters // n) * n
    moved = padded * (gradient + weight) if plan.zero else 2 * gradient * model.parameters
    return moved * (n - 1) / n
