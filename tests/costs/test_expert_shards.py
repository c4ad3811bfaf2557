"""Hybrid sharding holds for experts too: shards over the ranks of a copy that have the same experts, then copies."""

from dataclasses import replace

import numpy as np
import pytest

from sim.engine.step import simulate
from sim.specs import Cluster, Model, Plan

MODEL = Model(
    name="experts", layers=4, hidden=1024, heads=16, vocab=32_000, seq=1024, experts=8, experts_per_token=2,
    moe_ffn=2048, mlp_bias=False,
)  # fmt: skip
CLUSTER = Cluster.of("h100-sxm-80gb", nodes=1)


def state(name, model=MODEL, **given):
    step = simulate(model, CLUSTER, Plan(**{"global_batch": 8, "micro_batch": 1, "ep": 2} | given))
    return float(np.ravel(step.costs[f"{name}_only"])[0])


@pytest.mark.parametrize("name", ["optimizer_bytes", "parameters", "gradients"])
def test_a_copy_of_one_rank_shards_nothing(name):
    assert state(name, zero=3, fsdp_shard=1) == state(name)


@pytest.mark.parametrize(("shard", "experts"), [(2, 1), (4, 2), (8, 4)])
def test_experts_are_sharded_over_the_ranks_of_a_copy_that_have_them(shard, experts):
    """Of 8 ranks that hold 2 kinds of experts: `shard` in a copy, half of them with the same experts."""
    routed = 4 * 8 * 2 * 1024 * 2048 / 2
    dense = (state("optimizer_bytes") - 12 * routed) / 12
    assert state("optimizer_bytes", zero=3, fsdp_shard=shard) == pytest.approx(12 * (dense / shard + routed / experts))


def test_copies_add_up_what_their_shards_have_summed():
    """A shard of the whole needs no second sum, smaller ones do, over fewer bytes the more they are."""
    times = [
        simulate(MODEL, CLUSTER, Plan(global_batch=8, micro_batch=1, ep=2, zero=1, fsdp_shard=n)) for n in (2, 4, 8)
    ]
    assert all(step.breakdown_s["dp"] > 0 for step in times)
    assert len({step.breakdown_s["dp"] for step in times}) == 3


@pytest.mark.parametrize("framework", ["megatron", "torch"])
def test_zero_is_the_same_without_ranks_to_shard_over(framework):
    plans = [Plan(global_batch=8, tp=8, ep=8, zero=zero, framework=framework) for zero in range(4)]
    assert len({simulate(MODEL, CLUSTER, plan).peak_memory_bytes for plan in plans}) == 1


def test_experts_alone_are_gathered_where_nothing_else_is_sharded():
    """Two layers' 16-bit weights, and one's fp32 gradients, of half the experts."""
    assert state("gathered_bytes", zero=3, tp=8) == (2 * 2 + 4) * 8 * 2 * 1024 * 2048 / 2


def test_experts_that_no_other_rank_has_are_not_gathered():
    usual, wide = (state("gathered_bytes", replace(MODEL, moe_ffn=n), zero=3, ep=8) for n in (2048, 65_536))
    assert usual == wide


def test_fsdp_holds_fp32_weights_alone_where_only_experts_are_sharded():
    """On 8 ranks of tp, two with the same experts each: 4 bytes of a weight and 8 of its moments, no more."""
    given = {"tp": 8, "ep": 4, "framework": "torch"}
    sharded = state("parameters", **given) / 2 - 4 * 8 * 2 * 1024 * 2048 / 4 / 2
    assert state("parameters", zero=3, **given) == 4 * sharded
    assert state("optimizer_bytes", zero=3, **given) == 8 * sharded


@pytest.mark.parametrize(("tp", "ep", "layers"), [(8, 4, 2), (1, 8, 1), (1, 4, 2)])
def test_fsdp_casts_experts_of_the_running_layer_and_gathers_only_shards_ahead(tp, ep, layers):
    given = {"tp": tp, "ep": ep, "zero": 3, "framework": "torch"}
    usual, wide = (state("gathered_bytes", replace(MODEL, moe_ffn=n), **given) for n in (2048, 4096))
    assert wide - usual == 2 * layers * 8 / ep * 2 * 1024 * 2048


def test_fsdp_casts_the_ends_that_no_other_rank_holds():
    """A tied table's 16-bit copy, and its gradient as the head."""
    given = {"tp": 8, "ep": 4, "zero": 3, "framework": "torch"}
    usual, wide = (state("gathered_bytes", replace(MODEL, vocab=n), **given) for n in (32_000, 64_000))
    table = 32_000 * 1024 / 8
    assert wide - usual == 2 * table + 2 * table
