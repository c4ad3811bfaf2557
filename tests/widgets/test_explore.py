"""A panel of one figure: it follows its controls, says what is impossible, and keeps to its theme."""

import numpy as np
import pytest

import sim
from sim.report.theme import colour, frame
from sim.specs import InputError
from sim.widgets.canvas import MIN_WIDTH, STALE


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
    panel.sensor.width = 640  # it is shown
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


@pytest.mark.parametrize("first", [True, False])
def test_an_error_of_any_kind_is_shown(first):
    """What a callback raises would be seen by nobody."""

    def fails(theme, n):
        return draw(theme, {1: 2}[n], "a")

    panel = sim.explore(fails, n=[3, 1] if first else [1, 3])
    panel.knobs["n"].value = 3
    assert "Failed:</b> KeyError: 3." in panel.message
    assert (panel.canvas.plot is None) == first
    assert STALE in panel.canvas._dom_classes
    panel.knobs["n"].value = 1
    assert panel.message == "" and STALE not in panel.canvas._dom_classes


def test_an_error_of_the_sentence_is_shown_too():
    panel = sim.explore(draw, say=lambda n, kind: f"{1 / (n - 2)}", n=[1, 2], kind=["a"])
    panel.knobs["n"].value = 2
    assert "Failed:</b> ZeroDivisionError: division by zero." in panel.message


def test_only_free_numbers_take_what_is_not_offered():
    panel = sim.explore(lambda theme, n, m, kind: draw(theme, n, kind), free=["n"], n=[2, 1, 4], m=[1, 2], kind=["a"])
    boxes = {name: len(knob.children[1].children) - 1 for name, knob in panel.knobs.items()}
    assert boxes == {"n": 1, "m": 0, "kind": 0}
    sliders = {name: knob.children[1].children[0] for name, knob in panel.knobs.items()}
    assert {name: slider.readout for name, slider in sliders.items()} == {"n": False, "m": True, "kind": True}
    assert panel.knobs["n"].options == (1, 2, 4)
    panel.knobs["n"].children[1].children[1].value = 3
    assert panel.values["n"] == 3


@pytest.mark.parametrize("free", [["m"], ["kind"], "n"])
def test_free_names_numbers(free):
    with pytest.raises(InputError, match=r"free: got .*; allowed: a list of choices of numbers: n") as caught:
        sim.explore(draw, free=free, n=[2, 1], kind=["a"])
    assert caught.value.path == "free"


def test_numbers_of_numpy_are_numbers():
    panel = sim.explore(draw, free=["n"], n=np.arange(1, 4), kind=["a"])
    assert panel.values["n"] == 1 and type(panel.values["n"]) is int


def test_it_follows_width_and_theme(panel):
    panel.sensor.theme, panel.sensor.width = "dark", 640
    assert panel.canvas.plot.data[0].marker.color == colour("forward", "dark")
    assert panel.canvas.plot.layout.width == 640
    panel.sensor.width = 400  # with less than this a legend would cover its figure: the column scrolls
    assert panel.canvas.plot.layout.width == MIN_WIDTH == 500 and panel.canvas.layout.overflow == "auto hidden"


def test_before_it_is_shown_a_change_is_another_figure(panel):
    """Changes to one are lost where the browser has not yet loaded plotly.js."""
    first = panel.canvas.plot
    panel.knobs["n"].value = 4
    drawn = panel.canvas.plot
    assert drawn is not first and panel.canvas.children[0] is drawn and len(drawn.data[0].y) == 4
    panel.sensor.width = 640
    panel.knobs["n"].value = 1
    assert panel.canvas.plot is drawn and len(drawn.data[0].y) == 1


@pytest.mark.parametrize(
    ("choices", "path"),
    [({}, "choices"), *(({"n": values}, "n") for values in ([], 5, "abc", [1, "a"], [None, 1], {"a": 1}, iter([1])))],
)
def test_it_needs_something_to_choose(choices, path):
    with pytest.raises(InputError) as caught:
        sim.explore(draw, **choices)
    assert caught.value.path == path
