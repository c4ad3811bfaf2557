"""The largest sequence, model or microbatch that still fits."""

import pytest

import sim
from sim.specs import InputError, Plan
from sim.tuner.fixes import largest


@pytest.fixture(scope="module")
def step(gpt3, h100s):
    return sim.simulate(gpt3, h100s, Plan(tp=8, pp=4, global_batch=1024, zero=1))


@pytest.mark.parametrize(("name", "values"), [("seq", range(1024, 32769, 1024)), ("layers", range(4, 401, 4))])
def test_the_next_larger_one_does_not_fit(step, name, values):
    found = largest(step, name, values)
    after = getattr(found.model, name) + values.step
    assert found.fits == "yes"
    assert largest(step, name, [after]) is None


def test_values_that_break_a_rule_say_nothing(step):
    legal, every = (largest(step, "layers", values).model.layers for values in (range(4, 401, 4), range(4, 401)))
    assert legal == every


def test_a_knob_of_the_plan(step):
    again = sim.simulate(step.model, step.cluster, step.plan.but(recompute="full"))
    found = largest(again, "micro_batch", [1, 2, 4, 8, 16, 32, 64])
    assert found.plan.micro_batch > 1
    assert found.model is step.model


def test_none_fits(step):
    assert largest(step, "layers", [4000]) is None


@pytest.mark.parametrize("name", ["colour", "name", "schedule", "sequence_parallel"])
def test_what_is_no_number_is_refused(step, name):
    with pytest.raises(InputError, match=f"name: got '{name}'"):
        largest(step, name, [1])
