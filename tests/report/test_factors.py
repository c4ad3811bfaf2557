"""Factors as markers: one row for each job, published means as lines of their own colour."""

import pytest

from sim.report import figures


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_factor_is_a_marker_on_its_row(theme) -> None:
    lines = {"<b>one": {"a": 1.5, "b": 1.2}, "two": {"b": 2.0, "c": 1.0}}
    figure = figures.factors(lines, "times", {"two": 1.27}, theme)
    one, two = figure.data
    assert list(one.x) == [1.5, 1.2] and list(two.y) == ["b", "c"] and one.name == "&lt;b&gt;one"
    assert list(figure.layout.yaxis.categoryarray) == ["a", "b", "c"]
    assert [line.x0 for line in figure.layout.shapes] == [1.27, 1]
    assert figure.layout.shapes[0].line.color == two.marker.color


def test_no_more_lines_than_can_be_told_apart() -> None:
    with pytest.raises(ValueError, match="at most"):
        figures.factors({str(n): {"a": 1.0} for n in range(20)}, "times")
