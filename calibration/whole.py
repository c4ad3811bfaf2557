"""Blocks and training steps of a session, which no fit has seen, beside what the profile fitted to its kernels says."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.execute.holdout import cluster_of
from calibration.execute.limits import Device, as_executed
from calibration.execute.predict import predict, predict_block
from calibration.kernels.whole import model_of
from sim.specs import Plan

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
        name = f"{row['op']} h{model.hidden} s{model.seq} b{size} {row['implementation']}"
        name += f" l{model.layers} v{model.vocab}" if row["op"] == "step" else ""
        yield Whole(name, found.step_time_s, found.interval_s, float(row["t_s"]))
