"""Sizes that tensor and context parallelism split come out whole on every rank, or the plan is refused."""

import pytest

from sim.specs import Cluster, InputError, Model, Plan

SMALL = {"layers": 4, "hidden": 64, "heads": 8, "ffn": 256, "vocab": 512}
PAIR = {"family": "encoder-decoder", "encoder_layers": 2}


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        ({"seq": 24}, {"tp": 4, "cp": 4}, "plan.tp: got 4; allowed: a divisor of seq / cp = 6 with sequence_parallel"),
        ({"seq": 18}, {"tp": 4}, "plan.tp: got 4; allowed: a divisor of seq = 18 with sequence_parallel"),
        (
            {"seq": 64, "encoder_seq": 50, **PAIR},
            {"tp": 4},
            "plan.tp: got 4; allowed: a divisor of encoder_seq = 50 with sequence_parallel",
        ),
        (
            {"seq": 64, "encoder_seq": 51, **PAIR},
            {"cp": 2},
            "plan.cp: got 2; allowed: a divisor of encoder_seq = 51; nearest 1 or 3",
        ),
        (
            {"seq": 64, "experts": 4, "shared_ffn": 100},
            {"tp": 8, "sequence_parallel": False},
            "plan.tp: got 8; allowed: a divisor of model.shared_ffn = 100; nearest 5 or 10",
        ),
        (
            {"seq": 64, "pattern": "M*M*", "ssm_heads": 6},
            {"tp": 4, "sequence_parallel": False},
            "plan.tp: got 4; allowed: a divisor of model.ssm_heads = 6; nearest 3 or 6",
        ),
        (
            {"seq": 64, "pattern": "M*M*", "ssm_heads": 6},
            {"tp": 2, "cp": 2, "sequence_parallel": False},
            "plan.cp: got 2; allowed: tp 2 x cp must divide model.ssm_heads = 6: ranks exchange whole heads",
        ),
    ],
)
def test_what_does_not_come_out_whole(model, plan, message):
    with pytest.raises(InputError) as caught:
        Plan(global_batch=16, **plan).on(Model(**SMALL | model), Cluster.of("h100-sxm-80gb", nodes=2))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "model", [{"seq": 32, "ssm_heads": 6}, {"seq": 32, "shared_ffn": 0}, {"seq": 32, "encoder_seq": 9}]
)
def test_what_the_model_does_not_have_is_not_asked_about(model):
    Plan(global_batch=16, tp=4, cp=4).on(Model(**SMALL | model), Cluster.of("h100-sxm-80gb", nodes=2))
