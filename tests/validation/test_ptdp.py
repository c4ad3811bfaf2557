"""The paper's models and plans: sizes by name, its throughput convention, what blocking sends cost."""

import pytest

from sim.specs import InputError
from sim.validation import ptdp


def test_models_are_of_their_size():
    assert ptdp.gpt("175B", 96, 12288, 96).parameters == pytest.approx(175e9, rel=0.01)
    assert ptdp.gpt("5.9B", 32, 3840, 32).parameters == pytest.approx(5.9e9, rel=0.02)


def test_rates_and_what_sending_in_parts_gains():
    model, cluster = ptdp.gpt("5.9B", 32, 3840, 32), ptdp.servers(8)
    plan = {"tp": 8, "pp": 8, "global_batch": 8, "virtual_stages": 4}
    whole, parts = (ptdp.step(model, cluster, scatter_gather=on, **plan) for on in (False, True))
    assert whole.plan.precision == "fp16" and not whole.plan.sequence_parallel
    assert 1 < ptdp.rate(model, cluster, **plan) < 312
    gain = ptdp.gathered_gain(whole, parts)
    assert gain == pytest.approx(100 * (whole.step_time_s / parts.step_time_s - 1))
    assert ptdp.gathered_gain(whole, parts, waited_for=True) > gain > 0
    with pytest.raises(InputError):
        ptdp.rate(model, cluster, tp=3, global_batch=8)


def test_the_parameters_never_saw_the_paper():
    assert "PTD-P" not in ptdp.level().source
