"""A setting that is not possible: what the panel says of it is what its buttons and sliders can take."""

import pytest

from sim.engine.step import simulate
from sim.specs import Plan
from sim.tuner.nearest import changed
from sim.widgets import whatif
from tests.widgets.conftest import set_knob


def buttons(panel):
    """Return the offers by what their buttons say."""
    (line,) = panel._notice.children
    return {button.description: button for button in line.children[1:]}


@pytest.mark.parametrize(
    "moved", [{"pp": 3}, {"tp": 3}, {"virtual_stages": 5}, {"cp": 3}, {"tp": 3, "cp": 2}, {"tp": 7}]
)
def test_only_values_that_keep_every_rule_are_named(panel, moved):
    """A rule's own nearest values may break another: pp 6 divides the layers, not the GPUs."""
    set_knob(panel, **moved)
    allowed = panel.message.partition("allowed: ")[2]
    assert allowed.startswith(("tp 8 x pp 3 must", "a divisor of", "pp x virtual_stages", "tp 8 x cp", "tp 3 x"))
    assert not any(words in allowed for words in ("nearest", " does", "stage_layers"))
    for button in list(buttons(panel).values()):
        button.click()
        assert "a step" in panel.message and panel.plan == panel.plans.plan()


@pytest.mark.parametrize("moved", [{"pp": 0}, {"zero": 9}, {"micro_batch": -1}])
def test_of_a_value_out_of_range_nobody_says_that_nothing_is_near(panel, moved):
    """The range is said, and what is near was not looked for."""
    set_knob(panel, pp=3)
    assert buttons(panel)
    set_knob(panel, **moved)
    assert "allowed: a whole number from" in panel.message and panel._notice.children == ()


@pytest.fixture
def prime(panel):
    """A panel whose model has 61 layers, with the plan that it had."""
    panel.models.picker.value = "deepseek-v3"
    return panel


def test_a_prime_number_of_layers_has_a_way_out(prime):
    assert "Not possible" in prime.message and "none" not in prime.message
    buttons(prime)["chunks of 7 or 8 layers"].click()
    assert prime.plan.stage_layers == (7, 8, 8, 8, 8, 8, 7, 7) and "a step" in prime.message
    assert "chunks of 7 or 8 layers" in prime.plans.dp.value
    assert "possible beside the other settings: 2, 4, 8, 16" in prime.plans.knobs["pp"]._label.value


def test_beside_a_refusal_stands_what_was_asked_for(prime):
    assert "61 layers" in prime.models.facts.value and "96 layers" not in prime.models.facts.value


def test_the_first_look_at_a_model_says_that_it_computes(prime, monkeypatch):
    said = []
    monkeypatch.setattr(whatif, "simulate", lambda *asked: said.append(prime.message) or simulate(*asked))
    buttons(prime)["chunks of 7 or 8 layers"].click()
    set_knob(prime, pp=8)
    assert "computing" in said[0] and "a step" in said[1]


def test_layers_split_unevenly_follow_the_depth(prime):
    buttons(prime)["chunks of 7 or 8 layers"].click()
    set_knob(prime, pp=8)
    assert prime.plan.stage_layers == (3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3)
    set_knob(prime, virtual_stages=1, pp=1)
    assert prime.plan.stage_layers is None and "a step" in prime.message
    even = prime.plans.plan().but(pp=4)
    assert changed(prime.step.model, prime.step.cluster, even, {}) is None  # no layers are split unasked


def test_a_model_of_other_layers_gets_its_own(prime, gpt3):
    buttons(prime)["chunks of 7 or 8 layers"].click()
    prime.models.picker.value = gpt3.name
    buttons(prime)["as many layers in every chunk"].click()
    assert prime.plan == Plan(tp=8, pp=4, virtual_stages=2, global_batch=1024, zero=1, recompute="selective")


def test_layers_split_unevenly_can_be_tuned(prime):
    buttons(prime)["chunks of 7 or 8 layers"].click()
    _, (*_, plan) = prime._tune()
    assert plan.stage_layers is None and plan.microbatch_group_size == plan.pp
