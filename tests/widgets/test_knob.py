"""A setting of a panel: a slider, a box, or both."""

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
