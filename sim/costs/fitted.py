"""One fitted kernel family of a profile: numbers of a form, where they hold, and how far they are off."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Annotated, Any, Literal

import sympy as sp
from pydantic import Field

from sim.costs.algebra import number
from sim.costs.collectives import OPTIONAL
from sim.costs.kernels import FORMS, TIMED_ALONE, in_a_step
from sim.specs.fields import InputError, real, spec, whole

Z80, Z90 = 1.2815515655446004, 1.6448536269514722
"""Half-width of the central 80 and 90 % of a normal distribution, in standard deviations."""

Text = Annotated[str, Field(min_length=1, max_length=2_000, description="text")]
Word = Annotated[str, Field(max_length=200, description="text of at most 200 characters")]
Name = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,60}$", description="a name of 1 to 60 letters, digits and _ . + -")
]
Amount = Annotated[float, real(0.0, 1e18)]
Quantile = Annotated[float, real(-50.0, 50.0)]
LEVELS = ("0.5", "0.8", "0.9", "0.95")
"""Nominal levels of the conformal intervals."""

MOST_BINS = 20
Use = Literal["random", "larger", "narrow"]
USES: tuple[Use, ...] = ("random", "larger", "narrow")
"""Samples apart from a fit: at random inside its shapes, beyond them, and products of narrow rows (convolutions
of few channels among them)."""


def six_digits(value: float) -> float:
    """Return a number with six significant digits: fits know no more, and the last bits are a machine's own."""
    return float(f"{value:.6g}")


def all_six_digits(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values with six significant digits."""
    return {name: six_digits(value) for name, value in values.items()}


def short(value: Any) -> Any:
    """Return plain data with six digits of every number that is not whole."""
    if isinstance(value, Mapping):
        return {name: short(held) for name, held in value.items()}
    if isinstance(value, list):
        return [short(held) for held in value]
    whole_number = not isinstance(value, float) or value.is_integer()
    return (int(value) if isinstance(value, float) else value) if whole_number else six_digits(value)


@spec
class Errors:
    """Errors of predictions of samples that the fit had not seen, in percent (coverage90 as a fraction).

    From cross-validation, or of samples that are never fitted; `n` of these.
    """

    mape: Annotated[float, real(0.0, 1e6)]
    median: Annotated[float, real(0.0, 1e6)]
    p90: Annotated[float, real(0.0, 1e6)]
    bias: Annotated[float, real(-100.0, 1e6)]
    coverage90: Annotated[float, real(0.0, 1.0)]
    n: Annotated[int, whole(0, 10_000_000)] = 0


@spec
class SizeBin:
    """The conformal interval of kernels of at least `from_size` FLOP (or bytes, as the model's `size` says).

    half_widths: nominal level -> half-width of the interval of log time, from `n` held-out samples.
    """

    from_size: Annotated[float, real(0.0, 1e24)]
    n: Annotated[int, whole(1, 10_000_000)]
    half_widths: dict[Name, Annotated[float, real(0.0, 50.0)]]

    def __post_init__(self) -> None:
        if sorted(self.half_widths) != sorted(LEVELS):
            raise InputError("half_widths", sorted(self.half_widths), "exactly the levels " + ", ".join(LEVELS))
        ordered = [self.half_widths[level] for level in LEVELS]
        if ordered != sorted(ordered):
            raise InputError("half_widths", ordered, "half-widths that do not shrink as the level grows")


@spec
class KernelModel:
    """One fitted kernel family.

    `dtype` is torch's name of the data type and `implementation` which kernel it is (both may be left out: 16 bit,
    any). `domain`: lowest and highest value of each input among the fitted samples. `bins`: conformal intervals by
    size, in ascending order. `outside_slope`: standard deviation of log time for every factor of e outside the domain.
    `held_out`: errors of samples that are never fitted, by use, and of products of `narrow` rows, by folds.
    `n_flagged`: samples that the drift guard set aside; `n_disturbed`: fitted ones that it flagged, taken because there
    were too few others or the machine was busy.
    """

    op: Name
    direction: Name
    form: Name
    dtype: Word = ""
    implementation: Word = ""
    parameters: dict[Name, Amount]
    standard_errors: dict[Name, Amount] = Field(default_factory=dict)
    domain: dict[Name, list[Amount]] = Field(default_factory=dict)
    n_train: Annotated[int, whole(0, 10_000_000)]
    n_test: Annotated[int, whole(0, 10_000_000)]
    n_flagged: Annotated[int, whole(0, 10_000_000)] = 0
    n_disturbed: Annotated[int, whole(1, 10_000_000)] | None = None
    cross_validation: Errors | None = None
    held_out: dict[Use, Errors] = Field(default_factory=dict)
    log_residual_quantiles: dict[Name, Quantile] = Field(default_factory=dict)
    size: Literal["flop", "bytes"] = "flop"
    bins: Annotated[list[SizeBin], Field(max_length=MOST_BINS, description=f"a list of at most {MOST_BINS} bins")] = (
        Field(default_factory=list)
    )
    outside_slope: Annotated[float, real(0.0, 10.0)] = 0.0
    status: Literal["fitted", "scaled", "datasheet"]
    source: Text

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError("form", self.form, "one of " + ", ".join(FORMS))
        form = FORMS[self.form]
        require("parameters", self.parameters, form.parameters, tuple(form.optional))
        for name, edges in self.domain.items():
            if name not in form.inputs:
                raise InputError(f"domain.{name}", edges, f"no such key; known keys: {', '.join(form.inputs)}")
            if len(edges) != 2 or not edges[0] <= edges[1]:
                raise InputError(f"domain.{name}", edges, "[lowest, highest]")
        sizes = [b.from_size for b in self.bins]
        if sizes != sorted(set(sizes)):
            raise InputError("bins", sizes, "bins in ascending order of from_size")

    @property
    def key(self) -> tuple[str, str]:
        """(op, direction), as in `sim.costs.kernels.KERNELS`."""
        return self.op, self.direction

    @property
    def name(self) -> str:
        """Kernel, direction and implementation, as far as they are known."""
        return " ".join(part for part in (*self.key, self.implementation) if part and part != "any")

    def seconds(self, inputs: Mapping[str, float]) -> float:
        """Return the kernel's time inside a step, in seconds, at a shape of its form's inputs."""
        form, shape = FORMS[self.form], {name: sp.Float(x) for name, x in inputs.items()}  # these never overflow
        known = form.complete(in_a_step(self.parameters)) | dict.fromkeys(set(TIMED_ALONE) & set(form.names), 0.0)
        return number(form.seconds(shape, known))

    def half_width(self, size: float, level: str = "0.8") -> float:
        """Return the half-width of the interval of log time at `size`; sizes below the first bin belong to it.

        Zero where the profile states no intervals.
        """
        held = [b for b in self.bins if b.from_size <= size] or self.bins[:1]
        return held[-1].half_widths[level] if held else 0.0

    def distance(self, inputs: Mapping[str, float]) -> float:
        """Return how far `inputs` lie outside the domain: the largest log of the factor beyond an edge, 0 inside."""
        return max((_beyond(x, self.domain[name]) for name, x in inputs.items() if name in self.domain), default=0.0)


def each_once(models: Sequence[KernelModel]) -> None:
    """Raise InputError where two models are of one op, direction, dtype and implementation: only one would be read."""
    places: dict[tuple[str, ...], int] = {}
    for n, model in enumerate(models):
        key = (*model.key, model.dtype, model.implementation)
        first = places.setdefault(key, n)
        if first != n:
            allowed = f"one model for each op, direction, dtype and implementation; models.{first} is of the same"
            raise InputError(f"models.{n}", " ".join(part for part in key if part), allowed)


DIGITS = 1e-5
"""Edges of a domain are written with six digits."""


def _beyond(x: float, edges: list[float]) -> float:
    low, high = edges
    if low * (1 - DIGITS) <= x <= high * (1 + DIGITS) or x <= 0:
        return 0.0
    return log(x / high) if x > high > 0 else log(low / x) if low > x else 0.0


MAY_BE_ZERO = (
    "t0", "m0", "n0", "k0", "s0", "r0", "c0", "d0", "waves", "boost", "throttled", "serial", "row_serial",
    "column_serial", "written", "cold", "least", "padded", "spill", "cached", "hidden", "intra_alpha",
    "intra_alpha_rank", "inter_alpha", *OPTIONAL,
)  # fmt: skip


SHARES = ("waves", "throttled", "serial_hidden", "cached", "hidden", "padded")
"""Of more than all, what is left would be negative: kernels that take less than no time."""

RATES = ("rate", "bandwidth")
SLOWEST = 1e6
"""FLOP/s and bytes/s that any processor reaches many times over: less is a figure in other units, or no fit."""

LEAST = 1e-18
"""Of what is not 0: of less there may be no reciprocal."""


def require(path: str, held: dict[str, float], wanted: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Raise InputError unless `held` has the `wanted` names, none but `optional` ones beside, and usable numbers."""
    if not set(wanted) <= set(held) or not set(held) <= {*wanted, *optional}:
        also = f"; optional: {', '.join(optional)}" if optional else ""
        raise InputError(path, sorted(held), f"exactly {', '.join(wanted)}{also}")
    for name, value in held.items():
        low = SLOWEST if name in RATES else LEAST
        if not low <= value < 1e18 and not (value == 0 and name in MAY_BE_ZERO):
            also = ", or 0" if name in MAY_BE_ZERO else " (FLOP/s or bytes/s)" if name in RATES else ""
            raise InputError(f"{path}.{name}", value, f"a number from {low:g} to 1e18{also}")
        if name in SHARES and value > 1:
            raise InputError(f"{path}.{name}", value, "a share, from 0 to 1")
        if name == "p" and value < 1:
            raise InputError(f"{path}.{name}", value, "from 1 (the sum of both times) to 1e18 (the longer one alone)")
