"""The search on recurrent layers, which are neither split nor recomputed in part."""

from sim.specs import Cluster, Plan
from sim.specs.catalog import models
from sim.tuner.space import build_space
from sim.tuner.tune import tune
from tests.tuner.test_tune import every_plan

FOUR = Cluster.of("v100-sxm-16gb", nodes=1, gpus_per_node=4)
MODEL = models["lstm-lm"]


def test_the_space_is_every_legal_plan():
    space = build_space(MODEL, FOUR, 64)
    assert int(space.allowed.sum()) == sum(1 for _ in every_plan(MODEL, FOUR, 64))
    listed = build_space(MODEL, FOUR, 64, {"recompute": ["none", "selective", "full"], "tp": [1, 2]})
    assert int(listed.allowed.sum()) == int(space.allowed.sum())
    assert {"selective recompute of recurrent layers", "tp would split recurrent layers"} <= {*listed.excluded}


def test_a_plan_is_found_that_keeps_the_kernels_of_the_job():
    times = {}
    for kernel in ("default", "fused"):
        given = Plan(global_batch=128, recurrent_kernel=kernel, precision="fp16")
        found = tune(MODEL, FOUR, 128, plan=given, top=2)
        assert found.speedup is not None and found.speedup >= 1
        assert found.best.plan.recurrent_kernel == kernel
        times[kernel] = found.best.step.step_time_s
    assert times["fused"] < times["default"]
