"""What was measured of Tempo's layers, as a file: bytes, errors, loss curves, times and executed plans."""

from dataclasses import asdict
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Annotated

from pydantic import Field

from sim.costs.fitted import short
from sim.specs.fields import InputError, read, real, spec, whole
from sim.specs.files import load_mapping, write_listed
from sim.validation.executed import Executed

Text = Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
Seconds = Annotated[float, real(1e-12, 1e6, "s")]
Size = Annotated[int, whole(1, 1_000_000)]
Bytes = Annotated[int, whole(0, 10**15)]
Error = Annotated[float, real(0.0, 1e9)]
Losses = Annotated[list[Annotated[float, real(1e-12, 1e9)]], Field(min_length=1, max_length=100_000)]
PARTS = ("GELU", "LayerNorm", "attention core")


@spec
class LayerSizes:
    """A layer of a BERT: samples, tokens, width, heads."""

    batch: Size
    seq: Size
    hidden: Size
    heads: Size

    @property
    def name(self) -> str:
        """The sizes in a word."""
        return f"{self.batch}x{self.seq}, {self.hidden} wide, {self.heads} heads"

    def formula(self, e: int, statistic: int, tempo: bool) -> dict[str, int]:
        """Return the bytes that a layer saves by part, with e bytes an element and so many for a number of statistics.

        (16 e + 2) s b h + (2 e + 1) a s^2 b with the usual layers, and two numbers a row of both norms (equation 2 of
        arXiv 2205.05198 for e = 2); with Tempo's 4 (e - 1) s b h + 2 e s b h + e a s^2 b and a number a row less.
        """
        rows, scores = self.batch * self.seq, self.heads * self.seq**2 * self.batch
        numbers, deviations = rows * self.hidden, 2 * statistic * rows
        parts = (
            (4 * numbers, deviations, (e + 1) * scores)
            if tempo
            else (4 * e * numbers, 2 * e * numbers + 2 * deviations, (2 * e + 1) * scores)
        )
        return dict(zip(PARTS, parts, strict=True)) | {"all else": (10 * e + 2) * numbers}

    def a_number(self, e: int) -> dict[str, dict[str, float]]:
        """Return the formulas' bytes a number of the hidden state, statistics in fp32, by kind of layers and part."""
        numbers = self.batch * self.seq * self.hidden
        kinds = {"usual layers": False, "Tempo's": True}
        return {
            name: {part: size / numbers for part, size in self.formula(e, 4, tempo).items()}
            for name, tempo in kinds.items()
        }


@spec
class Saved:
    """Bytes that a layer saves for its backward pass among others, with the usual layers and with Tempo's.

    statistic_bytes: of a norm's mean or deviation, in 16 bit 2 on the host and 4 on a GPU. by_part: how many less where
    Tempo's stand for one kind only, in the order of `PARTS`.
    """

    sizes: LayerSizes
    element_bytes: Annotated[int, whole(2, 8)]
    statistic_bytes: Annotated[int, whole(2, 8)]
    usual: Bytes
    tempo: Bytes
    by_part: Annotated[list[Bytes], Field(min_length=len(PARTS), max_length=len(PARTS))]

    @property
    def formulas(self) -> tuple[dict[str, int], dict[str, int]]:
        """By part what the formulas say, with the usual layers and with Tempo's."""
        given = self.element_bytes, self.statistic_bytes
        return self.sizes.formula(*given, False), self.sizes.formula(*given, True)

    @property
    def exact(self) -> bool:
        """Whether formulas and measurement are equal, in all and of every part."""
        usual, tempo = self.formulas
        less = [usual[part] - tempo[part] for part in PARTS]
        return (self.usual, self.tempo, self.by_part) == (sum(usual.values()), sum(tempo.values()), less)


@spec
class GradientError:
    """Relative error of a gradient against fp64 from the same inputs: of Tempo's layer and of torch's."""

    layer: Text
    gradient: Text
    dtype: Text
    tempo: Error
    usual: Error


@spec
class Guard:
    """The larger relative error of the gradients of input and gammas where one gamma is so small: from the output in
    any case, and as the guard has it."""

    gamma: Error
    dtype: Text
    unguarded: Error
    guarded: Error


@spec
class Curve:
    """Losses of every step of a small BERT, from one seed."""

    seed: Annotated[int, whole(0, 2**31)]
    usual: Losses
    tempo: Losses

    def __post_init__(self) -> None:
        if len(self.tempo) != len(self.usual):
            raise InputError("tempo", len(self.tempo), f"{len(self.usual)} losses, as with the usual layers")

    @property
    def apart(self) -> float:
        """The largest difference of two losses over the usual one."""
        return max(abs(t / u - 1) for u, t in zip(self.usual, self.tempo, strict=True))

    def means(self, of: str, steps: int = 10) -> dict[str, float]:
        """Return means over so many steps, by the last of them; of: usual or tempo."""
        held: list[float] = getattr(self, of)
        return {str(k + steps): fmean(held[k : k + steps]) for k in range(0, len(held) - steps + 1, steps)}


@spec
class StepTime:
    """Seconds of forward and backward of one layer, usual layers and Tempo's in turn."""

    sizes: LayerSizes
    usual_s: Seconds
    tempo_s: Seconds

    @property
    def longer(self) -> float:
        """How much longer it takes with Tempo's layers, as a share."""
        return self.tempo_s / self.usual_s - 1


@spec
class Tempos:
    """Everything that `python -m calibration.layers.tempo_evidence` measured; plans: without Tempo's layers and with
    them in turn."""

    command: Text
    date: Text
    machine: Text
    software: Text
    saved: list[Saved]
    errors: list[GradientError]
    guards: list[Guard]
    times: list[StepTime]
    plans: list[Executed]
    curves: list[Curve]

    def lines(self) -> list[str]:
        """Return when, where and on what it was measured, and what came of it."""
        made = [f"measured {self.date} on {self.machine}", self.software, f"made by {self.command}"]
        if self.saved:
            exact = sum(one.exact for one in self.saved)
            made.append(f"{exact} of {len(self.saved)} layers save what the formulas say, to the byte")
        if self.times:
            ratios = [1 + one.longer for one in self.times]
            mean, ends = geometric_mean(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"
            made.append(f"a layer's step takes {mean:.2f} times as long in the geometric mean, {ends}")
        if self.curves:
            apart, steps = max(one.apart for one in self.curves), len(self.curves[0].usual)
            made.append(f"losses at most {apart:.1e} apart over {steps} steps")
        return made


def read_tempos(path: Path) -> Tempos:
    """Return the results of a file; raises InputError for a wrong one."""
    return read(Tempos, load_mapping(path), str(path))


def write_tempos(path: Path, found: Tempos) -> None:
    """Write results whole or not at all, one curve a line, numbers with six digits."""
    write_listed(path, short(asdict(found)), "curves")
