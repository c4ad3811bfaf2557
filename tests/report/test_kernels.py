"""Figures of a kernel's schedules."""

import numpy as np
import pytest

from sim.report import figures

TABLE = np.array([[[0, 0], [0, 1]], [[1, 1], [1, 0]]])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_task_has_its_worker_and_its_turn(theme):
    (grid,) = figures.tasks(TABLE, theme).data
    assert grid.customdata.tolist() == [[[0, 0], [0, 1]], [[1, 1], [1, 0]]]
    assert [list(row) for row in grid.text] == [["0:0", "0:1"], ["1:1", "1:0"]]
    assert grid.z.tolist() == [[0, 0], [1, 1]]


def test_large_grids_are_not_numbered_and_shades_begin_again():
    (grid,) = figures.tasks(np.array([[[n, k]] for n in range(30) for k in range(30)])).data
    assert grid.texttemplate is None
    assert grid.z.max() == 7


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_first_and_the_fastest_are_marked(theme):
    figure = figures.schedules([3e-3, 1e-3, 2e-3], [2e-3, 3e-3, 1e-3], ["a", "<b>", "c"], 1, theme)
    others, first, fastest = figure.data[-3:]
    assert (list(first.text), list(first.x), list(first.y)) == (["&lt;b&gt;"], [3], [1])
    assert (list(fastest.text), list(fastest.x)) == (["c"], [1])
    assert list(others.text) == ["c", "a"]
    assert figure.layout.xaxis.title.text == "measured (ms)"


def test_of_few_kinds_one_is_the_pick():
    names = [trace.name for trace in figures.schedules([2.0, 1.0], [1.0, 2.0], ["a", "b"], 1, what="<i>layouts").data]
    assert names[-3:] == ["other &lt;i&gt;layouts", "the costs' pick", "the fastest"]
