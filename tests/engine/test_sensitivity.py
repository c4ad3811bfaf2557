"""Steps evaluated again with other numbers: what a new simulation of them says."""

from dataclasses import replace

import numpy as np
import pytest

from sim.engine.sensitivity import times_with
from sim.engine.step import simulate
from sim.specs import Cluster, Model, Offload, Plan

MODEL = Model(layers=16, hidden=2048, heads=16, seq=1024)
NODES = Cluster.of("h100-sxm-80gb", nodes=2)
MIXED = Cluster.of(groups=[{"device": "h100-sxm-80gb", "nodes": 1}, {"device": "a100-sxm-80gb", "nodes": 1}])
PLANS = {
    "no pipeline": (NODES, Plan(tp=2, zero=3, global_batch=64)),
    "1f1b": (NODES, Plan(tp=2, pp=4, zero=1, global_batch=64)),
    "interleaved": (NODES, Plan(tp=2, pp=4, virtual_stages=2, global_batch=64)),
    "no barrier": (NODES, Plan(tp=2, pp=4, schedule="zb-h1", global_batch=64)),
    "no flush": (NODES, Plan(pp=4, schedule="2bw", global_batch=64)),
    "uneven": (NODES, Plan(tp=4, pp=4, stage_layers=(3, 5, 5, 3), global_batch=64)),
    "offload": (NODES, Plan(tp=2, pp=2, offload=Offload(optimizer=0.5, activations=0.5), global_batch=64)),
    "in a row": (
        NODES, Plan(tp=4, pp=2, virtual_stages=2, offload=Offload(activations=1.0), global_batch=32),
    ),
    "gradients on the host": (
        Cluster.of("l4", nodes=1, gpus_per_node=8), Plan(pp=2, offload=Offload(gradients=0.5), global_batch=64),
    ),
    "pairs": (NODES, Plan(tp=2, pp=4, schedule="dualpipe", global_batch=64)),
    "pairs that send more": (
        NODES, Plan(tp=8, pp=2, virtual_stages=2, schedule="dualpipev", global_batch=64, rank_order="pp-tp-cp-dp"),
    ),
    "mixed": (MIXED, Plan(tp=2, pp=4, zero=1, global_batch=64)),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_other_run_level_parameters_give_what_a_new_simulation_gives(name):
    cluster, plan = PLANS[name]
    step = simulate(MODEL, cluster, plan)
    factors = {"gemm_slowdown": np.array([1.0, 1.2, 1.0]), "collective_slowdown": np.array([1.0, 0.9, 3.0])}
    found = times_with(step, factors)
    assert found[0] == pytest.approx(step.step_time_s, rel=1e-12)
    for i in (1, 2):
        held = step.level.parameters
        changed = replace(held, **{k: getattr(held, k) * float(f[i]) for k, f in factors.items()})
        again = simulate(MODEL, cluster, plan, level=replace(step.level, parameters=changed))
        assert found[i] == pytest.approx(again.step_time_s, rel=1e-7)


def test_of_a_step_under_contention_the_relative_change_counts():
    cluster, plan = PLANS["1f1b"]
    path, events = (simulate(MODEL, cluster, plan, engine) for engine in ("path", "events"))
    factors = {"gemm_slowdown": np.array([1.1])}
    expected = times_with(path, factors) / path.step_time_s
    assert times_with(events, factors) / events.step_time_s == pytest.approx(expected, rel=1e-12)
