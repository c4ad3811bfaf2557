"""Plans that were executed beside their predictions, as a file: what was said before, and what hooks then saw.

`python -m calibration.execute.evidence` writes it; nothing here has been fitted to anything.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sim.specs import Model, Plan
from sim.specs.fields import InputError, read, real, spec, whole
from sim.specs.files import load_mapping, write_atomically

MOST_PLANS = 1_000
Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
Seconds = Annotated[float, real(1e-9, 1e6, "s")]
Bytes = Annotated[float, real(0.0, 1e15, "B")]
Traffic = dict[str, list[Bytes]]
"""Of one process: messages and bytes of a step by group or link."""


@spec
class Figures:
    """What is predicted and measured of a plan: seconds, and of every process peak bytes and messages.

    interval_s: 80 % of a prediction; of a measurement what holds its median in 90 % of cases. median_s: of the
    measured steps, whose shortest is `step_time_s` (0: a prediction).
    """

    step_time_s: Seconds
    interval_s: list[Seconds]
    peak_memory_bytes: list[Bytes]
    traffic: list[Traffic]
    median_s: Annotated[float, real(0.0, 1e6, "s")] = 0.0

    def __post_init__(self) -> None:
        if len(self.interval_s) != 2 or not self.interval_s[0] <= self.interval_s[1]:
            raise InputError("interval_s", self.interval_s, "[lowest, highest]")
        if len(self.traffic) != len(self.peak_memory_bytes):
            raise InputError("traffic", len(self.traffic), f"as many processes as peaks: {len(self.peak_memory_bytes)}")

    @property
    def bytes_sent(self) -> list[float]:
        """Bytes that every process sends in a step."""
        return [sum(sent for _, sent in each.values()) for each in self.traffic]

    @property
    def messages(self) -> int:
        """Messages and collective calls of all processes in a step."""
        return round(sum(calls for each in self.traffic for calls, _ in each.values()))


@spec
class Executed:
    """One executed plan.

    model, plan: as in a job file; passes: of all processes, in the order that was compared (0: no pipeline).
    `sentinel_ratio`: how slow the machine was, by the calibration's sentinel (1: as then).
    """

    name: Text
    model: dict[str, Any]
    plan: dict[str, Any]
    date: Text
    torch: Text
    cores: Annotated[int, whole(1, 100_000)]
    steps: Annotated[int, whole(1, 100_000)]
    predicted: Figures
    measured: Figures
    passes: Annotated[int, whole(0, 10_000_000)]
    order_matches: bool
    max_gradient_error: Annotated[float, real(0.0, 1e6)]
    sentinel_ratio: Annotated[float, real(0.01, 100.0)] = 1.0

    def __post_init__(self) -> None:
        here, there = len(self.predicted.traffic), len(self.measured.traffic)
        if here != there:
            raise InputError("measured.traffic", there, f"as many processes as predicted: {here}")

    @property
    def processes(self) -> int:
        """Processes of the plan."""
        return len(self.measured.traffic)

    @property
    def shares_cores(self) -> bool:
        """Whether there were more processes than cores, so that the measured time is not that of so many devices."""
        return self.processes > self.cores

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the predicted 80 % interval."""
        low, high = self.predicted.interval_s
        return low <= self.measured.step_time_s <= high

    @property
    def error(self) -> float:
        """Predicted over measured step time, less 1."""
        return self.predicted.step_time_s / self.measured.step_time_s - 1

    @property
    def traffic_matches(self) -> bool:
        """Whether every process sent as many messages and bytes to every group and peer as predicted, exactly."""
        return self.predicted.traffic == self.measured.traffic

    def job(self) -> tuple[Model, Plan]:
        """Return the model and the plan; raises InputError where one of them is none."""
        return read(Model, self.model, "model"), read(Plan, self.plan, "plan")


@spec
class Evidence:
    """Executed plans of one machine, in words, by the command that made them."""

    schema_version: Literal[1] = 1
    machine: Text
    profile: Text
    command: Text
    plans: Annotated[list[Executed], Field(max_length=MOST_PLANS, description=f"a list of at most {MOST_PLANS} plans")]

    def __post_init__(self) -> None:
        names = [one.name for one in self.plans]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError("plans", twice, "every name once")


def read_evidence(path: str | Path) -> Evidence:
    """Return the executed plans in a file.

    Raises:
        InputError: no such file, or a field of it is wrong.
    """
    return read(Evidence, load_mapping(Path(path)), Path(path).name)


def write_evidence(held: Evidence, path: Path) -> None:
    """Write executed plans, one a line, whole or not at all."""
    head = {name: value for name, value in asdict(held).items() if name != "plans"}
    lines = ",\n".join(json.dumps(_short(asdict(one)), allow_nan=False) for one in held.plans)
    write_atomically(path, json.dumps(head, indent=1)[:-2] + f',\n "plans": [\n{lines}\n ]\n}}\n')


def _short(value: Any) -> Any:
    """Return plain data with six digits of every number that is not whole."""
    if isinstance(value, Mapping):
        return {name: _short(held) for name, held in value.items()}
    if isinstance(value, list):
        return [_short(held) for held in value]
    whole_number = not isinstance(value, float) or value.is_integer()
    return (int(value) if isinstance(value, float) else value) if whole_number else float(f"{value:.6g}")
