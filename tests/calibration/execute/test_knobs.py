"""The table of knobs says what the code does."""

from dataclasses import fields

import pytest

import sim
from calibration.execute import knobs
from sim.costs.profile import load_profile
from sim.plans import EXPORTERS
from sim.specs import Cluster, InputError, Model, Offload, Plan, StagePlan
from sim.specs.catalog import models
from tests.costs.test_products import with_mapped

DIMENSIONS = {"layers": 8, "hidden": 512, "heads": 8, "seq": 256, "tied_embeddings": False}
MODEL = Model(name="moe", **DIMENSIONS, experts=4, experts_per_token=2, moe_ffn=512, bias=False)
DENSE = Model(name="dense", **DIMENSIONS)
CLUSTER = Cluster.of("h100-sxm-80gb", nodes=2)
HALF = StagePlan(layers=4, dp=8)
CHANGES = {
    "tp": ({}, 2),
    "pp": ({}, 2),
    "virtual_stages": ({"pp": 2, "schedule": "interleaved", "virtual_stages": 2}, 4),
    "dp": ({}, 16),
    "cp": ({}, 2),
    "ep": ({}, 2),
    "etp": ({"tp": 2}, 2),
    "fsdp_shard": ({"zero": 3}, 4),
    "rank_order": ({"tp": 2, "pp": 2}, "pp-tp-cp-dp"),
    "stage_layers": ({"pp": 2}, (3, 5)),
    "sequence_parallel": ({"tp": 2}, False),
    "global_batch": ({}, 128),
    "micro_batch": ({}, 2),
    "schedule": ({"pp": 2}, "gpipe"),
    "microbatch_group_size": ({"pp": 2, "virtual_stages": 2}, 4),
    "recompute": ({}, "full"),
    "zero": ({}, 1),
    "gradient_dtype": ({}, "bf16"),
    "overlap_dp": ({}, False),
    "precision": ({}, "fp8"),
    "compiled": ({}, True),
    "cuda_graphs": ({}, True),
    "layer_graphs": ({}, True),
    "fused_wgrad": ({}, False),
    "scatter_gather": ({"tp": 2, "pp": 2, "sequence_parallel": False}, False),
    "tp_overlap": ({"tp": 2}, False),
    "tp_comm_overlap": ({"tp": 2}, True),
    "token_dispatcher": ({"ep": 4}, "deepep"),
    "fused_experts": ({"precision": "mxfp8", "cuda_graphs": True}, True),
    "recompute_experts": ({"recompute": "selective"}, True),
    "ep_overlap": ({"ep": 4}, True),
    "blocking_sends": ({"pp": 2}, True),
    "framework": ({"zero": 3}, "torch"),
    "core_modules": ({}, False),
    "cross_entropy": ({"micro_batch": 4}, "autograd"),
    "attention_kernel": ({}, "flash-1"),
    "product_kernel": ({}, "task-mapped"),
    "recurrent_kernel": ({}, "default"),
    "tempo": ({}, True),
    "optimizer_barrier": ({"pp": 8, "schedule": "zb-h2"}, True),
    "offload": ({}, Offload(optimizer=1.0)),
    "recompute_layers": ({"recompute": "full"}, 2),
    "stages": ({}, (HALF, StagePlan(layers=4, dp=8, recompute="full"))),
    "software_year": ({}, 2021.5),
}
"""A change of every knob that has a second value, and beside what it is made."""

ONE_VALUE = ("optimizer",)
KNOBS = [f.name for f in fields(Plan) if f.init]


def step(settings, cluster=CLUSTER, model=MODEL):
    return sim.simulate(model, cluster, Plan(**{"global_batch": 64} | settings))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Devices of which the products of both implementations were timed, and which wait for no host."""
    profile = with_mapped(load_profile(CLUSTER.profile).with_issue_of(None), tmp_path_factory.mktemp("both"))
    return Cluster.of(CLUSTER.device, nodes=CLUSTER.nodes, profile=profile)


def test_the_docstring_holds_the_table():
    assert knobs.table() in knobs.__doc__


def test_every_knob_is_changed_here():
    assert sorted([*CHANGES, *ONE_VALUE]) == sorted(KNOBS)


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "dp"])
def test_simulated(name, cluster):
    """`dp` is what the other degrees leave of the devices: it cannot change alone."""
    beside, value = CHANGES[name]
    model = models["lstm-lm"] if name == "recurrent_kernel" else MODEL
    on = CLUSTER if name in ("core_modules", "cuda_graphs", "layer_graphs") else cluster
    on = Cluster.of("b200", nodes=8) if name == "fused_experts" else on
    before, after = (step(given, on, model) for given in (beside, beside | {name: value}))
    seen = [(s.step_time_s, s.peak_memory_bytes, s.mfu, s.timeline.schedule.texts()) for s in (before, after)]
    assert seen[0] != seen[1]


@pytest.mark.parametrize("target", EXPORTERS)
def test_what_is_emitted_is_known(target):
    assert set(EXPORTERS[target].expresses) <= set(KNOBS)


EMITTED = [(target, name) for target, held in EXPORTERS.items() for name in held.expresses if name != "dp"]
START = {
    "deepspeed": {"zero": 1, "sequence_parallel": False},
    "torchtitan": {"zero": 3, "optimizer_barrier": True},
    "torchtitan-0.3": {"zero": 3, "optimizer_barrier": True},
    "megatron": {"zero": 1},
}
OTHER = {
    ("megatron", "schedule"): ({"pp": 2}, None),
    ("megatron", "rank_order"): ({"tp": 2, "pp": 2, "ep": 2}, "tp-cp-pp-dp"),
    ("megatron", "cross_entropy"): ({"micro_batch": 4}, "fused"),
    ("deepspeed", "schedule"): ({"pp": 2}, None),
    ("deepspeed", "tp"): ({"ep": 2}, 2),
    ("deepspeed", "precision"): ({"gradient_dtype": "bf16"}, "fp16"),
    ("deepspeed", "zero"): ({}, 2),
    ("torchtitan", "zero"): ({}, 2),
    ("torchtitan", "tp"): ({"ep": 2}, 2),
    ("torchtitan-0.3", "tp_comm_overlap"): ({"tp": 2, "ep": 2, "compiled": True}, True),
    ("torchtitan-0.3", "tp"): ({"ep": 2}, 2),
    ("torchtitan-0.3", "zero"): ({}, 2),
    ("megatron", "zero"): ({}, 2),
    ("torchtitan", "microbatch_group_size"): ({"pp": 2, "virtual_stages": 2}, 8),
    ("torch-csv", "microbatch_group_size"): ({"pp": 2, "virtual_stages": 2}, 8),
}


@pytest.mark.parametrize(("target", "name"), EMITTED)
def test_emitted(target, name):
    """Another value makes another file, or where the target has one schedule only, a refusal."""
    beside, value = OTHER.get((target, name), CHANGES[name])
    settings = {**START.get(target, {}), **beside}
    # Megatron-LM runs no experts without sequence parallelism, nor in graphs.
    model = DENSE if target == "megatron" and name in ("sequence_parallel", "cuda_graphs") else MODEL
    if name in settings and name != "virtual_stages" and settings[name] == value:
        settings[name] = 0
    before = sim.plans.emitted(step(settings, model=model), target)
    if value is None:
        with pytest.raises(InputError, match="schedule"):
            sim.plans.emitted(step(settings | {name: "gpipe"}), target)
    else:
        assert before != sim.plans.emitted(step(settings | {name: value}, model=model), target)
