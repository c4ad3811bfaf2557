"""What tuning found and what it cost, as a file for the notebook "Can a schedule be chosen without measuring?"."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Annotated

from pydantic import Field

from calibration.taskmap.contraction import PRODUCTS
from calibration.taskmap.space import KernelSchedule
from sim.costs.fitted import short
from sim.report.numbers import tenths
from sim.specs.fields import InputError, init_names, read, real, spec, whole
from sim.specs.files import load_mapping, write_listed
from sim.validation.executed import Executed

MOST = 10_000
Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
Seconds = Annotated[float, real(1e-12, 1e6, "s")]
Count = Annotated[int, whole(0, 1_000_000)]


@spec
class Shape:
    """One kernel at one size: what its costs said of every schedule and what every schedule took.

    predicted_s, measured_s: of every schedule of the space in its order. chosen: place of the tuner's choice; ranked:
    how many it measured; tuning_s: what that took, kernels compiled before; exhaustive_s: the same for the whole space.
    library_s: torch's kernel.
    """

    contraction: Text
    sizes: dict[str, Count]
    flop: Annotated[float, real(1.0, 1e18, "FLOP")]
    predicted_s: Annotated[list[Seconds], Field(max_length=MOST)]
    measured_s: Annotated[list[Seconds], Field(max_length=MOST)]
    chosen: Count
    ranked: Count
    tuning_s: Seconds
    exhaustive_s: Seconds
    library_s: Seconds

    @property
    def best(self) -> int:
        """The place of the schedule that was fastest when all were measured."""
        return self.measured_s.index(min(self.measured_s))

    @property
    def rank(self) -> int:
        """How many schedules the costs put before the fastest one."""
        return sorted(range(len(self.predicted_s)), key=lambda n: self.predicted_s[n]).index(self.best)

    @property
    def lost(self) -> float:
        """How much longer than the fastest the choice takes, as a share."""
        return self.measured_s[self.chosen] / self.measured_s[self.best] - 1

    @property
    def of_library(self) -> float:
        """Torch's time over the choice's."""
        return self.library_s / self.measured_s[self.chosen]

    @property
    def flop_per_s(self) -> float:
        """The choice's rate."""
        return self.flop / self.measured_s[self.chosen]

    @property
    def label(self) -> str:
        """Kernel and sizes."""
        return f"{self.contraction} {'x'.join(map(str, self.sizes.values()))}"


@spec
class Search:
    """A search at random for a schedule as fast as the tuner's: `space` schedules, `trials` measured until one was.

    spent_s includes compiling, as tuning_s here does, learning the costs too. found: whether one was that fast.
    """

    label: Text
    space: Count
    trials: Count
    spent_s: Seconds
    found: bool
    tuning_s: Seconds


@spec
class Network:
    """A network of tuned kernels beside torch's: seconds of a forward, largest difference over the largest value."""

    name: Text
    tuned_s: Seconds
    torch_s: Seconds
    error: Annotated[float, real(0.0, 1e9)]
    kernels: Count
    tuning_s: Seconds


@spec
class Learned:
    """What learning the costs of a contraction took, compiling included; sigma_log: their errors of log seconds."""

    contraction: Text
    seconds: Seconds
    sigma_log: Annotated[float, real(0.0, 10.0)]


@spec
class Results:
    """Everything that `python -m calibration.taskmap.evidence` measured; compile_s: of one kernel.

    probes: schedules that costs are learned from. plans: executed with the library's products and with tuned ones.
    """

    command: Text
    date: Text
    machine: Text
    software: Text
    schedules: Annotated[list[dict[str, Count]], Field(max_length=MOST)]
    probes: Count
    compile_s: Annotated[float, real(0.0, 1e6, "s")]
    learned: list[Learned]
    shapes: Annotated[list[Shape], Field(max_length=MOST)]
    searches: list[Search]
    networks: list[Network]
    plans: list[Executed]

    def __post_init__(self) -> None:
        names = init_names(KernelSchedule)
        for place, schedule in enumerate(self.schedules):
            if set(schedule) != set(names):
                raise InputError(f"schedules.{place}", sorted(schedule), f"exactly {', '.join(names)}")

    def lines(self) -> list[str]:
        """Return when, where and on what it was measured."""
        made = f"{len(self.schedules)} schedules, a kernel compiles in {self.compile_s:.2g} s"
        return [f"measured {self.date} on {self.machine}", self.software, made, f"made by {self.command}"]

    def schedule(self, place: int) -> KernelSchedule:
        """Return a schedule of the space."""
        return KernelSchedule(**self.schedules[place])

    @property
    def names(self) -> list[str]:
        """Every schedule in words."""
        return [
            f"{s.rows} x {s.vectors * s.lanes} registers, {s.high} x {s.wide} of them, depth {s.depth}"
            for s in (self.schedule(n) for n in range(len(self.schedules)))
        ]

    @property
    def products(self) -> list[Shape]:
        """The shapes of products."""
        return [shape for shape in self.shapes if shape.contraction in PRODUCTS]

    @property
    def convolutions(self) -> list[Shape]:
        """The shapes of convolutions."""
        return [shape for shape in self.shapes if shape not in self.products]

    def answer(self) -> str:
        """Return in a sentence or two what became of the products."""
        those = self.products
        first = f"{sum(shape.rank == 0 for shape in those)} of {len(those)} sizes it is the very first"
        ten = f"among the ten that their costs put first at {sum(shape.rank < 10 for shape in those)} of {len(those)}"
        saved = geometric_mean([shape.exhaustive_s / shape.tuning_s for shape in those])
        torchs = geometric_mean([shape.of_library for shape in those])
        return (
            f"The fastest of {len(self.schedules)} schedules is {ten}; at {first}. The tuner measures "
            f"{fmean(shape.ranked for shape in those):.1f} of them, takes a {saved:.0f}th of the time that all take, "
            f"and loses {tenths(max(shape.lost for shape in those))} at most. What it finds is {torchs:.2f} times as "
            f"fast as torch's product (geometric mean)."
        )


def held(shapes: Sequence[Shape], first: int = 10) -> float:
    """Return the share of shapes whose fastest schedule is among the costs' first ones."""
    return fmean(shape.rank < first for shape in shapes)


def read_results(path: Path) -> Results:
    """Return the results of a file; raises InputError for a wrong one."""
    return read(Results, load_mapping(path), str(path))


def write_results(path: Path, results: Results) -> None:
    """Write results whole or not at all, one shape a line, numbers with six digits."""
    write_listed(path, short(asdict(results)), "shapes")
