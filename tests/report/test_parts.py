"""Bars of stacked parts: what they add up to, in which order, and as shares."""

import pytest

from sim.report import figures

ROWS = {"<b>one": {"weights": 1.0, "activations": 3.0}, "two": {"activations": 1.0, "gradients": 1.0}}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_part_is_stacked_on_its_row(theme) -> None:
    figure = figures.parts(ROWS, "GB", theme=theme)
    assert [trace.name for trace in figure.data] == ["weights", "activations", "gradients"]
    assert [list(trace.x) for trace in figure.data] == [[1.0, 0.0], [3.0, 1.0], [0.0, 1.0]]
    assert list(figure.data[0].y) == ["&lt;b&gt;one", "two"]
    assert figure.layout.barmode == "stack"
    assert len({trace.marker.color for trace in figure.data}) == 3


def test_shares_are_of_the_row() -> None:
    figure = figures.parts(ROWS, "%", relative=True)
    assert [list(trace.x) for trace in figure.data] == [[25.0, 0.0], [75.0, 50.0], [0.0, 50.0]]


@pytest.mark.parametrize("relative", [True, False])
def test_a_row_of_nothing_has_no_bar(relative) -> None:
    rows = {"all": {"weights": 2.0}, "none": {"weights": 0.0}, "empty": {}}
    (bar,) = figures.parts(rows, "%", relative=relative).data
    assert list(bar.x) == [100.0 if relative else 2.0, 0.0, 0.0]
    assert [share for _, share in bar.customdata] == [100.0, 0.0, 0.0]


def test_no_more_parts_than_can_be_told_apart() -> None:
    with pytest.raises(ValueError, match="at most 6"):
        figures.parts({"a": {str(n): 1.0 for n in range(7)}}, "GB")
