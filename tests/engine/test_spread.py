"""Steps under every way of spreading: what must fall, rise or stay when one degree changes."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.costs.run_level import run_level
from sim.engine.batch import Asked, Batch
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models
from sim.specs.plan import RankOrder

LLAMA, MOE = models["llama3-8b"], models["qwen3-30b-a3b"]
LONG = replace(LLAMA, seq=32_768)


def step(model=LLAMA, device="h100-sxm-80gb", nodes=8, cluster=None, **given):
    plan = Plan(**{"global_batch": 512} | given)
    return simulate(model, cluster or Cluster.of(device, nodes=nodes), plan)


def mixed(*devices, nodes=4):
    return Cluster.of(groups=[{"device": d, "nodes": nodes} for d in devices])


def test_hsdp_lies_between_full_shards_and_copies():
    shards = [1, 2, 8, 32, 64]
    memory = [step(zero=3, fsdp_shard=n).peak_memory_bytes for n in shards]
    assert memory == sorted(memory, reverse=True)
    assert memory[0] > 2 * memory[-1]
    assert step(zero=3, fsdp_shard=64).step_time_s == step(zero=3).step_time_s
    # One node's copy gathers over its own links.
    inside, across = (step(zero=3, fsdp_shard=n, overlap_dp=False).costs["forward_dp"] for n in (8, 64))
    assert inside < across


def test_context_parallelism_splits_tokens():
    one, two, four = (step(LONG, cp=n, global_batch=64) for n in (1, 2, 4))
    assert one.peak_memory_bytes > two.peak_memory_bytes > four.peak_memory_bytes
    assert one.costs["forward_compute"] > 1.8 * two.costs["forward_compute"]
    assert two.tokens_per_s_per_gpu == pytest.approx(one.tokens_per_s_per_gpu, rel=0.1)


def test_experts_move_apart():
    """More expert parallelism: fewer expert parameters a rank, the same work, more traffic."""
    one, eight = (step(MOE, ep=n, zero=1, global_batch=64) for n in (1, 8))
    expert = sum(n * b.expert_parameters for b, n in MOE.blocks.items())
    saved = float(one.costs["parameters_only"][0] - eight.costs["parameters_only"][0])
    assert saved == pytest.approx(2 * expert * 7 / 8)
    assert one.breakdown["ep"] == 0 < eight.breakdown["ep"]


def test_tensor_parallel_groups_belong_inside_the_node():
    usual = step(tp=4, pp=4)
    for order in ("tp-cp-pp-dp", "pp-tp-cp-dp", "dp-tp-cp-pp"):
        other = step(tp=4, pp=4, rank_order=order)
        assert other.breakdown["tp"] >= usual.breakdown["tp"]
        assert (other.breakdown["tp"] > 2 * usual.breakdown["tp"]) == (order != "tp-cp-pp-dp")
    assert step(tp=4, pp=4, rank_order="pp-tp-cp-dp").step_time_s > usual.step_time_s


def test_a_domain_of_many_nodes_carries_wide_groups():
    """Experts over 64 devices: inside an NVL72 domain, or over nodes of eight."""
    wide = Cluster.of("gb200", nodes=16)
    narrow = Cluster.of("gb200", nodes=16, domain_gpus=4)
    for plan in ({"tp": 8}, {"ep": 64}):
        near, far = (step(MOE, cluster=c, zero=1, **plan) for c in (wide, narrow))
        term = next(iter(plan))
        assert far.breakdown[term] > 3 * near.breakdown[term] > 0


def test_oversubscription_slows_only_groups_that_reach_beyond_a_leaf():
    def under(leaf):
        links = {"oversubscription": 2.0, "rail_nodes": leaf}
        return Cluster.of("h100-sxm-80gb", nodes=8, links=links)

    given = {"tp": 2, "zero": 1, "overlap_dp": False}
    free, whole, half = (step(cluster=c, **given) for c in (Cluster.of("h100-sxm-80gb", nodes=8), under(8), under(4)))
    assert free.step_time_s == whole.step_time_s
    assert half.breakdown["dp"] > 1.5 * whole.breakdown["dp"]
    assert half.breakdown["tp"] == whole.breakdown["tp"]


@pytest.mark.parametrize("given", [{}, {"tp": 8}, {"tp": 2, "pp": 4}, {"pp": 4, "virtual_stages": 2, "zero": 1}])
def test_groups_of_one_device_are_one_cluster(given):
    apart, one = step(cluster=mixed("h100-sxm-80gb", "h100-sxm-80gb"), **given), step(**given)
    assert apart.step_time_s == one.step_time_s
    assert apart.breakdown_s == one.breakdown_s
    assert apart.peak_memory_bytes == one.peak_memory_bytes


@pytest.mark.parametrize("given", [{}, {"tp": 8}, {"zero": 3}])
def test_without_a_pipeline_the_slowest_device_decides(given):
    both, slow, fast = (
        step(cluster=mixed("h100-sxm-80gb", "a100-sxm-80gb"), **given),
        step(device="a100-sxm-80gb", **given),
        step(**given),
    )
    # Term by term the slower device counts; how an H100's streams slow each other is assumed, and more than measured.
    assert slow.step_time_s * (1 - 1e-3) <= both.step_time_s <= slow.step_time_s * 1.06
    assert fast.step_time_s < both.step_time_s


def test_fewer_layers_on_slow_devices_help():
    cluster = mixed("h100-sxm-80gb", "a100-sxm-80gb", nodes=1)
    even, shifted, worse = (step(cluster=cluster, pp=2, stage_layers=s) for s in (None, (22, 10), (10, 22)))
    assert shifted.step_time_s < even.step_time_s < worse.step_time_s


def test_even_stage_layers_are_the_default():
    given = {"tp": 2, "pp": 4, "zero": 1}
    default, stated = step(**given), step(stage_layers=(8, 8, 8, 8), **given)
    assert stated.step_time_s == default.step_time_s
    assert stated.breakdown_s == default.breakdown_s
    moved = step(stage_layers=(9, 8, 8, 7), **given)
    ratio = moved.costs["forward_compute"] / default.costs["forward_compute"]
    assert ratio == pytest.approx([9 / 8, 1, 1, 7 / 8])


@pytest.mark.parametrize("model", [LLAMA, models["gpt3-5b"], models["mixtral-8x7b"]])
@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2", "zb-1p", "zb-2p"])
def test_zero_bubble_schedules_do_not_lose(model, schedule):
    usual, zero_bubble = (step(model, pp=4, tp=2, schedule=s, global_batch=64) for s in ("1f1b", schedule))
    assert zero_bubble.step_time_s <= usual.step_time_s * (1 + 1e-9)


PLANS = [
    (LLAMA, {"tp": 4, "zero": 1}, 1e-9),
    (LLAMA, {"tp": 2, "pp": 4, "cp": 2}, 0.02),
    (MOE, {"ep": 8, "zero": 3, "recompute": "full"}, 1e-9),
    (MOE, {"ep": 8, "pp": 4, "virtual_stages": 3}, 0.12),
    (models["bert-large"], {"pp": 2, "tp": 2, "zero": 1}, 0.05),
    (LLAMA, {"tp": 2, "pp": 4, "virtual_stages": 2, "micro_batch": 2, "microbatch_group_size": 16}, 0.05),
    (LLAMA, {"tp": 2, "pp": 4, "virtual_stages": 2, "micro_batch": 2, "microbatch_group_size": 12}, 0.0),
    (models["t5-base"], {"tp": 2, "pp": 2}, 0.0),
    (LLAMA, {"tp": 2, "pp": 4, "schedule": "zb-h1"}, 0.0),
    (LLAMA, {"pp": 2, "stage_layers": (15, 17)}, 0.0),
]


def test_a_batch_predicts_what_steps_do():
    """Exactly where a step runs on the engine; else as near as its closed form."""
    cluster = Cluster.of("h100-sxm-80gb", nodes=8)
    placed = [Plan(global_batch=512, **given).on(m, cluster) for m, given, _ in PLANS]
    asked = [Asked(m, cluster, p) for (m, _, _), p in zip(PLANS, placed, strict=True)]
    asked.append(Asked(LLAMA, mixed("h100-sxm-80gb", "a100-sxm-80gb"), Plan(global_batch=512).on(LLAMA, cluster)))
    table = Batch(asked)(run_level())
    columns = table.step_time_s, table.peak_memory_bytes, table.last_peak_bytes
    for a, time, peak, last, near in zip(asked, *columns, [n for *_, n in PLANS] + [0.0], strict=True):
        one = simulate(a.model, a.cluster, a.placed.plan)
        assert last == pytest.approx(one.memory[-1].peak_bytes, rel=1e-9)
        assert time == pytest.approx(one.step_time_s, rel=max(near, 1e-7))
        assert peak == pytest.approx(one.peak_memory_bytes, rel=1e-9)


FAMILIES = (
    "llama3-8b",
    "mixtral-8x7b",
    "deepseek-v2",
    "nemotron-3-nano",
    "gpt-oss-20b",
    "t5-base",
    "bert-base",
    "vit-h",
)


@st.composite
def spread(draw):
    """Draw a legal step of any family under any plan."""
    model = models[draw(st.sampled_from(FAMILIES))]
    cluster = draw(
        st.sampled_from(
            [
                Cluster.of("h100-sxm-80gb", nodes=4),
                Cluster.of("gb200", nodes=8),
                mixed("h100-sxm-80gb", "a100-sxm-80gb"),
            ]
        )
    )
    degree = st.sampled_from([1, 2, 4])
    pp = draw(degree)
    given = {
        "tp": draw(degree), "pp": pp, "cp": draw(degree), "micro_batch": draw(degree),
        "ep": draw(degree) if model.experts else 1, "zero": draw(st.integers(0, 3)),
        "etp": draw(st.sampled_from([1, 2])) if model.experts else 1,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "overlap_dp": draw(st.booleans()), "tp_overlap": draw(st.booleans()), "compiled": draw(st.booleans()),
        "blocking_sends": draw(st.booleans()),
        "fsdp_shard": draw(st.sampled_from([None, 2, 4])),
        "schedule": draw(st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-2p"])) if pp > 1 else None,
        "rank_order": draw(st.sampled_from(RankOrder.__args__)),
    }  # fmt: skip
    try:
        return simulate(model, cluster, Plan(global_batch=64, **given))
    except InputError:
        assume(False)


@pytest.mark.slow
@given(spread())
def test_terms_are_numbers_that_add_up(found):
    assert all(math.isfinite(v) and v >= -1e-9 for v in found.breakdown_s.values())
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)
    assert 0 < found.mfu < 1
    assert 0 < found.peak_memory_bytes < math.inf
    for memory in found.memory:
        assert min(memory.composition().values()) >= 0


@given(spread())
def test_more_layers_are_never_free(found):
    """Two more layers a stage, on stages of their own size: time and memory grow."""
    assume(set(found.model.pattern) == {"T"} or set(found.model.pattern) == {"N"})
    layers = found.model.layers + 2 * found.plan.pp
    larger = Model(**{**_stated(found.model), "layers": layers, "pattern": None})
    grown = simulate(larger, found.cluster, found.plan)
    assert grown.step_time_s > found.step_time_s
    assert grown.peak_memory_bytes > found.peak_memory_bytes


def _stated(model):
    return {
        k: v for k, v in vars(model).items() if k in Model.__dataclass_fields__ and Model.__dataclass_fields__[k].init
    }
