"""Plans that were executed beside their predictions, as a file: what was said before, and what hooks then saw.

`python -m calibration.execute.evidence` writes it; nothing here has been fitted to anything.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from sim.costs.fitted import short
from sim.costs.learned import KINDS, Group
from sim.specs import Cluster, Model, Plan
from sim.specs.fields import InputError, read, real, spec, version_one, whole
from sim.specs.files import load_mapping, write_listed
from sim.specs.pipelines import ASYNCHRONOUS
from sim.units import many, percent

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
        if not all(self.measured.peak_memory_bytes):
            raise InputError("measured.peak_memory_bytes", self.measured.peak_memory_bytes, "above 0 of every process")

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

    @property
    def gradient_error(self) -> float | None:
        """Largest difference of the gradients, None where updates take old weights: no single process does the same."""
        return None if self.plan.get("schedule") in ASYNCHRONOUS else self.max_gradient_error

    @property
    def memory_errors(self) -> list[float]:
        """Of every process: how far the predicted peak is from the measured one, a share of it."""
        peaks = zip(self.predicted.peak_memory_bytes, self.measured.peak_memory_bytes, strict=True)
        return [abs(told / seen - 1) for told, seen in peaks]

    @property
    def kind(self) -> str:
        """How the plan is parallel, one of `KINDS` of `sim.costs.learned`."""
        model, plan = self.job()
        group = Group.of(plan.on(model, self.cluster()))
        return group.kind if group else "other"

    def cluster(self) -> Cluster:
        """Return what the plan ran on: this machine's cores, one a process."""
        return Cluster.of("cpu", 1, gpus_per_node=self.processes, domain_gpus=self.processes)

    def job(self) -> tuple[Model, Plan]:
        """Return the model and the plan; raises InputError where one of them is none."""
        return read(Model, self.model, "model"), read(Plan, self.plan, "plan")


@spec
class Evidence:
    """Executed plans of one machine, in words, by the command that made them."""

    schema_version: Annotated[int, version_one()] = 1
    machine: Text
    profile: Text
    command: Text
    plans: Annotated[list[Executed], Field(max_length=MOST_PLANS, description=f"a list of at most {MOST_PLANS} plans")]

    def __post_init__(self) -> None:
        names = [one.name for one in self.plans]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError("plans", twice, "every name once")

    def lines(self) -> list[str]:
        """Return for a reader: how many plans on what, when, and what made and predicted them."""
        counts = Counter(one.processes for one in self.plans)
        shares = ", ".join(f"{n} ({counts[n]})" for n in sorted(counts))
        dates = sorted({one.date for one in self.plans})
        days, torch = " to ".join(dict.fromkeys(dates[:1] + dates[-1:])), sorted({one.torch for one in self.plans})
        return [
            f"{many(len(self.plans), 'plan')} on {shares} processes; {self.machine}",
            f"executed {days}, torch {', '.join(torch)}",
            f"profile: {self.profile}; made again by: {self.command}",
        ]

    def named(self, name: str) -> Executed:
        """Return the plan of a name; raises InputError where there is none."""
        for one in self.plans:
            if one.name == name:
                return one
        raise InputError("name", name, ", ".join(one.name for one in self.plans))


def by_kind(plans: Sequence[Executed]) -> dict[str, list[Executed]]:
    """Return the plans by how they are parallel, in the order of `KINDS`."""
    held: dict[str, list[Executed]] = {kind: [] for kind in KINDS}
    for one in plans:
        held.setdefault(one.kind, []).append(one)
    return {kind: part for kind, part in held.items() if part}


def spread_words(plans: Sequence[Executed], what: Literal["time", "memory"] = "time") -> str:
    """Return how far plans are from their prediction in one sentence: of their times, or of all processes' peaks.

    Raises:
        InputError: there are none.
    """
    if not plans:
        raise InputError("plans", [], "1 or more")
    if what == "memory":
        peaks = [error for one in plans for error in one.memory_errors]
        of = many(len(peaks), "process", "processes")
        return f"{of}: peaks {percent(fmean(peaks))} off on average, {percent(max(peaks))} at most."
    off, bias = fmean(abs(one.error) for one in plans), fmean(one.error for one in plans)
    inside, side = sum(one.inside for one in plans), "slow" if bias > 0 else "fast"
    return (
        f"{many(len(plans), 'plan')}: {percent(off)} off on average, {percent(abs(bias))} too {side}; "
        f"{inside} inside their 80 % interval."
    )


def read_evidence(path: str | Path) -> Evidence:
    """Return the executed plans in a file.

    Raises:
        InputError: no such file, or a field of it is wrong.
    """
    return read(Evidence, load_mapping(Path(path)), Path(path).name)


def write_evidence(held: Evidence, path: Path) -> None:
    """Write executed plans, one a line, whole or not at all."""
    write_listed(path, short(asdict(held)), "plans")
