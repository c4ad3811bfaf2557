"""Symbols, compilation and broadcasting."""

import numpy as np
import pytest
import sympy as sp

from sim.costs.algebra import Interpreted, compile_expressions, maximum, minimum, p_norm, symbol


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


def test_what_is_not_part_of_the_algebra_is_not_walked():
    with pytest.raises(ValueError, match="not part of the algebra"):
        Interpreted({"x": sp.sin(symbol("a_test"))})({"a_test": 1.0})
