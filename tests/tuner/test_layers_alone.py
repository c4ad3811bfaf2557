"""Unequal layers alone: what Megatron-LM and torchtitan can run, equal to brute force, and emitted."""

from itertools import product

import pytest

import sim
from sim.engine.step import simulate
from sim.plans.targets import refusals
from sim.specs import Cluster, InputError, Model, Plan
from sim.tuner.layers_alone import LayersAlone
from sim.tuner.space import default_knobs
from sim.tuner.staged import search_stages, solve_exactly
from sim.tuner.tune import tune

WIDE = Model(name="wide", layers=7, hidden=1024, heads=16, vocab=131_072, seq=1024, tied_embeddings=False)
CLUSTER = Cluster.of("a100-sxm-40gb", nodes=1, gpus_per_node=4)
KNOBS = default_knobs(WIDE, CLUSTER) | {"pp": [2, 4], "micro_batch": [2]}


def plans(target):
    """Yield every plan of alike stages that the target can run."""
    for tp, pp, zero, recompute in product((1, 2), (2, 4), range(4), ("none", "selective", "full")):
        for layers in product(range(WIDE.layers + 1), repeat=pp):
            dp = 4 // (tp * pp)
            if sum(layers) == WIDE.layers and min(layers[1:-1], default=1) > 0 and dp and (dp > 1 or not zero):
                own = {"tp": tp, "pp": pp, "zero": zero, "recompute": recompute, "stage_layers": layers}
                plan = Plan(global_batch=32, micro_batch=2, **own)
                if not list(refusals(WIDE, plan.on(WIDE, CLUSTER), target)):
                    yield plan


@pytest.mark.slow
def test_megatrons_mamba_has_equal_stages():
    ssm = {"ssm_state": 64, "ssm_heads": 32}
    made = Model(name="hybrid", layers=7, pattern="M*M-M*M", hidden=1024, heads=16, vocab=131_072, seq=1024, **ssm)
    assert not search_stages(made, CLUSTER, 32, KNOBS, {}, "layers", 3, solve=LayersAlone("megatron")).found
    assert search_stages(made, CLUSTER, 32, KNOBS, {}, "all", 3).found


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_the_best_layers_are_brute_forces(target):
    found = search_stages(WIDE, CLUSTER, 32, KNOBS, {}, "layers", 3, solve=LayersAlone(target))
    assert found.certified
    brute = min(simulate(WIDE, CLUSTER, plan).step_time_s for plan in plans(target))
    assert min(s.step_time_s for s in found.steps(WIDE, CLUSTER)) == pytest.approx(brute, rel=2e-3)
    assert all(not list(refusals(WIDE, plan.on(WIDE, CLUSTER), target)) for _, plan in found.found)


def test_more_freedom_is_no_slower():
    torchtitan, megatron, torch = (
        search_stages(WIDE, CLUSTER, 32, KNOBS | {"zero": [0]}, {}, freedom, solve=solve).found[0][0]
        for freedom, solve in (
            ("layers", LayersAlone("torchtitan")), ("layers", LayersAlone("megatron")), ("techniques", solve_exactly),
        )
    )  # fmt: skip
    assert torch <= megatron * (1 + 1e-9) <= torchtitan * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
def test_a_search_for_a_target_finds_unequal_layers(target):
    found = tune(WIDE, CLUSTER, 32, {"tp": [1], "pp": [4]}, target=target, top=3)
    assert found.certified or not found.same_order
    best = found.best.plan
    assert best.stage_layers
    assert min(best.stage_layers[0], best.stage_layers[-1]) < max(best.stage_layers)
    assert not list(refusals(WIDE, best.on(WIDE, CLUSTER), target))


def test_torchtitan_is_told_of_shorter_ends():
    plan = Plan(global_batch=32, pp=4, stage_layers=(2, 3, 2, 0))
    by_name = sim.emit(simulate(WIDE, CLUSTER, plan), "torchtitan-0.3")
    assert "module_fqns_per_model_part" in by_name
    assert sim.read_plan(by_name, "torchtitan", WIDE).plan.stage_layers == (2, 3, 2, 0)
    for layers, said in (((1, 3, 3, 0), (3, 2, 3)), ((0, 3, 3, 1), (3, 3, 2))):
        text = sim.emit(simulate(WIDE, CLUSTER, plan.but(stage_layers=layers)), "torchtitan-0.3")
        flags = dict(line[2:].split("=") for line in text.splitlines() if "=" in line)
        names = ("layers_per_stage", "first_stage_less_layers", "last_stage_less_layers")
        assert tuple(int(flags[f"parallelism.pipeline_parallel_{name}"]) for name in names) == said
        assert sim.read_plan(text, "torchtitan", WIDE).plan.stage_layers == layers


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "deepspeed"])
def test_knobs_of_stages_are_refused_where_stages_are_alike(target):
    with pytest.raises(InputError, match=r"tune\.knobs\.offload_optimizer"):
        tune(WIDE, CLUSTER, 32, {"offload_optimizer": [0.5]}, target=target)
