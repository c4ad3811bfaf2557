"""Which configurations of a grid are left out: declared comparisons between fields and constants, nothing evaluated."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sim.specs.fields import InputError, spec

Mask = NDArray[np.bool_]
SECTIONS = ("model", "cluster", "plan")

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "at_most": np.less_equal,
    "at_least": np.greater_equal,
    "equals": np.equal,
    "differs_from": np.not_equal,
    "divides": lambda a, b: (a != 0) & (np.mod(b, np.where(a == 0, 1, a)) == 0),
    "multiple_of": lambda a, b: (b != 0) & (np.mod(a, np.where(b == 0, 1, b)) == 0),
}
"""By name: what `field` must be to the other operand."""

OPERAND = "a number, text, true or false, or the path of a field"
Operand = Annotated[Any, Field(description=OPERAND)]


@spec
class Filter:
    """What a configuration must keep to belong to the grid: `field` and one comparison.

    The other operand is a constant, or the path of a field (`cluster.gpus_per_node`); every comparison but `equals` and
    `differs_from` is between numbers.

    Raises:
        InputError: none or several comparisons, or an operand that cannot be compared.
    """

    field: Annotated[str, Field(description="the path of a field, such as plan.tp")]
    at_most: Operand = None
    at_least: Operand = None
    equals: Operand = None
    differs_from: Operand = None
    divides: Operand = None
    multiple_of: Operand = None

    def __post_init__(self) -> None:
        given = [name for name in COMPARISONS if getattr(self, name) is not None]
        if len(given) != 1:
            raise InputError("", given, f"one of {', '.join(COMPARISONS)}")
        if not is_path(self.field):
            raise InputError("field", self.field, f"a field of {', '.join(SECTIONS)}, such as plan.tp")
        if not isinstance(self.operand, int | float | str):
            raise InputError(given[0], self.operand, OPERAND)
        if self.ordered and isinstance(self.operand, str) and not is_path(self.operand):
            raise InputError(given[0], self.operand, "a number or the path of a field")

    @property
    def comparison(self) -> str:
        """The name of the comparison."""
        return next(name for name in COMPARISONS if getattr(self, name) is not None)

    @property
    def ordered(self) -> bool:
        """Whether it compares numbers alone, and no text."""
        return self.comparison not in ("equals", "differs_from")

    @property
    def operand(self) -> Any:
        """A constant or the path of a field."""
        return getattr(self, self.comparison)

    @property
    def paths(self) -> tuple[str, ...]:
        """The fields that are compared."""
        return (self.field, *((self.operand,) if is_path(self.operand) else ()))

    def keeps(self, value: Callable[[str], NDArray[Any]]) -> Mask:
        """Return which configurations are kept; `value` gives the values of a field, NaN or None where it has none.

        What a field does not say is in nobody's way: such configurations are kept.
        """
        a, b = value(self.field), value(self.operand) if is_path(self.operand) else np.asarray(self.operand)
        if a.dtype.kind == "O" or b.dtype.kind not in "biuf":
            same = np.asarray(a == b) if self.comparison == "equals" else np.asarray(a != b)
            return same | _unsaid(a) | _unsaid(b) if not self.ordered else np.ones(a.shape, dtype=bool)
        unknown = np.isnan(a.astype(float)) | np.isnan(b.astype(float))
        return np.asarray(COMPARISONS[self.comparison](a, b) | unknown)


def _unsaid(values: NDArray[Any]) -> Mask:
    """Return where values, some of them text, are None."""
    return np.array([value is None for value in values.ravel()], dtype=bool).reshape(values.shape)


def is_path(value: object) -> bool:
    """Return whether `value` is the path of a field of a job."""
    return isinstance(value, str) and value.partition(".")[0] in SECTIONS and "." in value
