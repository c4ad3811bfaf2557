"""Blocks and training steps of a session, which no fit has seen, beside what the profile fitted to its kernels says."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.execute.holdout import cluster_of
from calibration.execute.limits import Device, as_executed, executed_level
from calibration.execute.predict import predict, predict_block
from calibration.kernels.whole import model_of
from sim.costs import kernels
from sim.costs.inputs import accumulate_bytes
from sim.costs.profile import load_profile
from sim.specs import Cluster, Model, Plan

TABLE = 2
"""Tokens that a block's model has, which has neither table nor head."""

PREDICT = {"block": predict_block, "step": predict}


@dataclass(frozen=True)
class Whole:
    """Seconds of a block, forward and backward, or of a whole step: predicted, its 80 % interval, and measured."""

    name: str
    predicted_s: float
    interval_s: tuple[float, float]
    measured_s: float

    @property
    def error(self) -> float:
        """Predicted over measured time, less 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.interval_s[0] <= self.measured_s <= self.interval_s[1]


def wholes(folder: Path, rows: Iterable[Mapping[str, Any]], device: Device) -> Iterator[Whole]:
    """Yield the blocks and steps among a session's samples with the predictions of the profile in `folder`.

    Raises:
        InputError: the folder's profile or device file cannot be read.
    """
    cluster = cluster_of(folder, device, 1)
    for row in rows:
        if row["use"] != "whole" or row["op"] not in PREDICT:
            continue
        shape, size = row["shape"], int(row["shape"]["micro_batch"])
        plan = Plan(
            dp=1,
            global_batch=size,
            micro_batch=size,
            precision="fp32" if device == "cpu" else "bf16",
            overlap_dp=False,
        )
        model = model_of(shape, row["implementation"])
        found = PREDICT[row["op"]](model, cluster, as_executed(plan), device)
        summed_s = _summing_s(model, cluster, as_executed(plan))
        name = f"{row['op']} h{model.hidden} s{model.seq} b{size} {row['implementation']}"
        name += f" l{model.layers} v{model.vocab}" if row["op"] == "step" else ""
        low, high = (seconds - summed_s for seconds in found.interval_s)
        yield Whole(name, found.step_time_s - summed_s, (low, high), float(row["t_s"]))


def _summing_s(model: Model, cluster: Cluster, plan: Plan) -> float:
    """Return the seconds in which a plan adds a microbatch's gradients to their sum: the samples' first ones are it.

    In fp32 those of the tables too, where there is a head.
    """
    tables = model.embedding_parameters if plan.precision == "fp32" and model.vocab > TABLE else 0
    parameters = sum(block.parameters for block in model.blocks) + tables
    bandwidth = load_profile(cluster.profile).values[kernels.parameter("elementwise", "any", "bandwidth")]
    slower = executed_level(cluster).parameters.memory_bound_slowdown
    return slower * accumulate_bytes(plan) * parameters / bandwidth
