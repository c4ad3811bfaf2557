"""A grid of cells: every number in its place, shaded by the side of the middle that it is on."""

import pytest

from sim.report import figures
from sim.report.theme import colour


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_number_is_a_cell(theme) -> None:
    (cells,) = figures.grid({"8": {"<b>": 0.9, "64": 1.3}, "16": {"64": 1.1}}, "batch", "hidden", theme=theme).data
    assert [list(row) for row in cells.z] == [[0.9, 1.3], [None, 1.1]]
    assert (list(cells.x), list(cells.y)) == (["&lt;b&gt;", "64"], ["8", "16"])
    assert (cells.zmin, cells.zmax) == (pytest.approx(0.7), pytest.approx(1.3))
    assert cells.colorscale[1] == (0.5, colour("page", theme))


def test_cells_that_are_all_in_the_middle_have_no_shade() -> None:
    (cells,) = figures.grid({"8": {"64": 1.0}}, "batch", "hidden").data
    assert cells.zmin < 1.0 < cells.zmax


def test_every_row_has_its_name_also_of_more_than_eight() -> None:
    assert figures.grid({str(n): {"64": 1.0} for n in range(12)}, "batch", "hidden").layout.yaxis.dtick == 1
