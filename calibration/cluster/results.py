"""What real jobs took on shared slots, beside what the simulation says, as data and as a file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sim.costs.fitted import short
from sim.specs.fields import read, real, spec, whole
from sim.specs.files import load_mapping, write_listed
from sim.units import percent

Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
Seconds = Annotated[float, real(0.0, 1e6, "s")]
Count = Annotated[int, whole(0, 10**9)]


@spec
class Both:
    """Seconds of a job (until it ended) or of a slot (that it was held), measured and simulated."""

    name: Text
    measured_s: Seconds
    simulated_s: Seconds

    @property
    def error_percent(self) -> float:
        """Simulated less measured, of measured."""
        return 100 * (self.simulated_s / self.measured_s - 1) if self.measured_s else 0.0


@spec
class Case:
    """One run of the jobs under a policy; `load`: the share of the machine that others used meanwhile.

    `switch_s` is the mean cost of a move of this run, all that the simulation is told of it besides throughputs.
    """

    policy: Text
    repetition: Annotated[int, whole(1, 1_000)]
    round_s: Seconds
    switch_s: Seconds
    load: Annotated[float, real(0.0, 1.0)]
    moves_measured: Count
    moves_simulated: Count
    jobs: Annotated[list[Both], Field(min_length=1, description="one job or more")]
    slots: list[Both]

    @property
    def makespan(self) -> Both:
        """Until the last job ended."""
        ends = [(one.measured_s, one.simulated_s) for one in self.jobs]
        measured, simulated = (max(times) for times in zip(*ends, strict=True))
        return Both(name="makespan", measured_s=measured, simulated_s=simulated)

    @property
    def mean_error_percent(self) -> float:
        """Of the completion times, without their signs."""
        return sum(abs(one.error_percent) for one in self.jobs) / len(self.jobs)


@dataclass(frozen=True)
class Row:
    """A job of a run."""

    policy: str
    repetition: int
    job: str
    measured_s: float
    simulated_s: float
    error_percent: float


@spec
class Evidence:
    """Everything that `python -m calibration.cluster.evidence` measured."""

    command: Text
    date: Text
    machine: Text
    software: Text
    cases: list[Case]

    @property
    def rows(self) -> list[Row]:
        """A row for each job of each run."""
        return [
            Row(case.policy, case.repetition, one.name, one.measured_s, one.simulated_s, one.error_percent)
            for case in self.cases
            for one in case.jobs
        ]

    def lines(self) -> list[str]:
        """Return when, where and on what it was measured, and what came of it."""
        made = [f"measured {self.date} on {self.machine}", self.software, f"made by {self.command}"]
        for policy in dict.fromkeys(case.policy for case in self.cases):
            cases = [case for case in self.cases if case.policy == policy]
            errors = [abs(row.error_percent) for row in self.rows if row.policy == policy]
            spans = ", ".join(f"{case.makespan.error_percent:+.1f} %" for case in cases)
            moves = ", ".join(f"{case.moves_measured} ({case.moves_simulated})" for case in cases)
            made.append(
                f"{policy}: completion times off by {sum(errors) / len(errors):.1f} % in the mean, "
                f"{max(errors):.1f} % at most; makespan {spans}; moves measured (simulated) {moves}; "
                f"others used {percent(max(case.load for case in cases))} of the machine at most"
            )
        return made


def read_evidence(path: Path) -> Evidence:
    """Return the results of a file; raises InputError for a wrong one."""
    return read(Evidence, load_mapping(path), str(path))


def write_evidence(path: Path, found: Evidence) -> None:
    """Write results whole or not at all, one run a line, numbers with six digits."""
    write_listed(path, short(asdict(found)), "cases")
