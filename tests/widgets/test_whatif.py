"""The panel: answers at once, says what is impossible, redraws only what is open."""

import pytest

import sim
from sim.specs import InputError, Plan
from sim.tuner.tune import tune


@pytest.fixture
def panel(gpt3, h100s):
    return sim.whatif(gpt3, h100s, Plan(tp=8, pp=4, virtual_stages=2, global_batch=1024, zero=1, recompute="selective"))


def test_answer_before_any_click(panel):
    assert "a step" in panel.message
    assert all(len(canvas.data) for canvas in panel._canvases)


def test_slider_changes_answer_and_open_figure_only(panel):
    before = panel.step.step_time_s
    drawn = list(panel._drawn)
    panel._controls["recompute"].value = "full"
    assert panel.step.step_time_s > before
    assert panel._drawn[0] is panel.step
    assert panel._drawn[1:] == drawn[1:]
    panel._tabs.selected_index = 1
    assert panel._drawn[1] is panel.step


def test_impossible_is_a_state(panel):
    step = panel.step
    panel._controls["pp"].value = 3
    assert "Not possible" in panel.message
    assert "nearest" in panel.message
    assert panel.step is step
    assert panel._controls["pp"].value == 3
    panel._controls["pp"].value = 8
    assert "a step" in panel.message
    assert panel.step.plan.pp == 8


def test_starts_from_a_ranked_plan(gpt3, h100s):
    best = tune(gpt3, h100s, 128, top=1).best
    assert sim.whatif(gpt3, h100s, best).step.step_time_s == best.step.step_time_s


def test_impossible_start_is_refused(gpt3, h100s):
    with pytest.raises(InputError, match=r"plan\.tp"):
        sim.whatif(gpt3, h100s, Plan(tp=7, global_batch=8))


def test_figures_fill_their_column(panel):
    panel._sensor.width = 1000
    assert {canvas.layout.width for canvas in panel._canvases} == {964}
    panel._controls["recompute"].value = "full"
    assert panel._canvases[0].layout.width == 964
