"""Source text that is built by the operators which numbers and NumPy arrays have too.

An index or a value is written once as a Python function. Called with arrays it computes; called with `Text` it gives
the source of what would compute it, in C or in Python.
"""

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

    def __mod__(self, other: Any) -> "Text":
        return type(self)("0") if _is(other, 1) else self._with("%", other)

    def __lt__(self, other: Any) -> "Text":
        return self._with("<", other)

    def __ge__(self, other: Any) -> "Text":
        return self._with(">=", other)

    def __and__(self, other: Any) -> "Text":
        return self._with(self.ALSO, other)


class Python(Text):
    """The same in Python (and Triton, whose blocks it computes)."""

    DIVIDES, ALSO, SINGLE = "//", "&", ""


def _is(value: Any, number: int) -> bool:
    return isinstance(value, int) and value == number
