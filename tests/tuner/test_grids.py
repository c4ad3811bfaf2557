"""Compiled functions over grids: equal to the function itself, whatever the blocks and the rows that are alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.costs.algebra import ceiling, compile_expressions, maximum, minimum, symbol
from sim.costs.profile import load_profile
from sim.specs import Cluster
from sim.specs.catalog import models
from sim.tuner import grids, score
from sim.tuner.grids import evaluated
from sim.tuner.space import build_space

a, b, c, d = (symbol(name) for name in ("grid_a", "grid_b", "grid_c", "grid_d"))
MIXED = compile_expressions(
    {
        "sum": a + b + 2 * c - d + a * b / (1 + c) - b / 3,
        "most": maximum(a, b * c, d, minimum(a + d, 2)) - ceiling(a / 2) * d,
        "power": (a + b) ** 2 + (1 + d) ** c + (a + 1) ** -1 + (b + c) ** 0.5 - a - b,
        "one": a + 0,
        "number": 0 * a + 3,
    }
)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), along=st.integers(0, 2), block=st.sampled_from([1, 7, 16_384]), several=st.booleans())
def test_equal_to_the_function_on_any_axes(data, along, block, several):
    shape = (5, 3, 4)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    kinds = st.lists(st.booleans(), min_size=3, max_size=3)
    values = {}
    for name in MIXED.symbols:
        drawn = rng.uniform(0.1, 4, [n if some else 1 for n, some in zip(shape, data.draw(kinds), strict=True)])
        values[name] = float(drawn.ravel()[0]) if drawn.size == 1 else drawn
    groups = np.array([2, 0, 1, 0, 2])[: shape[along]]
    if data.draw(st.booleans()):  # some symbols are equal for rows of one group
        values = {k: np.take(v, groups, along) if np.ndim(v) and v.shape[along] > 1 else v for k, v in values.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grids, "BLOCK", block)
        found = evaluated(MIXED, values, along, groups, threads=several)
    for name, value in MIXED(values).items():
        assert np.broadcast_shapes(np.shape(found[name]), np.shape(value)) == np.shape(value)
        np.testing.assert_allclose(np.broadcast_to(found[name], np.shape(value)), value, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-22b", "deepseek-v3"])
def test_scores_and_bounds_are_those_of_the_plain_functions(name, monkeypatch):
    model = models[name]
    spaces = [build_space(model, Cluster.of("h100-sxm-80gb", nodes=n), 256) for n in (2, 8)]
    jobs = [(space, load_profile("h100-sxm-80gb")) for space in spaces]
    quick = [(s.step_time_s, s.peak_memory_bytes) for s in score.score(jobs)] + [(score.bounds(spaces[0]),)]
    monkeypatch.setattr(score, "evaluated", lambda function, values, alike: function(values))
    plain = [(s.step_time_s, s.peak_memory_bytes) for s in score.score(jobs)] + [(score.bounds(spaces[0]),)]
    for one, other in zip(quick, plain, strict=True):
        for found, value in zip(one, other, strict=True):
            np.testing.assert_allclose(found, value, rtol=1e-12)


def test_rows_that_are_alike_are_evaluated_once(monkeypatch):
    seen = []
    real = grids._Run._stage

    def counted(self, stage, buffers, values, rows, origin):
        seen.extend((rows[1] - rows[0]) * len(stage.steps) for _ in (0,) if stage is self.program.alike)
        return real(self, stage, buffers, values, rows, origin)

    monkeypatch.setattr(grids._Run, "_stage", counted)
    values = {"grid_a": np.arange(100.0), "grid_b": np.arange(100.0) % 3, "grid_c": 2.0, "grid_d": np.arange(100.0) % 3}
    function = compile_expressions({"x": maximum(b * c + d, b / 2) + a})
    found = evaluated(function, values, alike=np.arange(100) % 3)
    assert sum(seen) == 3 * 4  # b * c, + d, b / 2 and the larger, for three rows
    np.testing.assert_allclose(found["x"], function(values)["x"], rtol=1e-15)


def test_factors_of_one_and_terms_of_none_take_no_operation():
    function = compile_expressions({"x": maximum(c * a + d * b, a * b * (1 - c)) - c * b + d})
    program = grids._program(function, (1, 1, 0, 0), 1, (("grid_c", 1.0), ("grid_d", 0.0)))
    assert [(step[0], step[2] is None) for step in program.long.steps] == [(np.maximum, False), (np.subtract, False)]
    values = {"grid_a": np.array([0.1, 0.7]), "grid_b": np.array([0.2, 1e-9]), "grid_c": 1.0, "grid_d": np.zeros(2)}
    np.testing.assert_array_equal(evaluated(function, values)["x"], function(values)["x"])


def test_what_is_alike_is_the_same_for_terms_of_rows_and_of_all_axes():
    groups = np.array([1, 0, 1, 0])
    values = {"grid_a": np.arange(4.0), "grid_b": groups + 1.0}
    values = {name: each[:, None, None] for name, each in values.items()}
    values |= {"grid_c": np.array([0.5, 2.0])[:, None], "grid_d": np.array([1.0, 3.0])}
    function = compile_expressions({"x": maximum(a, b) + maximum(a * c * d, b)})
    np.testing.assert_array_equal(evaluated(function, values, alike=groups)["x"], function(values)["x"])
