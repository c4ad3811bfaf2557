"""What was measured of recurrent layers, as a file: whether the costs choose well, and the ratios to torch's own."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Annotated, Literal

from pydantic import Field

from calibration.layers.layouts import CHOICES
from calibration.layers.lstm_bench import LayerBench
from calibration.layers.lstm_cost import LayerCosts
from sim.costs.fitted import short
from sim.specs.fields import read, real, spec, whole
from sim.specs.files import load_mapping, write_listed
from sim.units import percent

Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
Seconds = Annotated[float, real(1e-12, 1e6, "s")]
Size = Annotated[int, whole(1, 1_000_000)]
OfChoices = Annotated[list[Seconds], Field(min_length=len(CHOICES), max_length=len(CHOICES))]
NEAR = 0.05
"""How much longer than the fastest choice a good one takes at most, as a share."""


@spec
class Layer:
    """Forward and backward of one layer at one size, in seconds.

    predicted_s, measured_s: of every choice, in the order of `Recurrences.choices`. default_s: every operation apart;
    library_s: torch's own layer (cuDNN's on an NVIDIA GPU). error: the largest relative one of the picked choice's
    outputs and gradients against fp64.
    """

    cell: Literal["lstm", "gru"]
    seq: Size
    batch: Size
    inputs: Size
    hidden: Size
    predicted_s: OfChoices
    measured_s: OfChoices
    default_s: Seconds
    library_s: Seconds
    error: Annotated[float, real(0.0, 1e9)]

    @property
    def label(self) -> str:
        """Its cell and sizes: steps x samples, from inputs to its width."""
        return f"{self.cell} {self.seq} x {self.batch}, {self.inputs} to {self.hidden}"

    @property
    def picked(self) -> int:
        """The place of the choice that was predicted fastest."""
        return self.predicted_s.index(min(self.predicted_s))

    @property
    def lost(self) -> float:
        """How much longer than the fastest the pick takes, as a share."""
        return self.measured_s[self.picked] / min(self.measured_s) - 1

    @property
    def of_default(self) -> float:
        """The default's time over the pick's."""
        return self.default_s / self.measured_s[self.picked]

    @property
    def of_library(self) -> float:
        """The library's time over the pick's."""
        return self.library_s / self.measured_s[self.picked]


@spec
class CellCosts:
    """Costs of a cell as they were fitted; sigma_log: their errors of log seconds, measured ones included."""

    cell: Literal["lstm", "gru"]
    fitted: dict[str, Annotated[float, real(0.0, 1e9)]]
    sigma_log: Annotated[float, real(0.0, 10.0)]


@spec
class Recurrences:
    """Everything that `python -m calibration.layers.evidence` measured."""

    command: Text
    date: Text
    machine: Text
    software: Text
    choices: list[Text]
    costs: list[CellCosts]
    layers: Annotated[list[Layer], Field(max_length=10_000)]

    def lines(self) -> list[str]:
        """Return when, where and on what it was measured, and what came of it."""
        made = [f"measured {self.date} on {self.machine}", self.software, f"made by {self.command}"]
        if not self.layers:
            return made
        ratios = ((name, [getattr(layer, f"of_{name}") for layer in self.layers]) for name in ("default", "library"))
        share, of = percent(held(self.layers)), len(self.layers)
        near = f"{share} of {of} picks within {100 * NEAR:g}\u00a0% of the fastest choice"
        return [*made, near, *(f"{name} over pick: {words(values)}" for name, values in ratios)]


def held(layers: Sequence[Layer], near: float = NEAR) -> float:
    """Return the share of layers whose pick is as fast as the fastest choice, but for `near`."""
    return fmean(layer.lost <= near for layer in layers)


def words(values: Sequence[float]) -> str:
    """Return geometric mean, smallest and largest of some ratios."""
    return f"{geometric_mean(values):.2f} in the geometric mean, {min(values):.2f} to {max(values):.2f}"


def layer_of(bench: LayerBench, costs: LayerCosts) -> Layer:
    """Return what a layer takes in all ways, and what its costs say."""
    s, pick = bench.sizes, costs.pick(bench.sizes)
    return Layer(
        cell=bench.cell,  # type: ignore[arg-type]
        seq=s.seq,
        batch=s.batch,
        inputs=s.inputs,
        hidden=s.hidden,
        predicted_s=[costs.seconds(s, choice) for choice in CHOICES],
        measured_s=[bench.seconds(bench.fused(choice)) for choice in CHOICES],
        default_s=bench.seconds(bench.default),
        library_s=bench.seconds(bench.library),
        error=bench.error(pick),
    )


def read_recurrences(path: Path) -> Recurrences:
    """Return the results of a file; raises InputError for a wrong one."""
    return read(Recurrences, load_mapping(path), str(path))


def write_recurrences(path: Path, found: Recurrences) -> None:
    """Write results whole or not at all, one layer a line, numbers with six digits."""
    write_listed(path, short(asdict(found)), "layers")
