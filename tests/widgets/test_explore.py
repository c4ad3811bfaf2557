"""A panel of one figure: it follows its controls, says what is impossible, and keeps to its theme."""

import pytest

import sim
from sim.report.theme import colour, frame
from sim.specs import InputError
from sim.widgets.canvas import STALE


def draw(theme, n, kind):
    if n > 4:
        raise InputError("n", n, "at most <4>")
    return frame(theme, 300, "", kind).add_bar(y=list(range(n)), marker_color=colour("forward", theme))


@pytest.fixture
def panel():
    return sim.explore(draw, say=lambda n, kind: f"{n} bars of <{kind}>", n=[2, 1, 4], kind=["a", "b"])


def test_it_starts_with_the_first_values(panel):
    assert panel.values == {"n": 2, "kind": "a"}
    assert len(panel.canvas.plot.data[0].y) == 2
    assert "2 bars of &lt;a&gt;" in panel.message


def test_a_control_redraws_the_figure_in_its_place(panel):
    plot = panel.canvas.plot
    panel.knobs["n"].value, panel.knobs["kind"].value = 4, "b"
    assert panel.canvas.plot is plot
    assert (len(plot.data[0].y), plot.layout.yaxis.title.text) == (4, "b")
    assert "4 bars of &lt;b&gt;" in panel.message
    assert panel.canvas.export.name == "4-b"


def test_what_is_impossible_is_a_sentence_and_the_figure_stays(panel):
    panel.knobs["n"].value = 5
    assert "n: got 5; allowed: at most &lt;4&gt;" in panel.message
    assert STALE in panel.canvas._dom_classes
    assert len(panel.canvas.plot.data[0].y) == 2
    panel.knobs["n"].value = 1
    assert STALE not in panel.canvas._dom_classes and "1 bars" in panel.message


def test_it_may_start_impossible():
    panel = sim.explore(draw, n=[5, 3], kind=["a"])
    assert "Not possible" in panel.message and panel.canvas.plot is None
    panel.knobs["n"].value = 3
    assert panel.message == "" and len(panel.canvas.plot.data[0].y) == 3


def test_it_follows_width_and_theme(panel):
    panel.sensor.theme, panel.sensor.width = "dark", 640
    assert panel.canvas.plot.data[0].marker.color == colour("forward", "dark")
    assert panel.canvas.plot.layout.width == 640


@pytest.mark.parametrize(("choices", "path"), [({}, "choices"), ({"n": []}, "n")])
def test_it_needs_something_to_choose(choices, path):
    with pytest.raises(InputError) as caught:
        sim.explore(draw, **choices)
    assert caught.value.path == path
