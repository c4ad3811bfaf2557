"""The search on recurrent layers, which are neither split nor recomputed in part."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models
from sim.tuner.options import Question, Techniques
from sim.tuner.space import build_space
from sim.tuner.stages import StageTables
from sim.tuner.tune import tune
from tests.tuner.test_stages import exact_of, raw_plans, seconds
from tests.tuner.test_tune import every_plan

FOUR = Cluster.of("v100-sxm-16gb", nodes=1, gpus_per_node=4)
MODEL = models["lstm-lm"]


def test_the_space_is_every_legal_plan():
    space = build_space(MODEL, FOUR, 64)
    assert int(space.allowed.sum()) == sum(1 for _ in every_plan(MODEL, FOUR, 64))
    listed = build_space(MODEL, FOUR, 64, {"recompute": ["none", "selective", "full"], "tp": [1, 2]})
    assert int(listed.allowed.sum()) == int(space.allowed.sum())
    assert {"selective recompute of recurrent layers", "tp would split recurrent layers"} <= {*listed.excluded}


@pytest.mark.slow
def test_a_plan_is_found_that_keeps_the_kernels_of_the_job():
    times = {}
    for kernel in ("default", "fused"):
        given = Plan(global_batch=128, recurrent_kernel=kernel, precision="fp16")
        found = tune(MODEL, FOUR, 128, plan=given, top=2)
        assert found.speedup is not None and found.speedup >= 1
        assert found.best.plan.recurrent_kernel == kernel
        times[kernel] = found.best.step.step_time_s
    assert times["fused"] < times["default"]


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "vocab"), [("LLL", 400_000), ("GGG", 20_000)])
def test_unequal_stages_are_those_of_brute_force(pattern, vocab):
    """With a head that takes longer than all layers, and with one that does not."""
    model = Model(
        name="tiny", layers=3, pattern=pattern, hidden=1024, heads=1, vocab=vocab, seq=20, tied_embeddings=False
    )
    few = Cluster.of("l4", nodes=1, gpus_per_node=2, memory_bytes=2e10)
    values = {"tp": [1], "pp": [1, 2], "samples": [2, 4], "zero": [0, 1], "recompute": ["none", "full"]}
    values["recompute_layers"] = [1, 2]
    brute = [seconds(plan, model, few) for plan in raw_plans(model, few, 16, values)]
    techniques = Techniques(*(tuple(values[n]) for n in ("tp", "zero", "recompute", "recompute_layers")))
    asked = [Question(model, few, 16, *each) for each in product(values["pp"], values["samples"])]
    found = min(exact_of(StageTables(each, techniques)) for each in asked)
    assert found == pytest.approx(min((value for value, fits in brute if fits), default=np.inf), rel=1e-9)


def test_unequal_stages_are_searched():
    """A head that takes as long as three layers has a stage with fewer of them."""
    model = replace(MODEL, layers=5, pattern="L" * 5, hidden=1024, vocab=60_000)
    found = tune(model, FOUR, 64, {"pp": [2], "micro_batch": [4], "zero": [0]}, target="any")
    assert found.unequal is not None
    first, last = found.best.plan.split_stages
    assert first > last


def test_a_target_without_recurrent_layers_is_refused():
    with pytest.raises(InputError, match=r"^model: got 'lstm-lm'; allowed: a network without LSTM and GRU"):
        tune(MODEL, FOUR, 64, target="megatron")
