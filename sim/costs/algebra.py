"""The symbolic algebra: declared symbols, expressions over them, one compiled NumPy function.

Every formula of the simulator is a SymPy expression over symbols that are declared in this package;
`compile_expressions` turns a set of them into one function with common sub-expressions shared. The function
broadcasts, so a knob with few values (ZeRO stage, recompute kind) goes on an array axis of its own and
everything that does not depend on it is computed once.
"""

import gc
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from typing import Any

import numpy as np
import sympy as sp
from numpy.typing import NDArray
from sympy.printing.numpy import NumPyPrinter
from sympy.simplify.cse_main import match_common_args

Expr = Any  # sympy ships no types
Values = Mapping[str, NDArray[np.float64] | float]

_declared: dict[str, Expr] = {}


def symbol(name: str) -> Expr:
    """Return the non-negative real symbol `name`, declaring it on first use."""
    if name not in _declared:
        if not name.isidentifier():
            raise ValueError(f"{name!r} is not an identifier")
        # One object a name, whichever of several threads comes first.
        _declared.setdefault(name, sp.Symbol(name, real=True, nonnegative=True))
    return _declared[name]


@cache
def settle() -> None:
    """Leave what is loaded by now out of garbage collection, once.

    A look at all of SymPy's objects takes a third of a second: a slider stands still for it, a search does little else
    at times, and processes that it forks copy every page of theirs.
    """
    gc.collect()
    gc.freeze()


class Largest(sp.Max):  # type: ignore[misc]
    """Max without SymPy's pairwise comparison of the terms, which takes minutes on long sums."""

    def __new__(cls, *terms: Expr, **assumptions: Any) -> Expr:
        """Return the node, unevaluated."""
        return _bare(cls, terms)


class Smallest(sp.Min):  # type: ignore[misc]
    """Min, as `Largest`."""

    def __new__(cls, *terms: Expr, **assumptions: Any) -> Expr:
        """Return the node, unevaluated."""
        return _bare(cls, terms)


def _bare(cls: type, terms: Sequence[Expr]) -> Expr:
    node = sp.Expr.__new__(cls, *map(sp.S, terms))
    node._argset = frozenset(node.args)
    return node


def maximum(*terms: Expr) -> Expr:
    """Return the largest of the terms, unevaluated unless all are numbers."""
    return sp.S(max(terms)) if _known(terms) else Largest(*terms)


def minimum(*terms: Expr) -> Expr:
    """Return the smallest of the terms, unevaluated unless all are numbers."""
    return sp.S(min(terms)) if _known(terms) else Smallest(*terms)


def _known(terms: Sequence[Expr]) -> bool:
    """Return whether the order of terms is known: SymPy asks without end of powers of numbers that it cannot see."""
    return len(terms) == 1 or all(isinstance(term, int | float | sp.Number) for term in terms)


def number(e: Expr) -> float:
    """Return the value of an expression without symbols, by SymPy's numbers, which do not overflow."""
    return float(e.replace(Largest, sp.Max).replace(Smallest, sp.Min))


def ceiling(x: Expr) -> Expr:
    """Return the next whole number, unevaluated; a millionth above a whole number is rounding, and not the next."""
    return sp.ceiling(x - sp.Float("1e-6"), evaluate=False)


def p_norm(a: Expr, b: Expr, p: Expr) -> Expr:
    """Return (a^p + b^p)^(1/p): the sum at p = 1, the maximum as p grows."""
    return _power(_power(a, p) + _power(b, p), 1 / p)


def root_of_squares(*terms: Expr) -> Expr:
    """Return (a^2 + b^2 + ...)^(1/2)."""
    return _power(sum(_power(term, 2) for term in terms), sp.Rational(1, 2))


def over(a: Expr, b: Expr) -> Expr:
    """Return a / b, of which b is a sum, as it stands: SymPy would ask of every part of it whether it is infinite."""
    return times(a, _power(b, -1))


def times(a: Expr, b: Expr) -> Expr:
    """Return a * b as it stands: SymPy would take b apart, and ask of a power what was not asked when it was made."""
    return sp.Mul(a, b, evaluate=False)


def _power(base: Expr, exponent: Expr) -> Expr:
    """Return a power as it stands: SymPy would ask of every part of the base whether it may be taken out."""
    return sp.Pow(base, exponent, evaluate=False)


@dataclass(frozen=True)
class Compiled:
    """A compiled set of expressions: call it with one value or array per symbol in `symbols`."""

    outputs: tuple[str, ...]
    symbols: tuple[str, ...]
    function: Callable[..., Any]

    def __call__(self, values: Values) -> dict[str, Any]:
        """Return {output: array}, each of its own broadcast shape.

        Raises:
            KeyError: a symbol has no value.
        """
        return dict(zip(self.outputs, self.function(*(values[name] for name in self.symbols)), strict=True))

    def beside(self, other: "Compiled | Interpreted") -> "Compiled":
        """Return both functions as one with the outputs of both."""
        symbols = self.symbols + tuple(n for n in other.symbols if n not in set(self.symbols))

        def function(*given: Any) -> list[Any]:
            values = dict(zip(symbols, given, strict=True))
            return [*self(values).values(), *other(values).values()]

        return Compiled(self.outputs + other.outputs, symbols, function)

    def then(self, second: "Compiled", names: Mapping[str, str]) -> "Compiled":
        """Return both functions as one: `second` reads outputs of this one by `names` (its symbol: output)."""
        own = set(self.symbols)
        symbols = self.symbols + tuple(n for n in second.symbols if n not in names and n not in own)

        def function(*given: Any) -> list[Any]:
            values = dict(zip(symbols, given, strict=True))
            found = self(values)
            made = second(values | {symbol: found[output] for symbol, output in names.items()})
            return [made[name] for name in second.outputs]

        return Compiled(second.outputs, symbols, function)


def compile_expressions(expressions: Mapping[str, Expr]) -> Compiled:
    """Return one NumPy function for all `expressions`.

    Raises:
        ValueError: an expression uses a symbol that was not declared through `symbol`.
    """
    # Shared parts are found first: SymPy walks an expression as often as its parts occur, and these are small.
    shared, exprs = _shared([sp.S.Zero + e for e in expressions.values()])
    used = set().union(*(e.free_symbols for e in (*exprs, *(part for _, part in shared))))
    free = sorted(used - {name for name, _ in shared}, key=lambda s: str(s.name))
    unknown = [s.name for s in free if _declared.get(s.name) is not s]
    if unknown:
        raise ValueError(f"undeclared symbols: {unknown}")
    # To print a sum's terms in order takes longer than all the rest, and nobody reads them.
    printer = NumPyPrinter({"fully_qualified_modules": False, "allow_unknown_functions": True, "order": "none"})
    function = sp.lambdify(free, exprs, modules="numpy", printer=printer, cse=lambda e: (shared, e))
    return Compiled(tuple(expressions), tuple(s.name for s in free), function)


def _shared(exprs: Sequence[Expr]) -> tuple[list[tuple[Expr, Expr]], list[Expr]]:
    """Return the parts that occur more than once, named, each before what it is a part of, and `exprs` in their terms.

    Terms and factors that sums and products have in common are parts too. SymPy's `cse` finds the same in thrice the
    time: it evaluates all that it puts together anew, and asks of every product whether it is a negative one.
    """
    nodes = list(_below(exprs, lambda e: e.args))
    split: dict[Expr, Any] = {}
    for kind in (sp.Add, sp.Mul):
        match_common_args(kind, [e for e in nodes if e.func is kind], split)

    def parts(e: Expr) -> tuple[Expr, ...]:
        return tuple(split[e].args if e in split else e.args)

    times = Counter(exprs)
    order = list(_below(exprs, parts))
    for e in order:
        times.update(parts(e))
    named: list[tuple[Expr, Expr]] = []
    known: dict[Expr, Expr] = {}
    for e in order:
        operands = [known[part] for part in parts(e)]
        known[e] = _rebuilt(split.get(e, e), operands)
        if operands and times[e] > 1:
            named.append((sp.Symbol(f"_{len(named)}"), known[e]))
            known[e] = named[-1][0]
    return named, [known[e] for e in exprs]


def _below(exprs: Sequence[Expr], parts: Callable[[Expr], Sequence[Expr]]) -> Iterator[Expr]:
    """Yield every node of expressions once, after its parts."""
    seen: set[Expr] = set()
    left = [(e, False) for e in reversed(exprs)]
    while left:
        e, done = left.pop()
        if done:
            yield e
        elif e not in seen:
            seen.add(e)
            left.append((e, True))
            left.extend((part, False) for part in reversed(parts(e)))


@dataclass(frozen=True)
class Interpreted:
    """A set of expressions that is walked at every call: nothing to compile, but slower than `Compiled` later."""

    expressions: Mapping[str, Expr]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the expressions."""
        return tuple(self.expressions)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbols that a call needs values of."""
        return tuple(sorted(e.name for e, _ in self._parts[0] if e.is_Symbol))

    @cached_property
    def _parts(self) -> tuple[list[tuple[Expr, tuple[int, ...]]], list[int]]:
        """Every part once, with the places of what it is made of, which come before it; and the outputs' places."""
        return _places([e if isinstance(e, sp.Basic) else sp.S.Zero + e for e in self.expressions.values()])

    def __call__(self, values: Values) -> dict[str, Any]:
        """Return {output: array}, each of its own broadcast shape.

        Raises:
            KeyError: a symbol has no value.
        """
        found: list[Any] = []
        for held, function, operands in self._steps:
            if function is None:
                found.append(values[held] if isinstance(held, str) else held)
            elif len(operands) == 2:
                found.append(function(found[operands[0]], found[operands[1]]))
            elif len(operands) == 1:
                found.append(function(found[operands[0]]))
            else:
                found.append(reduce(function, [found[place] for place in operands]))
        return {name: found[place] for name, place in zip(self.expressions, self._parts[1], strict=True)}

    @cached_property
    def _steps(self) -> list[tuple[float | str, Callable[..., Any] | None, tuple[int, ...]]]:
        """What a call does for every part: the symbol or number that it is, or the function of the places before it."""
        return [(e.name, None, ()) if e.is_Symbol else _step(e, operands) for e, operands in self._parts[0]]

    def as_compiled(self) -> Compiled:
        """Return it as a function of its symbols, to put others beside and after it."""

        def function(*given: Any) -> list[Any]:
            return list(self(dict(zip(self.symbols, given, strict=True))).values())

        return Compiled(self.outputs, self.symbols, function)


def _step(e: Expr, operands: tuple[int, ...]) -> tuple[float, Callable[..., Any] | None, tuple[int, ...]]:
    """Return the number that one node of an expression is, or its function; raises ValueError for other nodes."""
    if e.is_Number:
        return float(e), None, ()
    known = ALONE if len(operands) == 1 else OPERATIONS
    if e.func not in known:
        raise ValueError(f"{e.func} is not part of the algebra")
    return 0.0, known[e.func], operands


def _places(exprs: Sequence[Expr]) -> tuple[list[tuple[Expr, tuple[int, ...]]], list[int]]:
    """Return the parts of expressions, equal ones once: each with the places of its own, which come before it.

    Also the places of `exprs`. Parts are told apart by the places of their own: SymPy compares two that are equal, but
    not one object, as often part by part as each part occurs.
    """
    parts: list[tuple[Expr, tuple[int, ...]]] = []
    place: dict[int, int] = {}
    alike: dict[Any, int] = {}
    left = [(e, False) for e in reversed(exprs)]
    while left:
        e, done = left.pop()
        if done:
            operands = tuple(place[id(part)] for part in e.args)
            key = (e.func, operands) if operands else e
            if key not in alike:
                alike[key] = len(parts)
                parts.append((e, operands))
            place[id(e)] = alike[key]
        elif id(e) not in place:
            left.append((e, True))
            left.extend((part, False) for part in reversed(e.args))
    return parts, [place[id(e)] for e in exprs]


def composed(expressions: Mapping[str, Expr], given: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return expressions with others in the place of symbols, `given` by name; nothing is evaluated or expanded."""
    known: dict[Expr, Expr] = {}

    def within(e: Expr) -> Expr:
        if e not in known:
            known[e] = given.get(e.name, e) if e.is_Symbol else _rebuilt(e, [within(a) for a in e.args])
        return known[e]

    return {name: within(sp.S.Zero + e) for name, e in expressions.items()}


def _rebuilt(e: Expr, operands: list[Expr]) -> Expr:
    if not operands:
        return e
    return e.func(*operands, evaluate=False) if e.func not in (Largest, Smallest) else e.func(*operands)


def derivative(expressions: Mapping[str, Expr], along: Mapping[str, Expr]) -> dict[str, Expr]:
    """Return how fast each expression grows along a direction: the sum over symbols x of d expression / dx along[x].

    `along` gives the rates of symbols by name; {"x": 1} is the derivative with respect to x, {"x": x} that with respect
    to log x, and with a further symbol in it one compiled function has the derivatives with respect to many. Written
    rule by rule for the kinds of node in `OPERATIONS`, each node once: SymPy's own differentiation compares the terms
    of every Max. Where terms of a Max or Min are equal, the mean of the rates on both sides counts.

    Raises:
        ValueError: an expression holds a node that is not part of the algebra.
    """
    known: dict[Expr, Expr] = {}

    def rate(e: Expr) -> Expr:
        if e not in known:
            known[e] = sp.S.Zero + along.get(e.name, 0) if e.is_Symbol else _rate(e, [rate(a) for a in e.args])
        return known[e]

    return {name: rate(sp.S.Zero + e) for name, e in expressions.items()}


def _rate(e: Expr, rates: list[Expr]) -> Expr:
    """Return the rate of one node, of those of its operands (0: it stays as it is)."""
    if all(r == 0 for r in rates):
        return sp.S.Zero
    rule = RATES.get(e.func)
    if rule is None:
        raise ValueError(f"{e.func} is not part of the algebra")
    return rule(e.args, rates)


def _times(*factors: Expr) -> Expr:
    """Return a product as it stands: SymPy would multiply numbers out into sums."""
    return sp.Mul(*(f for f in factors if f != 1), evaluate=False)


def _plus(terms: list[Expr]) -> Expr:
    return terms[0] if len(terms) == 1 else sp.Add(*terms, evaluate=False)


def _rate_of_sum(terms: tuple[Expr, ...], rates: list[Expr]) -> Expr:
    del terms
    return _plus([r for r in rates if r != 0])


def _rate_of_product(factors: tuple[Expr, ...], rates: list[Expr]) -> Expr:
    return _plus([_times(*factors[:i], r, *factors[i + 1 :]) for i, r in enumerate(rates) if r != 0])


def _rate_of_power(operands: tuple[Expr, ...], rates: list[Expr]) -> Expr:
    base, exponent = operands
    grown = [_times(exponent, sp.Pow(base, exponent - 1), rates[0])] if rates[0] != 0 else []
    steeper = [_times(sp.Pow(base, exponent), sp.log(base), rates[1])] if rates[1] != 0 else []
    return _plus(grown + steeper)


def _rate_of_extreme(largest: bool) -> Callable[[tuple[Expr, ...], list[Expr]], Expr]:
    """Return the rule of Max or Min: the rate of the operand that is the extreme one, folded pair by pair."""

    def rule(operands: tuple[Expr, ...], rates: list[Expr]) -> Expr:
        extreme, found = operands[0], rates[0]
        for operand, rate in zip(operands[1:], rates[1:], strict=True):
            ahead = operand - extreme if largest else extreme - operand
            wins = sp.Heaviside(ahead, sp.S.Half, evaluate=False)
            found = _plus([_times(1 - wins, found), _times(wins, rate)])
            extreme = maximum(extreme, operand) if largest else minimum(extreme, operand)
        return found

    return rule


def _rate_of_remainder(operands: tuple[Expr, ...], rates: list[Expr]) -> Expr:
    whole = (operands[0] - sp.Mod(*operands, evaluate=False)) / operands[1]
    return _plus([rates[0], _times(-1, whole, rates[1])])


RATES: Mapping[Expr, Callable[[tuple[Expr, ...], list[Expr]], Expr]] = {
    sp.Add: _rate_of_sum,
    sp.Mul: _rate_of_product,
    sp.Pow: _rate_of_power,
    Largest: _rate_of_extreme(largest=True),
    Smallest: _rate_of_extreme(largest=False),
    sp.Mod: _rate_of_remainder,
    sp.log: lambda operands, rates: _times(rates[0], sp.Pow(operands[0], -1)),
    sp.ceiling: lambda operands, rates: sp.S.Zero,
}
"""Rules of `derivative`, by node: (operands, their rates) -> the node's rate."""

OPERATIONS: Mapping[Expr, Callable[[Any, Any], Any]] = {
    sp.Add: operator.add,
    sp.Mul: operator.mul,
    sp.Pow: operator.pow,
    Largest: np.maximum,
    Smallest: np.minimum,
    sp.Mod: np.mod,
    sp.Heaviside: np.heaviside,
}
ALONE: Mapping[Expr, Callable[[Any], Any]] = {sp.log: np.log, sp.ceiling: np.ceil}
