"""The exporters of plans pass their contract."""

from dataclasses import replace
from typing import ClassVar

import pytest

import sim
from sim.plans import EXPORTERS
from sim.plans.importing import read_plan
from sim.plans.notes import notes
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models
from tests.contracts.exporter import ExporterContract


class TestTorchCsv(ExporterContract):
    name = "torch-csv"
    takes: ClassVar = {"tp": 2, "pp": 4}
    changed: ClassVar = {"schedule": "gpipe", "pp": 2}
    cannot = (({"schedule": "chimera"}, "plan.schedule"), ({"schedule": "dualpipe"}, "plan.schedule"))


class TestTorchtitan(ExporterContract):
    name = "torchtitan"
    takes: ClassVar = {"tp": 2, "pp": 2, "zero": 3, "schedule": "1f1b"}
    changed: ClassVar = {"tp": 4, "recompute": "full", "micro_batch": 2}
    cannot = (({"zero": 1}, "plan.zero"), ({"schedule": "2bw"}, "plan.schedule"))
    lacks = ("lstm-lm", "nemotron-h-8b")


class TestTorchtitanRelease(TestTorchtitan):
    name = "torchtitan-0.3"


class TestMegatron(ExporterContract):
    name = "megatron"
    takes: ClassVar = {"tp": 4, "pp": 2, "zero": 1}
    changed: ClassVar = {"tp": 8, "recompute": "full", "micro_batch": 2, "sequence_parallel": False}
    cannot = (({"schedule": "zb-h1"}, "plan.schedule"), ({"zero": 3}, "plan.zero"))
    lacks = ("lstm-lm",)


class TestDeepSpeed(ExporterContract):
    name = "deepspeed"
    takes: ClassVar = {"pp": 4, "zero": 1}
    changed: ClassVar = {"micro_batch": 2, "recompute": "full"}
    cannot = (({"tp": 2}, "plan.sequence_parallel"), ({"schedule": "gpipe"}, "plan.schedule"))


def test_every_exporter_passes():
    contracts = (*ExporterContract.__subclasses__(), TestTorchtitanRelease)
    assert {contract.name for contract in contracts} == set(EXPORTERS)


@pytest.mark.parametrize(
    "parts",
    [{}, {"attention": "eager"}, {"qk_norm": True, "whole_qk_norm": True}, {"parallel_block": True}, {"qk_norm": True}],
)
def test_what_no_network_of_torchtitan_has_is_noted(parts):
    model, plan = replace(models["llama3.2-1b"], **parts), Plan(global_batch=8, zero=3, framework="torch")
    step = sim.simulate(model, Cluster.of("h100-sxm-80gb", nodes=1), plan)
    strange = [f"model.{name} {str(value).lower()}" for name, value in parts.items() if name != "qk_norm"]
    said = f"torchtitan has no network with {', '.join(strange)}: llama3.2-1b must be added to it"
    assert list(notes(step, "torchtitan-0.3")) == ([said] if strange else [])


@pytest.mark.parametrize("target", ["torchtitan-0.3", "deepspeed", "megatron"])
def test_adapters_are_left_to_the_program(target):
    cluster, plan = Cluster.of("h100-sxm-80gb", nodes=1), Plan(global_batch=8, zero=1)
    said = f"predicted with model.adapter_rank 8 on attention: {target} has no setting for it"
    for rank in (0, 8):
        step = sim.simulate(replace(models["llama3.2-1b"], adapter_rank=rank), cluster, plan)
        assert any(note.startswith(said) for note in notes(step, target)) is (rank > 0)


@pytest.mark.parametrize("target", ["torchtitan", "torchtitan-0.3"])
def test_torchtitans_graph_of_a_step_is_the_plans(target):
    """It captures one by default: a plan without says so; in a pipeline it cannot."""
    untied, cluster = replace(models["llama3.2-1b"], tied_embeddings=False), Cluster.of("h100-sxm-80gb", nodes=1)
    plan = Plan(global_batch=64, zero=3, framework="torch", optimizer_barrier=True)
    for captured in (True, False):
        text = sim.emit(sim.simulate(untied, cluster, plan.but(cuda_graphs=captured)), target)
        assert ("disable_cuda_graphs" in text) is not captured
        assert read_plan(text, "torchtitan", untied).plan.cuda_graphs is captured
    with pytest.raises(InputError, match=r"plan.cuda_graphs.*false with pp > 1"):
        sim.emit(sim.simulate(untied, cluster, plan.but(cuda_graphs=True, pp=2)), target)
    off = "--training.local_batch_size 1 --training.global_batch_size 64 --training.disable_cuda_graphs"
    assert not read_plan(off, "torchtitan").plan.cuda_graphs


@pytest.mark.parametrize(
    ("parts", "ep", "said"),
    [({}, 2, False), ({"mlp_bias": True}, 2, True), ({"gated_mlp": False}, 2, True), ({"mlp_bias": True}, 1, False)],
)
def test_experts_that_deepspeed_does_not_spread_are_noted(parts, ep, said):
    model = Model(
        **{"name": "m", "layers": 4, "hidden": 512, "heads": 8, "seq": 256, "norm": "rmsnorm", "gated_mlp": True}
        | {"experts": 4, "experts_per_token": 2, "moe_ffn": 512}
        | parts
    )
    step = sim.simulate(model, Cluster.of("h100-sxm-80gb", nodes=1), Plan(global_batch=8, zero=1, ep=ep))
    assert any("those of m must be added" in note for note in notes(step, "deepspeed")) is said


def test_who_sends_tokens_to_experts_is_noted_where_no_setting_says_it():
    model = Model(
        name="m", layers=4, hidden=512, heads=8, seq=256, norm="rmsnorm", gated_mlp=True, bias=False,
        positions="rope", experts=4, experts_per_token=2, moe_ffn=512, tied_embeddings=False,
    )  # fmt: skip
    plan = Plan(global_batch=8, zero=3, ep=2, framework="torch", token_dispatcher="deepep", ep_overlap=True)
    step = sim.simulate(model, Cluster.of("h100-sxm-80gb", nodes=1), plan)
    titan, deepspeed = (" ".join(notes(step, target)) for target in ("torchtitan-0.3", "deepspeed"))
    assert "plan.token_dispatcher deepep: in torchtitan the network says so, by moe_comm_backend" in titan
    assert "plan.ep_overlap true: torchtitan has false" in titan
    assert "plan.token_dispatcher deepep, plan.ep_overlap true: DeepSpeed's configuration does not say so" in deepspeed
    alone = sim.simulate(model, step.cluster, plan.but(ep=1))
    assert not any("token_dispatcher" in note or "ep_overlap" in note for note in notes(alone, "torchtitan-0.3"))
