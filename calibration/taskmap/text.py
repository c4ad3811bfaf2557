"""Source text that is built by the operators which numbers and NumPy arrays have too.

An index or a value is written once as a Python function. Called with arrays it computes; called with `Text` it gives
the source of what would compute it, in C or in Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Text:
    """An expression in C: integers divide downwards (they are never negative), conditions join without branches."""

    DIVIDES, ALSO, SINGLE = "/", "&", "f"

    def __init__(self, code: str) -> None:
        self.code = code

    def __str__(self) -> str:
        return self.code

    def _with(self, sign: str, other: Any) -> "Text":
        return type(self)(f"({self} {sign} {self.text(other)})")

    def _after(self, sign: str, other: Any) -> "Text":
        return type(self)(f"({self.text(other)} {sign} {self})")

    @classmethod
    def text(cls, value: Any) -> str:
        """Return the source of a text or a number; one with a point is of single precision."""
        return f"{value}{cls.SINGLE}" if isinstance(value, float) else str(value)

    def __add__(self, other: Any) -> "Text":
        return self if _is(other, 0) else self._with("+", other)

    def __radd__(self, other: Any) -> "Text":
        return self if _is(other, 0) else self._after("+", other)

    def __sub__(self, other: Any) -> "Text":
        return self if _is(other, 0) else self._with("-", other)

    def __rsub__(self, other: Any) -> "Text":
        return self._after("-", other)

    def __mul__(self, other: Any) -> "Text":
        return self if _is(other, 1) else self._with("*", other)

    def __rmul__(self, other: Any) -> "Text":
        return self if _is(other, 1) else self._after("*", other)

    def __floordiv__(self, other: Any) -> "Text":
        return self if _is(other, 1) else self._with(self.DIVIDES, other)

    def __mod__(self, other: Any) -> Any:
        return 0 if _is(other, 1) else self._with("%", other)

    def __lt__(self, other: Any) -> "Text":
        return self._with("<", other)

    def __ge__(self, other: Any) -> "Text":
        return self._with(">=", other)

    def __and__(self, other: Any) -> "Text":
        return self._with(self.ALSO, other)


@dataclass
class Tables:
    """What is computed once for every row or column of a tile: arrays by index and expression.

    at: the place in a tile of either index.
    """

    at: Mapping[str, str]
    names: dict[tuple[str, str], str] = field(default_factory=dict)

    def of(self, index: str) -> dict[str, str]:
        """Return expressions of one index by the name of their array."""
        return {name: code for (of, code), name in self.names.items() if of == index}


class Apart(Text):
    """Text that knows which indices it is of: what is of one alone, and divides, is read from a table of these."""

    def __init__(self, code: str, tables: Tables, *of: str) -> None:
        super().__init__(code)
        self.tables, self.indices = tables, frozenset(of)

    def _with(self, sign: str, other: Any) -> Text:
        indices = self.indices | (other.indices if isinstance(other, Apart) else set())
        left, right = self, other
        if len(indices) > 1:
            left, right = self.read(), other.read() if isinstance(other, Apart) else other
        return Apart(f"({left} {sign} {self.text(right)})", self.tables, *indices)

    def _after(self, sign: str, other: Any) -> Text:
        return Apart(f"({self.text(other)} {sign} {self})", self.tables, *self.indices)

    def read(self) -> "Apart":
        """Return the element of a table that holds this, itself where that saves nothing."""
        if len(self.indices) != 1 or not {"/", "%"} & set(self.code):
            return self
        (index,) = self.indices
        name = self.tables.names.setdefault((index, self.code), f"{index}_{len(self.tables.names)}")
        return Apart(f"{name}[{self.tables.at[index]}]", self.tables, index)


class Python(Text):
    """The same in Python (and Triton, whose blocks it computes)."""

    DIVIDES, ALSO, SINGLE = "//", "&", ""


def _is(value: Any, number: int) -> bool:
    return isinstance(value, int) and value == number
