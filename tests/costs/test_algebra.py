"""Symbols, compilation and broadcasting."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import sympy as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.costs.algebra import (
    Interpreted,
    ceiling,
    compile_expressions,
    composed,
    derivative,
    maximum,
    minimum,
    p_norm,
    symbol,
)


def test_outputs_keep_their_own_axes():
    a, b = symbol("a_test"), symbol("b_test")
    compiled = compile_expressions({"sum": a + b, "only_a": 2 * a, "one": 1})
    out = compiled({"a_test": np.ones((3, 1)), "b_test": np.arange(2.0)})
    assert out["sum"].shape == (3, 2)
    assert out["only_a"].shape == (3, 1)
    assert out["one"] == 1


def test_extremes_broadcast():
    a, b = symbol("a_test"), symbol("b_test")
    compiled = compile_expressions({"top": maximum(a, b, 1), "low": minimum(a, b)})
    out = compiled({"a_test": np.zeros((2, 1)), "b_test": np.array([0.5, 3.0])})
    assert out["top"].tolist() == [[1, 3], [1, 3]]
    assert out["low"].tolist() == [[0, 0], [0, 0]]


def test_p_norm_runs_from_sum_to_maximum():
    a, b, p = symbol("a_test"), symbol("b_test"), symbol("p_test")
    f = compile_expressions({"t": p_norm(a, b, p)})
    values = {"a_test": 3.0, "b_test": 4.0}
    assert f(values | {"p_test": 1.0})["t"] == 7
    assert f(values | {"p_test": 2.0})["t"] == pytest.approx(5)
    assert f(values | {"p_test": 200.0})["t"] == pytest.approx(4)


def test_only_declared_symbols_compile():
    with pytest.raises(ValueError, match="undeclared"):
        compile_expressions({"x": sp.Symbol("a_test")})
    with pytest.raises(ValueError, match="identifier"):
        symbol("__import__('os')")


def test_missing_value_is_named():
    with pytest.raises(KeyError, match="a_test"):
        compile_expressions({"x": symbol("a_test") + 1})({})


def test_walking_an_expression_gives_what_compiling_it_gives():
    a, b = symbol("a_test"), symbol("b_test")
    both = {
        "t": p_norm(a, 2 * b, 3) + maximum(a, b, 1) / minimum(a, 2),
        "log": sp.log(1 + a) / 7,
        "product": a * b**2 * sp.Rational(1, 3),
        "one": 1,
    }
    values = {"a_test": np.array([[0.5], [2.0], [9.0]]), "b_test": np.array([1.0, 3.0])}
    compiled, walked = compile_expressions(both)(values), Interpreted(both)(values)
    assert all(np.allclose(compiled[k], walked[k], rtol=1e-14) for k in both)


def test_of_numbers_the_largest_and_the_smallest_are_numbers():
    assert (maximum(5, sp.Integer(7), 2.5), minimum(5, sp.Rational(1, 3))) == (7, sp.Rational(1, 3))
    root = 4 + maximum(sp.Integer(5), sp.Integer(5)) ** sp.Rational(1, 2)
    assert float(compile_expressions({"y": root})({})["y"]) == pytest.approx(4 + 5**0.5)


LEAVES = st.one_of(st.sampled_from("abc").map(symbol), st.integers(2, 5).map(sp.Integer))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map(lambda terms: sp.Add(*terms)),
        st.lists(inner, min_size=2, max_size=4).map(lambda factors: sp.Mul(*factors)),
        st.lists(inner, min_size=2, max_size=3).map(lambda terms: maximum(*terms)),
        st.tuples(inner, st.sampled_from([2, -1, sp.Rational(1, 2)])).map(lambda pair: pair[0] ** pair[1]),
    ),
    max_leaves=12,
)


@given(st.lists(TREES, min_size=1, max_size=4))
def test_shared_parts_change_no_value(trees):
    several = {f"y{n}": e for n, e in enumerate([*trees, sum(trees), trees[0] * trees[-1]])}
    values = {"a": 0.7, "b": 1.9, "c": 3.1}
    compiled, walked = compile_expressions(several)(values), Interpreted(several)(values)
    assert {name: float(value) for name, value in compiled.items()} == pytest.approx(walked, rel=1e-12)


class Logged:
    """A number that writes down what is done with it."""

    def __init__(self, value, log):
        self.value, self.log = value, log

    def _done(self, name, value):
        self.log.append(name)
        return Logged(value, self.log)

    def __add__(self, other):
        return self._done("+", self.value + other.value)

    def __mul__(self, other):
        return self._done("*", self.value * getattr(other, "value", other))

    def __rmul__(self, other):
        return self._done("*", other * self.value)

    def __pow__(self, power):
        return self._done("**", self.value**power)


def test_terms_and_factors_in_common_are_computed_once():
    a, b, c = (symbol(name) for name in "abc")
    many = {"two": a * b, "three": a * b * c, "sum": (a + b) ** 2, "more": a + b + c, "number": 3 * a * b}
    done = []
    found = compile_expressions(many)({name: Logged(value, done) for name, value in zip("abc", (2, 3, 5), strict=True)})
    assert {name: each.value for name, each in found.items()} == {
        "two": 6, "three": 30, "sum": 25, "more": 10, "number": 18
    }  # fmt: skip
    assert sorted(done) == ["*"] * 3 + ["**"] + ["+"] * 2


def test_equal_parts_that_are_not_one_object_are_soon_told_apart():
    """Compared part by part, as often as each occurs, 50 levels would take 2^50 comparisons."""

    def tower():
        made = symbol("a_test")
        for _ in range(50):
            made = maximum(made, minimum(made, symbol("b_test")))
        return made

    assert Interpreted({"x": tower(), "y": tower()})({"a_test": 3.0, "b_test": 2.0}) == {"x": 3.0, "y": 3.0}


def test_what_is_not_part_of_the_algebra_is_not_walked():
    with pytest.raises(ValueError, match="not part of the algebra"):
        Interpreted({"x": sp.sin(symbol("a_test"))})({"a_test": 1.0})


def _expressions(x, y, z):
    """Return one expression of every kind of node, nested as costs nest them."""
    return {
        "sum": 3 * x + y - 2,
        "product": x * y * z,
        "power": (x + 1) ** 3 / (y + 1) + (1 + x) ** z,
        "p_norm": p_norm(x + 1, y + 2, z + 1),
        "extremes": maximum(x, 2 * y, x * z) + minimum(x + y, z, 5) - maximum(0, x - y),
        "log": sp.log(1 + x * y),
        "mod": sp.Mod(7 * x + 1, y + 1, evaluate=False),
        "ceiling": ceiling(x) * y,
    }


@cache
def _rates():
    expressions = _expressions(*map(symbol, "xyz"))
    return expressions, compile_expressions(derivative(expressions, {n: symbol(f"d{n}") for n in "xyz"}))


@given(*(st.floats(0.1, 4).filter(lambda v: 1e-3 < v * 8 % 1 < 1 - 1e-3) for _ in range(3)))
@settings(max_examples=60)
def test_derivatives_are_those_of_finite_differences(a, b, c):
    assume(1e-3 < (7 * a + 1) / (b + 1) % 1 < 1 - 1e-3)  # where the remainder has no step
    names, (expressions, rates) = ("x", "y", "z"), _rates()
    at = np.array([a, b, c])
    for direction in np.eye(3):
        found = rates(dict(zip([*names, "dx", "dy", "dz"], [*at, *direction], strict=True)))
        ends = [Interpreted(expressions)(dict(zip(names, at + s * 1e-6 * direction, strict=True))) for s in (1, -1)]
        for name, rate in found.items():
            assert rate == pytest.approx((ends[0][name] - ends[1][name]) / 2e-6, rel=1e-4, abs=1e-4), name


def test_a_derivative_walks_as_it_compiles_and_knows_what_stays():
    x, y = symbol("x"), symbol("y")
    rates = derivative({"a": maximum(x * y, y**2), "b": y + 1}, {"x": 1})
    assert rates["b"] == 0
    values = {"x": np.array([0.5, 1.0, 2.0]), "y": 1.0}
    # On the edge between two terms the mean of both sides holds.
    assert Interpreted(rates)(values)["a"].tolist() == compile_expressions(rates)(values)["a"].tolist() == [0, 0.5, 1]


def test_only_the_algebra_has_derivatives():
    with pytest.raises(ValueError, match="not part of the algebra"):
        derivative({"a": sp.sin(symbol("x"))}, {"x": 1})


def test_expressions_in_the_place_of_symbols_are_not_evaluated():
    """As one after the other, and a sum in the place of a factor stays one."""
    a, b, inner = symbol("a_test"), symbol("b_test"), symbol("inner_test")
    outer = {"y": maximum(0, inner - 1) / (1 + inner) + 3, "z": sp.S(2)}
    whole = composed(outer, {"inner_test": minimum(a, b) + a})
    assert whole["z"] == 2
    assert not whole["y"].has(inner)
    values = {"a_test": np.array([1.0, 4.0]), "b_test": 2.0}
    expected = compile_expressions({"y": outer["y"]})({"inner_test": np.array([2.0, 6.0])})["y"]
    assert compile_expressions({"y": whole["y"]})(values)["y"] == pytest.approx(expected)
    assert Interpreted(whole).as_compiled()(values)["y"] == pytest.approx(expected)


def test_threads_declare_one_symbol_each_name():
    names = [f"declared_by_threads_{i}" for i in range(200)]
    start = threading.Barrier(4)

    def declare(_):
        start.wait()
        return [symbol(name) for name in names]

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(declare, range(4))
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))
