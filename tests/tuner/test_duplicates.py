"""Configurations that are the same: only what has another one left is left out."""

from dataclasses import replace

import numpy as np
import pytest

from sim.plans.targets import LIMITS
from sim.specs import Cluster
from sim.specs.catalog import models
from sim.specs.plan import RECOMPUTE
from sim.tuner.options import Question, Techniques
from sim.tuner.space import build_space, same_once
from sim.tuner.stages import StageTables
from sim.tuner.tune import tune

LLAMA, MIXTRAL = models["llama3-8b"], models["mixtral-8x7b"]
NODE, PAIR = (Cluster.of("h100-sxm-80gb", nodes=n) for n in (1, 2))
EIGHT = {"tp": [8], "pp": [1], "sequence_parallel": [True]}
EVERY = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("model", "cluster", "knobs", "left"),
    [
        (MIXTRAL, NODE, {"ep": [4]}, EVERY),  # two ranks hold the same experts
        (MIXTRAL, NODE, {"ep": [8]}, [0]),
        (LLAMA, PAIR, {"cp": [2]}, EVERY),
        (LLAMA, NODE, {}, [0]),
        (LLAMA, NODE, {"zero": [3, 1]}, [1]),
    ],
)
def test_what_zero_shards_without_dp(model, cluster, knobs, left):
    space = build_space(model, cluster, 32, EIGHT | knobs)
    assert space.zero[space.allowed.any(axis=(0, 1, 3))].tolist() == left


def test_what_the_target_refuses_is_no_duplicates_original():
    """DeepSpeed has no ZeRO-0 with fp32 gradients."""
    space = build_space(LLAMA, NODE, 32, EIGHT | {"sequence_parallel": [False]}, target="deepspeed")
    assert space.zero[space.allowed.any(axis=(0, 1, 3))].tolist() == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "ep", "zero", "left"),
    [(MIXTRAL, 4, (0, 1), {0, 1}), (MIXTRAL, 8, (0, 1), {0}), (LLAMA, 1, (1,), {1})],
)
def test_stages_shard_likewise(model, ep, zero, left):
    tables = StageTables(Question(model, PAIR, 32, 2, 1, ep=ep, tp=8), Techniques((8,), zero, ("full",), (0,)))
    assert set(tables.plain[0].columns["zero"].tolist()) == left


@pytest.mark.parametrize("unequal", [False, True])
def test_experts_fit_sharded(unequal):
    knobs = {"tp": [8], "pp": [2], "ep": [4], "recompute": ["full"], "micro_batch": [1], "unequal_stages": [unequal]}
    assert tune(MIXTRAL, PAIR, 32, knobs, target="megatron", top=1).best.plan.zero == 1


@pytest.mark.parametrize("target", LIMITS)
def test_no_pipeline_is_1f1bs_too(target):
    space = build_space(LLAMA, NODE, 32, {"schedule": ["1f1b"], "zero": [1]}, target=target)
    free = build_space(LLAMA, NODE, 32, {"zero": [1]}, target=target)
    assert space.allowed[space.rows["pp"] == 1].sum() == free.allowed[free.rows["pp"] == 1].sum()
    assert np.any(space.allowed[space.rows["pp"] == 1]) or target.startswith("torchtitan")  # it has no ZeRO-1


@pytest.mark.parametrize(
    ("model", "framework", "asked", "left"),
    [
        (LLAMA, "megatron", [], {"none", "full"}),  # all of its norms are part of products' kernels
        (LLAMA, "torch", [], {"none", "selective", "full"}),
        (MIXTRAL, "megatron", [], {"none", "selective", "full"}),
        (replace(LLAMA, attention="eager"), "megatron", [], {"none", "selective", "full"}),
        (LLAMA, "megatron", ["selective"], {"selective"}),
    ],
)
def test_selective_recompute_of_nothing_is_none(model, framework, asked, left):
    knobs = EIGHT | {"zero": [0]} | ({"recompute": asked} if asked else {})
    space = build_space(model, NODE, 32, knobs, {"framework": framework})
    kinds = np.array(RECOMPUTE)[space.recompute]
    assert set(kinds[space.allowed.any(axis=(0, 2, 3))].tolist()) == left
    assert same_once(model, framework, asked or RECOMPUTE) == [kind for kind in RECOMPUTE if kind in left]
