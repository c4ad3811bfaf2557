"""What checkpointing cost where it was measured, beside what was predicted, as a file."""

from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated, Literal, get_args

from pydantic import Field

from sim.checkpointing import Times, plan
from sim.checkpointing.laws import costs
from sim.costs.fitted import short
from sim.specs.checkpointing import Checkpointing, Failures
from sim.specs.fields import read, real, spec, whole
from sim.specs.files import load_mapping, write_listed

Backend = Literal["disk", "tmpfs", "throttled", "folder"]
Api = Literal["torch.save", "async_save"]
Cores = Literal["own", "shared"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)[:3]
APIS: tuple[Api, ...] = get_args(Api)

Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
Seconds = Annotated[float, real(0.0, 1e6, "s")]
Percent = Annotated[float, real(-100.0, 1e6, "%")]
Steps = Annotated[int, whole(1, 10**9)]


@spec
class Setting:
    """Where and how state was saved: `cores` own when the writing has a core of its own, else it has the trainer's.

    folder: of the backend folder, one that was stated.
    """

    backend: Backend
    api: Api
    cores: Cores
    megabytes: Annotated[int, whole(1, 100_000, "of state")]
    folder: Annotated[str, Field(max_length=4096, description="a folder")] = ""

    @property
    def name(self) -> str:
        """In a word."""
        beside = "" if self.cores == "own" else ", on the trainer's core"
        return f"{self.folder or self.backend}, {self.api}, {self.megabytes} MB{beside}"


@spec
class Point:
    """Training that saves every `steps_between` steps: how much longer it takes than alone, in percent.

    measured_percent: the median of `rounds`; load: the share of the machine that others used meanwhile.
    """

    steps_between: Steps
    rounds: Annotated[list[Percent], Field(min_length=1, description="one round or more")]
    predicted_percent: Percent
    load: Annotated[float, real(0.0, 1.0)]

    @property
    def measured_percent(self) -> float:
        """The median of all rounds."""
        return median(self.rounds)

    @property
    def off(self) -> float:
        """Measured less predicted, in points."""
        return self.measured_percent - self.predicted_percent


@spec
class Recovery:
    """Seconds from a failure until training is where it was, without starting processes; mean over the interval."""

    steps_between: Steps
    measured_s: Seconds
    predicted_s: Seconds


@spec
class Case:
    """One setting; `times` are of profiling at the start, and all that predictions know."""

    setting: Setting
    times: Times
    points: list[Point]
    recovery: Recovery

    def k(self, policy: str, budget: float) -> int:
        """Return the k of a policy of `sim.checkpointing.plan`."""
        return plan(self.times, Checkpointing(overhead_budget=budget)).choice(policy).steps_between

    def best(self, budget: float) -> int | None:
        """Return the least measured k from which on all stay within the budget, None where the largest does not."""
        held = None
        for point in sorted(self.points, key=lambda point: -point.steps_between):
            if point.measured_percent > 100 * budget:
                break
            held = point.steps_between
        return held

    @property
    def at_predicted(self) -> Point:
        """The point of the k that was predicted to be the least within the budget."""
        return next(point for point in self.points if point.steps_between == self.recovery.steps_between)

    @property
    def goodput(self) -> tuple[float, float]:
        """Measured and predicted share of the time that trains what is kept, where one device fails as H100s do.

        Measured: what the overhead leaves, less the recovery and the restart over the mean time between failures.
        """
        k, failures = self.recovery.steps_between, Failures()
        overhead = self.at_predicted.measured_percent / 100
        lost = (self.recovery.measured_s + failures.restart_s + failures.repair_s) / failures.device_mtbf_s
        said = plan(self.times, Checkpointing(every=k), failures.device_mtbf_s)
        return (1 - lost) / (1 + overhead), said.goodput


@spec
class Moment:
    """An interval of a run whose k adapts; interfered: whether another process worked beside it."""

    at_s: Seconds
    steps_between: Steps
    overhead_percent: Percent
    interfered: bool


@spec
class Adaptation:
    """k over time while others interfere for a while."""

    setting: Setting
    interference: Text
    iteration_s: Seconds
    moments: list[Moment]


@spec
class Evidence:
    """Everything that `python -m calibration.checkpointing.evidence` measured."""

    command: Text
    date: Text
    machine: Text
    software: Text
    overhead_budget: Annotated[float, real(1e-4, 1.0)]
    adaptations: list[Adaptation]
    cases: list[Case]

    def lines(self) -> list[str]:
        """Return when, where and on what it was measured, and what came of it."""
        made = [f"measured {self.date} on {self.machine}", self.software, f"made by {self.command}"]
        for cores, where in (("own", "writing on a core of its own"), ("shared", "writing on the trainer's core")):
            cases = [case for case in self.cases if case.setting.cores == cores]
            if not cases:
                continue
            off = [abs(point.off) for case in cases for point in case.points]
            near = sum(
                best is not None and abs(best - case.k("checkfreq", self.overhead_budget)) <= 1
                for case in cases
                for best in [case.best(self.overhead_budget)]
            )
            made.append(
                f"{where}: {sum(one <= 2 for one in off)} of {len(off)} overheads within 2 points (median "
                f"{median(off):.1f}, most {max(off):.1f}), k within 1 of the measured best in {near} of {len(cases)}"
            )
        return made


def overhead_percent(times: Times, steps_between: int) -> float:
    """Return the predicted overhead of saving every so many steps, in percent of training alone."""
    found = costs()(times.values | {"steps_between": steps_between})
    return 100 * float(found["overhead_fraction"])


def recovery_s(times: Times, steps_between: int) -> float:
    """Return the predicted seconds of lost work and reading."""
    return float(costs()(times.values | {"steps_between": steps_between})["recovery_s"])


def read_evidence(path: Path) -> Evidence:
    """Return the results of a file; raises InputError for a wrong one."""
    return read(Evidence, load_mapping(path), str(path))


def write_evidence(path: Path, found: Evidence) -> None:
    """Write results whole or not at all, one case a line, numbers with six digits."""
    write_listed(path, short(asdict(found)), "cases")
