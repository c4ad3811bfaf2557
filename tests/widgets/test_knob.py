"""A setting of a panel: a slider, a box, or both."""

import pytest

from sim.specs import InputError
from sim.widgets.knob import Knob


def slides(knob):
    return knob._slider.layout.display is None


def test_numbers_without_other_values_have_a_box_alone():
    layers, tp = Knob("layers", (), 96), Knob("tp", [1, 2], 1)
    assert not slides(layers) and slides(tp)
    layers.value = 48
    assert not slides(layers)
    tp.offer([1])
    assert not slides(tp)
    tp.offer([1, 2])
    assert slides(tp)


def test_what_has_no_box_keeps_its_slider():
    """It is all that shows the value."""
    assert slides(Knob("schedule", ["1f1b"], "1f1b")) and slides(Knob("n", [4], 4, boxed=False))


def test_a_box_has_its_unit_in_the_name_and_a_slider_alone_in_its_read_out():
    share = Knob("weights", [0, 50, 100], 0, "weights on the host", " %")
    assert share._label.value.startswith("<span data-name='weights on the host, %' title=''>weights on the host, % <")
    alone = Knob("weights", [0, 50, 100], 0, "weights on the host", " %", boxed=False)
    assert ", %" not in alone._label.value and alone._slider.options[0][0] == "0 %"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "many", True, None])
def test_what_no_box_could_show_is_refused_and_the_value_stays(value):
    tp, layers = Knob("tp", [1, 2, 8], 2), Knob("layers", (), 96)
    with pytest.raises(InputError, match=r"^tp: got .*; allowed: a finite number; the slider goes from 1 to 8$"):
        tp.value = value
    with pytest.raises(InputError, match=r"^layers: got .*; allowed: a finite number$"):
        layers.value = value
    assert (tp.value, layers.value, tp._box.value) == (2, 96, 2)


@pytest.mark.parametrize("value", [None, ["gpipe"], 3])
def test_what_is_no_word_is_refused_where_there_are_words(value):
    schedule = Knob("schedule", ["1f1b", "gpipe"], "1f1b")
    with pytest.raises(InputError, match=r"^schedule: got .*; allowed: one of 1f1b, gpipe$"):
        schedule.value = value
    assert schedule.value == "1f1b"
