"""Targets: what a search leaves out is what the target refuses, one plan or a whole space at a time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.plans.targets import LIMITS, refusals
from sim.specs import Cluster, InputError, Model, Offload, Plan, StagePlan
from sim.specs.catalog import models
from sim.specs.pipelines import ASYNCHRONOUS, TWO_COPIES
from sim.tuner.space import build_space
from sim.tuner.tune import tune

DIMENSIONS = {"layers": 8, "hidden": 512, "heads": 8, "seq": 256, "tied_embeddings": False}
MODEL = Model(name="small", **DIMENSIONS, experts=4, experts_per_token=2, moe_ffn=512)
CLUSTER = Cluster.of("h100-sxm-80gb", nodes=1)
KNOBS = {"schedule": ["none", "1f1b", "interleaved", "gpipe"], "cp": [1, 2]}
SPACES = {target: build_space(MODEL, CLUSTER, 12, KNOBS, target=target) for target in LIMITS}
EXPORTERS = {exporter.target: exporter.name for exporter in sim.plans.EXPORTERS.values()}
AT = st.tuples(*(st.integers(0, n - 1) for n in SPACES["any"].allowed.shape))


@pytest.mark.parametrize("target", LIMITS)
def test_every_combination_is_counted_once(target):
    space = SPACES[target]
    assert int(space.allowed.sum()) + sum(space.excluded.values()) == space.asked
    # Without ranks to shard over any stage of ZeRO stands for all: the least that the target can run.
    assert (space.allowed.any(axis=2) <= SPACES["any"].allowed.any(axis=2)).all()
    assert space.allowed.any()


@given(AT, st.sampled_from(list(LIMITS)))
def test_a_space_and_a_plan_are_judged_alike(at, target):
    if SPACES["any"].allowed[at]:
        placed = SPACES["any"].plan(*at).on(MODEL, CLUSTER)
        assert SPACES[target].allowed[at] == (not list(refusals(MODEL, placed, target)))


@given(AT, st.sampled_from(list(EXPORTERS)))
def test_what_the_tuner_may_propose_can_be_emitted(at, target):
    if SPACES[target].allowed[at]:
        step = sim.simulate(MODEL, CLUSTER, SPACES[target].plan(*at))
        assert sim.emit(step, EXPORTERS[target])


@given(AT)
def test_what_torchtitan_refuses_is_left_out(at):
    if SPACES["any"].allowed[at] and not SPACES["torchtitan"].allowed[at]:
        step = sim.simulate(MODEL, CLUSTER, SPACES["any"].plan(*at))
        with pytest.raises(InputError):
            sim.emit(step, "torchtitan")


def test_what_the_pipeline_engines_take_of_zero():
    for target, most in (("torch", 3), ("torchtitan", 3), ("megatron", 1), ("deepspeed", 1)):
        space = SPACES[target]
        piped = space.allowed[space.rows["pp"] > 1].any(axis=(0, 1, 3))
        assert int(space.zero[np.flatnonzero(piped)].max()) == most


@pytest.mark.parametrize(
    ("target", "settings", "knob"),
    [
        ("torch", {"offload": Offload(optimizer=0.5), "zero": 3}, "offload"),
        ("torch", {"schedule": "2bw", "pp": 2}, "schedule"),
        ("torch", {"schedule": "zb-h1", "pp": 2, "recompute": "full"}, "recompute"),
        (
            "torchtitan",
            {"zero": 3, "pp": 2, "virtual_stages": 2, "schedule": "interleaved-zb", "recompute": "selective"},
            "recompute",
        ),
        ("torchtitan", {"zero": 3, "cp": 2}, "cp"),
        ("torchtitan", {"zero": 3, "ep": 2, "tp": 4}, "ep"),
        ("torchtitan-0.3", {"zero": 3, "tp": 4}, "ep"),
        ("torchtitan-0.3", {"zero": 3, "gradient_dtype": "bf16"}, "gradient_dtype"),
        ("torchtitan-0.3", {"zero": 3, "overlap_dp": False}, "overlap_dp"),
        ("megatron", {"schedule": "gpipe", "pp": 2}, "schedule"),
        ("megatron", {"rank_order": "pp-tp-cp-dp"}, "rank_order"),
        ("megatron", {"offload": Offload(activations=0.5), "recompute": "full"}, "offload"),
        ("megatron", {"zero": 2, "pp": 2}, "zero"),
        ("megatron", {"tp": 2, "ep": 2, "sequence_parallel": False}, "sequence_parallel"),
        ("megatron", {"tp": 2, "sequence_parallel": False}, "sequence_parallel"),
        *(("megatron", {"zero": zero, "ep": 2, "fsdp_shard": 4}, "fsdp_shard") for zero in (2, 3)),
        ("deepspeed", {"zero": 3, "pp": 2}, "zero"),
        ("deepspeed", {"tp": 2, "ep": 2, "gradient_dtype": "bf16"}, "sequence_parallel"),
        ("deepspeed", {"tp": 2, "ep": 2, "etp": 2, "sequence_parallel": False, "zero": 1}, "etp"),
        ("deepspeed", {"tp": 2, "sequence_parallel": False, "zero": 1}, "ep"),
        ("deepspeed", {"pp": 2, "ep": 2, "zero": 1}, "ep"),
        (
            "deepspeed",
            {"tp": 2, "ep": 2, "sequence_parallel": False, "zero": 1, "offload": Offload(optimizer=1.0)},
            "offload",
        ),
        ("deepspeed", {"cp": 2, "gradient_dtype": "bf16"}, "cp"),
        ("deepspeed", {"pp": 2, "stage_layers": (3, 5), "gradient_dtype": "bf16"}, "stage_layers"),
        ("deepspeed", {"fsdp_shard": 4, "zero": 1}, "fsdp_shard"),
        ("deepspeed", {"offload": Offload(optimizer=0.5), "zero": 2}, "offload"),
        ("deepspeed", {"offload": Offload(activations=1.0), "zero": 1}, "offload"),
        ("deepspeed", {"schedule": "dualpipev", "pp": 4, "virtual_stages": 2, "zero": 1}, "schedule"),
        ("deepspeed", {"zero": 0}, "gradient_dtype"),
        ("deepspeed", {"zero": 1, "precision": "fp8"}, "precision"),
        ("deepspeed", {"zero": 1, "recompute": "selective"}, "recompute"),
        ("deepspeed", {"fsdp_shard": 4, "zero": 3}, "fsdp_shard"),
        ("megatron", {"recompute": "selective", "recompute_layers": 1}, "recompute_layers"),
        ("megatron", {"schedule": "gpipe"}, "schedule"),
        ("megatron", {"precision": "fp16"}, "precision"),
        ("megatron", {"precision": "fp32"}, "precision"),
        ("megatron", {"precision": "fp8", "recompute": "selective"}, "recompute"),
        ("megatron", {"rank_order": "tp-cp-pp-dp", "pp": 2, "ep": 2}, "rank_order"),
        ("megatron", {"rank_order": "tp-cp-pp-dp", "pp": 2, "tp": 2}, "rank_order"),
        ("megatron", {"zero": 1, "ep": 4, "fsdp_shard": 2}, "fsdp_shard"),
        ("megatron", {"offload": Offload(optimizer=0.5)}, "offload"),
        ("megatron", {"zero": 2, "overlap_dp": False}, "overlap_dp"),
        ("megatron", {"cuda_graphs": True}, "cuda_graphs"),
        ("megatron", {"layer_graphs": True, "recompute": "full"}, "layer_graphs"),
        ("megatron", {"layer_graphs": True, "recompute": "selective", "recompute_experts": True}, "layer_graphs"),
        ("torchtitan", {"zero": 3, "ep": 4, "tp": 4, "cuda_graphs": True}, "cuda_graphs"),
        ("torchtitan-0.3", {"zero": 3, "ep": 2, "tp": 4, "cuda_graphs": True}, "cuda_graphs"),
        ("torchtitan", {"zero": 3, "etp": 2, "tp": 2, "ep": 2}, "etp"),
        ("torchtitan", {"ep": 4, "zero": 0}, "ep"),
        *((t, {"tempo": True, "zero": 2}, "tempo") for t in ("torchtitan", "megatron", "deepspeed")),
        *((t, {"product_kernel": "task-mapped", "zero": 2}, "product_kernel") for t in ("torchtitan", "megatron")),
        ("deepspeed", {"product_kernel": "task-mapped", "zero": 1}, "product_kernel"),
    ],
)
def test_a_target_refuses_by_knob(target, settings, knob):
    placed = Plan(global_batch=16, **settings).on(MODEL, CLUSTER)
    assert [error.path for error in refusals(MODEL, placed, target)] == [f"plan.{knob}"]
    assert not list(refusals(MODEL, placed, "any"))


@pytest.mark.parametrize(
    ("parts", "piped", "refused"),
    [
        ({}, False, False),
        ({"mtp_layers": 1}, False, True),
        ({"mtp_layers": 1}, True, False),
        ({"mtp_layers": 2}, True, True),
        ({"pattern": "MEMEMEME"}, False, True),
    ],
)
def test_megatron_hides_exchanges_of_transformer_layers(parts, piped, refused):
    model = Model(name="small", **DIMENSIONS, experts=4, experts_per_token=2, moe_ffn=512, bias=False, **parts)
    given_ = {"pp": 2, "virtual_stages": 2} if piped else {}
    placed = Plan(global_batch=16, ep=2, ep_overlap=True, zero=1, **given_).on(model, CLUSTER)
    assert [error.path for error in refusals(model, placed, "megatron")] == ["plan.ep_overlap"] * refused


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        ("torch", {"pp": 2, "stage_layers": (3, 5), "rank_order": "pp-tp-cp-dp", "schedule": "zb-h1"}),
        ("torch", {"pp": 2, "schedule": "interleaved", "virtual_stages": 2, "recompute": "full"}),
        ("torchtitan-0.3", {"zero": 3, "ep": 2, "tp": 4, "cp": 2}),
        ("torchtitan", {"zero": 3, "ep": 4, "tp": 4}),
        ("megatron", {"offload": Offload(optimizer=0.5), "zero": 1}),
        ("megatron", {"pp": 2, "stage_layers": (3, 5)}),
        ("megatron", {"rank_order": "tp-cp-pp-dp", "ep": 2}),
        ("megatron", {"rank_order": "tp-cp-pp-dp", "pp": 2, "ep": 1}),
        ("megatron", {"zero": 1, "ep": 4, "fsdp_shard": 4}),
        ("megatron", {"zero": 3, "ep": 2}),
        ("megatron", {"zero": 3, "fsdp_shard": 4}),
        ("megatron", {"precision": "mxfp8", "recompute": "selective"}),
        ("deepspeed", {"offload": Offload(optimizer=0.5), "zero": 3}),
        ("deepspeed", {"offload": Offload(activations=1.0), "recompute": "full", "zero": 1}),
        ("deepspeed", {"zero": 3, "ep": 4, "tp": 4, "sequence_parallel": False}),
        ("deepspeed", {"zero": 1, "pp": 2}),
    ],
)
def test_a_target_takes(target, settings):
    assert not list(refusals(MODEL, Plan(global_batch=16, **settings).on(MODEL, CLUSTER), target))


def test_layers_that_a_stage_repeats_are_told_of_that_stage():
    stages = tuple(StagePlan(layers=4, tp=2, dp=2, recompute="full", recompute_layers=n) for n in (None, 3))
    placed = Plan(pp=2, stages=stages, global_batch=16).on(MODEL, CLUSTER)
    told = [(e.path, e.value) for e in refusals(MODEL, placed, "deepspeed") if "recompute_layers" in e.path]
    assert told == [("plan.stages[1].recompute_layers", 3)]


FOUR = Cluster.of("h100-sxm-80gb", nodes=1, gpus_per_node=4)
HYBRID = Model(name="hybrid", layers=4, pattern="M*M-", hidden=512, heads=8, seq=256, ssm_state=64, ssm_heads=16)
GROUPED = replace(HYBRID, name="grouped", ssm_groups=3, ssm_heads=24)
T5 = replace(models["t5-base"], name="t5 of unequal stacks", encoder_layers=8, pattern="N" * 8 + "C" * 16)
ODD = Model(name="odd", layers=4, hidden=512, heads=8, seq=250)


@pytest.mark.parametrize(
    ("model", "target", "settings", "path"),
    [
        ("lstm-lm", "torch", {"recurrent_kernel": "fused", "pp": 2}, None),
        ("lstm-lm", "deepspeed", {}, None),
        ("llama3.2-1b", "deepspeed", {"tp": 2, "sequence_parallel": False, "offload": Offload(optimizer=1.0)}, None),
        ("llama3.2-1b", "deepspeed", {"tp": 2, "pp": 2, "sequence_parallel": False}, "plan.tp"),
        ("lstm-lm", "deepspeed", {"pp": 2}, "plan.pp"),
        ("lstm-lm", "deepspeed", {"recurrent_kernel": "fused"}, "plan.recurrent_kernel"),
        ("lstm-lm", "megatron", {}, "model"),
        ("bert-base", "deepspeed", {"recurrent_kernel": "fused"}, None),
        (HYBRID, "torchtitan", {"zero": 2}, "model"),
        *((name, "torchtitan", {"zero": 2}, "model") for name in ("bert-base", "t5-base")),
        ("llama3.2-1b", "torchtitan-0.3", {"zero": 0, "pp": 2}, "plan.pp"),
        ("llama3.2-1b", "torchtitan-0.3", {"zero": 2}, None),
        ("gemma-2b", "torchtitan-0.3", {"zero": 0, "tp": 2}, "plan.tp"),
        ("deepseek-v3", "torchtitan-0.3", {"zero": 0, "pp": 2, "stage_layers": (31, 30)}, "plan.pp"),
        ("deepseek-v3", "torchtitan-0.3", {"zero": 3, "cp": 2}, "plan.cp"),
        ("deepseek-v3", "torchtitan-0.3", {"zero": 3}, None),
        ("deepseek-v3", "torchtitan", {"zero": 0, "pp": 2, "stage_layers": (31, 30)}, "plan.pp"),
        (ODD, "megatron", {"cp": 2}, "plan.cp"),
        ("gpt-oss-20b", "megatron", {"tp": 2, "ep": 2, "etp": 2}, "plan.etp"),
        ("gpt-oss-20b", "megatron", {"tp": 2, "ep": 4, "etp": 1}, None),
        ("mixtral-8x7b", "megatron", {"tp": 2, "ep": 2, "etp": 2}, None),
        (ODD, "megatron", {"cp": 1}, None),
        (ODD, "torchtitan-0.3", {"cp": 2, "zero": 3}, "plan.cp"),
        (ODD, "torchtitan-0.3", {"zero": 3}, None),
        ("llama3.2-1b", "megatron", {"pp": 1, "cp": 2, "rank_order": "tp-cp-pp-dp"}, None),
        ("gpt-22b", "megatron", {"precision": "fp8", "recompute": "selective"}, None),
        (HYBRID, "megatron", {"pp": 2}, None),
        (HYBRID, "megatron", {"pp": 2, "virtual_stages": 2}, "plan.schedule"),
        (HYBRID, "megatron", {"pp": 2, "stage_layers": (3, 1)}, "plan.stage_layers"),
        (HYBRID, "megatron", {"tp": 2, "cp": 2}, None),
        (replace(HYBRID, ssm_groups=1), "megatron", {"tp": 2}, "plan.tp"),
        (replace(HYBRID, ssm_groups=1), "megatron", {"cp": 4}, None),
        (GROUPED, "megatron", {"cp": 2}, "plan.cp"),
        (replace(HYBRID, ssm_heads=12), "megatron", {"precision": "mxfp8"}, "plan.precision"),
        *((replace(HYBRID, ssm_heads=12), "megatron", {"precision": kind}, None) for kind in ("bf16", "nvfp4")),
        (HYBRID, "megatron", {"precision": "fp8"}, None),
        (HYBRID, "megatron", {"offload": Offload(activations=0.5)}, "plan.offload"),
        (HYBRID, "megatron", {"offload": Offload(optimizer=0.5)}, None),
        *((name, "megatron", {"cp": 2}, "plan.cp") for name in ("gpt-22b", "mistral-7b", "gpt-oss-20b")),
        ("llama3.2-1b", "megatron", {"cp": 2}, None),
        ("t5-base", "megatron", {"pp": 2}, "plan.pp"),
        ("t5-base", "megatron", {"recompute": "full", "recompute_layers": 2}, "plan.recompute_layers"),
        ("t5-base", "megatron", {"recompute": "full"}, None),
        (T5, "megatron", {}, "model"),
    ],
)
def test_layers_that_a_target_has_not(model, target, settings, path):
    made = models[model] if isinstance(model, str) else model
    placed = Plan(global_batch=16, **{"zero": 1} | settings).on(made, FOUR)
    assert [error.path for error in refusals(made, placed, target)] == ([path] if path else [])


def test_megatrons_order_without_experts_counts_context_parallel_ranks():
    """Their data-parallel ranks are those of experts, of which a network without them has none (parallel_state.py)."""
    model = Model(name="dense", **DIMENSIONS)
    for cp, path in ((1, []), (2, ["plan.rank_order"])):
        placed = Plan(global_batch=16, tp=2, pp=2, cp=cp, rank_order="tp-cp-pp-dp").on(model, CLUSTER)
        assert [error.path for error in refusals(model, placed, "megatron")] == path


def test_layers_that_a_target_has_not_are_left_out_of_a_space():
    space = build_space(MODEL, CLUSTER, 12, {"tempo": [False, True]}, target="megatron")
    assert "Megatron-LM has none of Tempo's layers" in space.excluded
    assert not space.rows["tempo"][space.allowed.any(axis=(1, 2, 3))].any()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tempo": True}, "plan.tempo: got True; allowed: false"),
        ({"product_kernel": "task-mapped"}, "plan.product_kernel: got 'task-mapped'; allowed: library"),
    ],
)
def test_what_no_search_changes_is_refused_before_it(settings, said):
    with pytest.raises(InputError, match=f"^{said}"):
        tune(MODEL, CLUSTER, 16, plan=Plan(global_batch=16, **settings), target="megatron")


@pytest.mark.parametrize("schedule", TWO_COPIES + ASYNCHRONOUS)
def test_two_copies_go_in_no_file_of_torch(schedule):
    """Nor several versions."""
    placed = Plan(global_batch=16, pp=2, schedule=schedule).on(MODEL, CLUSTER)
    assert [error.path for error in refusals(MODEL, placed, "torch")] == ["plan.schedule"]
    with pytest.raises(InputError):
        sim.emit(sim.simulate(MODEL, CLUSTER, placed.plan), "torch-csv")


def test_a_traced_network_without_tokens_is_not_torchtitans():
    limit = LIMITS["torchtitan"][0]
    placed = Plan(global_batch=16).on(MODEL, CLUSTER)
    asked = replace(limit_asked(placed), reads_tokens=False)
    assert limit.broken(asked)
    assert not limit.broken(limit_asked(placed))


def limit_asked(placed):
    from sim.plans.limit import Asked  # noqa: PLC0415 - beside its only use

    return Asked.of(MODEL, placed)


def test_a_refusal_of_unequal_stages_says_where_and_in_what_they_differ():
    stages = tuple(StagePlan(layers=4, tp=2, dp=2, zero=zero) for zero in (2, 1))
    placed = Plan(global_batch=32, stages=stages).on(MODEL, CLUSTER)
    told = {target: [str(error) for error in refusals(MODEL, placed, target)] for target in ("megatron", "torchtitan")}
    assert any(one.startswith("plan.stages: got 'stages that differ in zero'") for one in told["megatron"])
    assert any(
        one.startswith("plan.stages[1].zero: got 1; allowed: 0 (with cp 1), 2 or 3") for one in told["torchtitan"]
    )
