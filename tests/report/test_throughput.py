"""Figures of throughput: what is published over what is predicted, curves over settings."""

import pytest

from sim.report import figures
from sim.validation.predict import Range
from sim.validation.throughput import Throughput

ROWS = [
    Throughput("<b>a", 32, "", 100e12, Range(90e12, 80e12, 105e12)),
    Throughput("b", 3072, "ZeRO-3", 50e12, Range(100e12, 90e12, 110e12)),
]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_published_lies_over_predicted(theme):
    figure = figures.throughput(ROWS, theme)
    ours, published = figure.data
    assert list(ours.x) == [90, 100]
    assert list(ours.error_x.array) == [15, 10]
    assert list(ours.error_x.arrayminus) == [10, 10]
    assert list(published.x) == [100, 50]
    assert list(ours.y) == list(published.y) == ["&lt;b&gt;a on 32", "ZeRO-3: b on 3\u2009072"]
    assert [a.text for a in figure.layout.annotations] == ["−10 %", "+100 % *"]


def test_a_curve_a_name():
    figure = figures.curves({"one": {"8": 1.0, "16": 2.0}, "<i>": {"8": 3.0}}, "x", "y")
    assert [(t.name, t.x, t.y) for t in figure.data] == [
        ("one", ("8", "16"), (1.0, 2.0)),
        ("&lt;i&gt;", ("8",), (3.0,)),
    ]
    assert len({(t.line.color, t.marker.symbol, t.line.dash) for t in figure.data}) == 2
    with pytest.raises(ValueError, match="at most 6"):
        figures.curves({str(n): {"a": 1.0} for n in range(7)}, "x", "y")


def test_bars_stand_side_by_side_below_a_limit():
    figure = figures.bars({"<i>": {"a": 1.0, "b": 2.0}, "two": {"b": 3.0}}, "GB", limit=("<b>16", 16.0))
    assert [(t.name, t.x, t.y) for t in figure.data] == [
        ("&lt;i&gt;", ("a", "b"), (1.0, 2.0)),
        ("two", ("b",), (3.0,)),
    ]
    assert len({t.marker.color for t in figure.data}) == 2
    assert figure.layout.barmode == "group"
    assert (figure.layout.shapes[0].y0, figure.layout.annotations[0].text) == (16.0, "&lt;b&gt;16")
    assert not figures.bars({"one": {"a": 1.0}}, "GB").layout.shapes
    with pytest.raises(ValueError, match="at most 6"):
        figures.bars({str(n): {"a": 1.0} for n in range(7)}, "y")
