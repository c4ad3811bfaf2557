"""Stages without layers, of the embedding or the head alone: costs, engines and the search."""

import numpy as np
import pytest

from sim.engine.assembly import pass_seconds
from sim.engine.step import simulate
from sim.schedules import Kind
from sim.specs import Cluster, InputError, Model, Plan, StagePlan
from sim.tuner import stages
from sim.tuner.space import default_knobs
from sim.tuner.staged import search_stages
from sim.tuner.tune import tune

WIDE = Model(name="wide", layers=6, hidden=1024, heads=16, vocab=262_144, seq=1024)
"""Its head takes as long as a dozen of its layers."""
CLUSTER = Cluster.of("a100-sxm-40gb", nodes=1, gpus_per_node=4)
KNOBS = default_knobs(WIDE, CLUSTER) | {"tp": [1], "micro_batch": [1, 2], "recompute": ["none"]}


def of_stages(layers, **settings):
    return Plan(global_batch=64, stages=tuple(StagePlan(layers=n, **settings) for n in layers))


@pytest.mark.parametrize(("pp", "zero"), [(2, 0), (2, 1), (4, 0)])
def test_a_wide_head_is_left_alone(pp, zero):
    found = search_stages(WIDE, CLUSTER, 64, KNOBS | {"pp": [pp], "zero": [zero]}, {})
    best_s, best = found.found[0]
    assert best.split_stages[-1] == 0
    assert found.certified
    for engine in ("path", "events"):
        assert simulate(WIDE, CLUSTER, best, engine).step_time_s == pytest.approx(best_s, rel=1e-3)
    even = Plan(global_batch=64, pp=pp, zero=zero, stage_layers=(*[WIDE.layers // (pp - 1)] * (pp - 1), 0))
    assert best_s <= simulate(WIDE, CLUSTER, even).step_time_s
    some = [(n, *[1] * (pp - 2), WIDE.layers - n - pp + 2) for n in range(1, WIDE.layers - pp + 2)]
    assert all(best_s < simulate(WIDE, CLUSTER, even.but(stage_layers=layers)).step_time_s for layers in some)


def test_an_end_without_layers_costs_its_end_alone():
    step = simulate(WIDE, CLUSTER, of_stages((0, 3, 3, 0)))
    passes, costs = pass_seconds(step.costs, 4), step.costs
    head = costs["head_forward_compute"] + costs["head_forward_dp"]
    assert passes[Kind.F][-1] == pytest.approx(head)
    assert passes[Kind.F][0] == pytest.approx(costs["embedding_forward_compute"])
    held = [m.composition() for m in step.memory]
    assert held[0]["parameters"] == 2 * WIDE.embedding_parameters
    assert held[-1]["parameters"] == 2 * (WIDE.vocab * WIDE.hidden + WIDE.final_norms * WIDE.norm_parameters)
    assert held[0]["gradients"] == 2 * held[0]["parameters"]  # fp32, and no product's 16-bit gradient beside it
    assert held[0]["activations"] == 0 < held[-1]["activations"]


def test_layers_by_stage_or_by_chunk_are_the_same():
    for layers in ((0, 3, 3, 0), (2, 2, 2, 0), (0, 4, 1, 1)):
        by_stage = of_stages(layers, sequence_parallel=False)
        by_chunk = Plan(global_batch=64, pp=4, stage_layers=layers)
        for engine in ("path", "events"):
            one, other = (simulate(WIDE, CLUSTER, plan, engine) for plan in (by_stage, by_chunk))
            assert one.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)
            assert [m.peak_bytes for m in one.memory] == [m.peak_bytes for m in other.memory]


def test_no_blocks_hide_a_lonely_heads_traffic():
    """With ZeRO-3 the head's weights are gathered before it can start, unless blocks before it run meanwhile."""
    alone, beside = (
        simulate(WIDE, CLUSTER, of_stages(layers, dp=2, zero=3)).costs["head_forward_dp"] for layers in ((6, 0), (5, 1))
    )
    assert alone > beside == 0


def test_a_middle_stage_has_layers():
    found = search_stages(WIDE, CLUSTER, 64, KNOBS | {"pp": [4], "zero": [0]}, {}, n=20)
    assert all(min(plan.split_stages[1:-1]) > 0 for _, plan in found.found)
    assert len({plan.split_stages for _, plan in found.found}) > 3


def test_an_empty_stage_has_nothing_to_recompute():
    with pytest.raises(InputError, match="recompute"):
        simulate(WIDE, CLUSTER, of_stages((3, 3, 0, 0), recompute_layers=1))
    every = simulate(WIDE, CLUSTER, of_stages((3, 3, 0, 0), recompute="full"))
    assert np.isfinite(every.step_time_s)
    assert every.step_time_s > simulate(WIDE, CLUSTER, of_stages((3, 3, 0, 0))).step_time_s


@pytest.mark.parametrize("freedom", ["techniques", "all"])
def test_a_wider_imbalance_is_no_slower(freedom, monkeypatch):
    monkeypatch.setattr(stages, "FEW_LAYERS", 0)
    monkeypatch.setattr(stages, "FEW_GPUS", 0)
    model = Model(name="deep", layers=12, hidden=1024, heads=16, vocab=400_000, seq=1024)
    knobs = default_knobs(model, CLUSTER) | {"pp": [4], "micro_batch": [1], "zero": [0], "tp": [1]}
    knobs |= {f"offload_{name}": [0.0] for name in ("optimizer", "activations")}
    found = [search_stages(model, CLUSTER, 64, knobs | {"imbalance": [n]}, {}, freedom) for n in (1.5, 3, 12)]
    times = [each.found[0][0] for each in found]
    assert times == sorted(times, reverse=True)
    assert found[0].evaluated < found[2].evaluated
    monkeypatch.setattr(stages, "FEW_LAYERS", 12)
    free = search_stages(model, CLUSTER, 64, knobs | {"imbalance": [1.5]}, {}, freedom)
    assert free.found[0][0] == pytest.approx(times[2])


@pytest.mark.parametrize("value", [0.5, True, "wide"])
def test_an_imbalance_is_a_factor(value):
    with pytest.raises(InputError, match=r"tune\.knobs\.imbalance: .* a number from 1"):
        tune(WIDE, CLUSTER, 64, {"imbalance": [value]})
