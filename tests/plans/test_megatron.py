"""Megatron-LM's arguments: what a plan needs beside its degrees, and what of it no argument says."""

from dataclasses import fields

import pytest

import sim
from sim.plans import EXPORTERS
from sim.plans.importing import read_plan
from sim.plans.notes import OF_MEGATRON, notes
from sim.plans.targets import LIMITS
from sim.specs import Cluster, Model, Offload, Plan
from sim.specs.catalog import models
from sim.specs.plan import PER_STAGE

DIMENSIONS = {"name": "m", "layers": 8, "hidden": 512, "heads": 8, "seq": 256, "tied_embeddings": False}
EXPERTS = {"experts": 4, "experts_per_token": 2, "moe_ffn": 512}
LATENT = {"kv_lora_rank": 64, "rope_head_dim": 16, "head_dim": 64, "v_head_dim": 64}
CLUSTER = Cluster.of("h100-sxm-80gb", nodes=1)


def step(model=None, **plan):
    return sim.simulate(Model(**DIMENSIONS | (model or {})), CLUSTER, Plan(global_batch=64, **plan))


def arguments(model=None, **plan):
    return {line.removesuffix(" \\") for line in sim.emit(step(model, **plan), "megatron").splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        (EXPERTS, {}, {"--moe-token-dispatcher-type alltoall", "--moe-grouped-gemm"}),
        (
            EXPERTS,
            {"ep": 2, "token_dispatcher": "deepep", "ep_overlap": True},
            {
                "--moe-token-dispatcher-type flex",
                "--moe-flex-dispatcher-backend deepep",
                "--overlap-moe-expert-parallel-comm",
            },
        ),
        (
            EXPERTS,
            {"token_dispatcher": "hybridep"},
            {"--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend hybridep"},
        ),
        (EXPERTS, {"recompute": "selective"}, {"--recompute-modules layernorm moe_act"}),
        (EXPERTS | LATENT, {"recompute": "selective"}, {"--recompute-modules layernorm moe_act mla_up_proj"}),
        (
            EXPERTS | LATENT,
            {"recompute": "selective", "recompute_experts": True},
            {"--recompute-modules layernorm mla_up_proj moe"},
        ),
        ({}, {"recompute": "selective"}, {"--recompute-granularity selective", "--recompute-modules layernorm"}),
        (
            {"attention": "eager"},
            {"recompute": "selective"},
            {"--recompute-modules core_attn", "--attention-backend unfused"},
        ),
        ({}, {"zero": 1, "offload": Offload(optimizer=0.5)}, {"--use-precision-aware-optimizer"}),
        ({}, {"cuda_graphs": True}, {"--cuda-graph-impl local", "--cuda-graph-scope full_iteration"}),
        ({}, {"layer_graphs": True}, {"--cuda-graph-impl transformer_engine", "--cuda-graph-scope attn mlp"}),
        (EXPERTS, {"layer_graphs": True}, {"--cuda-graph-scope attn moe_router moe_preprocess"}),
        ({}, {"cross_entropy": "fused"}, {"--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl te"}),
    ],
)
def test_what_a_plan_needs_is_said(model, plan, said):
    assert said <= arguments(model, **plan)
    assert not said & arguments()


@pytest.mark.parametrize(
    ("model", "plan", "said"),
    [
        ({}, {"framework": "torch"}, ("plan.framework torch", "plan.core_modules", "plan.cross_entropy autograd")),
        ({}, {"tp": 2, "tp_overlap": False}, ("plan.tp_overlap false: Megatron-LM has true", "must be 1")),
        ({}, {"pp": 2, "blocking_sends": True, "compiled": True}, ("plan.blocking_sends true", "plan.compiled true")),
        ({}, {"tp": 2, "pp": 2, "sequence_parallel": False}, ("plan.scatter_gather true", "MAX_CONNECTIONS must be 1")),
        ({}, {"attention_kernel": "flash-1"}, ("plan.attention_kernel flash-1: Megatron-LM has flash",)),
        ({}, {"optimizer_barrier": False}, ("plan.optimizer_barrier false",)),
        ({}, {"zero": 3}, ("MAX_CONNECTIONS must not be 1 with Megatron-FSDP",)),
        ({}, {"cp": 2}, ("MAX_CONNECTIONS must be 1",)),
        ({}, {"recompute": "selective"}, ("selective recompute drops nothing of m",)),
        (EXPERTS, {"recompute": "selective"}, ()),
        ({"attention": "eager"}, {"recompute": "selective", "attention_kernel": "flash-1"}, ()),
        ({"activation": "relu"}, {}, ("no argument for model.activation relu",)),
        ({"qk_norm": True, "whole_qk_norm": True}, {}, ("no layers with model.whole_qk_norm true",)),
        ({"block_norms": 4}, {}, ("no layers with model.block_norms 4",)),
        ({"qk_norm": True}, {}, ()),
        ({"pattern": "M*M-M*M-"}, {"zero": 3}, ("MAX_CONNECTIONS must not be 1", "the program must name MambaLayer")),
        ({"pattern": "M*M-M*M-"}, {"zero": 1}, ()),
        ({}, {"blocking_sends": True, "tp_overlap": False}, ()),
        ({}, {"tp": 2, "pp": 2}, ("MAX_CONNECTIONS must be 1",)),
    ],
)  # fmt: skip
def test_what_no_argument_says_is_noted(model, plan, said):
    found = list(notes(step(model, **plan), "megatron"))
    known = [note for note in found if any(text in note for text in said)]
    assert (len(known), [note for note in found if note not in known and "plan.tp_overlap" not in note]) == (
        len(said),
        [],
    )


def test_an_encoder_decoder_has_the_layers_of_either_stack():
    """As Megatron-LM's `pretrain_t5.py` takes `num_layers`, and `validate_args` the lengths."""
    made = sim.simulate(models["t5-base"], CLUSTER, Plan(global_batch=64, zero=1))
    text = sim.emit(made, "megatron")
    lines = {line.removesuffix(" \\") for line in text.splitlines()}
    assert {"--num-layers 12", "--encoder-seq-length 512", "--decoder-seq-length 512"} <= lines
    assert not any(line.startswith("--seq-length") for line in lines)
    found = read_plan(text, "megatron", gpus=8, model=made.model)
    assert (found.plan.zero, found.not_read, [note for note in found.notes if "layers" in note]) == (1, (), [])


def test_every_setting_of_a_plan_is_said_limited_or_noted():
    limited = {limit.knob for limit in LIMITS["megatron"]}
    of_the_job = {"dp", "optimizer", "software_year", "assumptions", "derived"}
    known = {*EXPORTERS["megatron"].expresses, *limited, *OF_MEGATRON, *PER_STAGE, *of_the_job}
    # No recurrent layers are left once a plan has passed the limits.
    assert {f.name for f in fields(Plan)} - known == {"recurrent_kernel"}
