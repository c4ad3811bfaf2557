"""Contention matrices in the event engine: chosen by communicator shape, said in the assumptions, fading with speed."""

from dataclasses import replace

import numpy as np
import pytest

from sim.costs import offload, stage
from sim.costs.contention import STREAMS
from sim.costs.profile import load_profile
from sim.costs.run_level import run_level
from sim.engine.assembly import step_schedule
from sim.engine.contended import CONTENDERS, data_parallel_shape, layout, sharing, sharing_on
from sim.engine.events import run_events_of
from sim.engine.lower import lower
from sim.engine.path import run_program
from sim.engine.placed import slowest
from sim.engine.program import Stream
from sim.engine.step import simulate
from sim.specs import Cluster, Offload, Plan, StagePlan
from sim.specs.catalog import models

LLAMA = models["llama2-7b"]
A100 = "a100-sxm-40gb"
PLAN = Plan(global_batch=64, micro_batch=1, tp=2, pp=2, zero=1, recompute="full", offload=Offload(activations=0.5))


def cluster(times=1.0, device=A100):
    links = {"intra_bytes_per_s": 3e11 * times, "inter_bytes_per_s_per_node": 2e11 * times}
    links |= {"host_bytes_per_s": 2e10 * times, "latency_s": 1e-5 / times}
    return Cluster.of(device, nodes=2, links=links)


def program(on):
    placed = PLAN.on(LLAMA, on)
    parts = (stage.stage_model, stage.traffic_model, offload.offload_model)
    costs, traffic, moved = (slowest(LLAMA, on, placed, run_level(), part) for part in parts)
    return lower(
        step_schedule(placed, costs | moved), costs | moved, traffic, layout(LLAMA, on, placed, run_level())
    ).program


def test_the_shape_is_that_of_the_collectives_beside_compute():
    on = cluster()
    assert data_parallel_shape(LLAMA, on, PLAN.on(LLAMA, on)) == (4, 1)
    wide = PLAN.but(pp=1, offload=Offload())
    assert data_parallel_shape(LLAMA, on, wide.on(LLAMA, on)) == (4, 2)
    shards = wide.but(zero=3, fsdp_shard=4)
    assert data_parallel_shape(LLAMA, on, shards.on(LLAMA, on)) == (4, 1)


@pytest.mark.parametrize("shape", [(8, 1), (4, 1), (8, 2), (8, 4)])
def test_the_matrix_of_the_shape_is_used(shape):
    profile = load_profile(A100)
    held = next(c for c in profile.contention if (c.n_in, c.n_out) == shape)
    found = sharing(run_level(), profile, shape)
    assert {found.slowdown[a, b] for a, b in [(Stream.COMPUTE, Stream.COLLECTIVE)]} == {held.matrix[0][1]}
    assert len(found.slowdown) == len(STREAMS) * (len(STREAMS) - 1)
    assert f"as of {shape[0]} x {shape[1]}" in found.source


def test_without_a_matrix_the_run_level_decides():
    slowdown = run_level().parameters.overlap_slowdown
    found = sharing(run_level(), load_profile("h100-sxm-80gb"), (8, 2))
    assert found.slowdown == {(a, b): slowdown for a in Stream for b in Stream if a + b == 1}
    l4 = load_profile("l4")
    assert "no contention matrix" in sharing(run_level(), l4, (8, 2)).source
    assert "as of 8 x 1" in sharing(run_level(), l4, (8, 1)).source


def test_assumptions_say_which():
    step = simulate(LLAMA, cluster(), PLAN, "events")
    assert any("contention of 4 x 1 ranks" in text and "Mist" in text for text in step.assumptions)
    assert not any("contention" in text for text in simulate(LLAMA, cluster(), PLAN).assumptions)
    assert any(
        "each other by" in text for text in simulate(LLAMA, cluster(1, "h100-sxm-80gb"), PLAN, "events").assumptions
    )


MIXED = Cluster.of(groups=[{"device": device, "nodes": 1} for device in (A100, "h100-sxm-80gb")])


def alone(device, shape):
    return sharing(run_level(), load_profile(device), shape, True).slowdown


def test_each_stage_of_a_mixed_cluster_has_the_contention_of_its_own_devices():
    found = sharing_on(LLAMA, MIXED, PLAN.on(LLAMA, MIXED), run_level(), True)
    assert [found.on(rank) for rank in range(2)] == [alone(A100, (4, 1)), alone("h100-sxm-80gb", (4, 1))]
    told = simulate(LLAMA, MIXED, PLAN, "events").contention
    assert f"{A100}: contention of 4 x 1 ranks" in told
    assert "h100-sxm-80gb: what runs side by side" in told


def test_each_stage_of_a_mixed_cluster_has_the_domains_of_its_own_devices():
    """Two nodes of four that reach each other over fast links, and two that do not."""
    kinds = [{"device": device, "nodes": 2, "gpus_per_node": 4} for device in ("gb200", "h100-sxm-80gb")]
    plan = Plan(tp=4, pp=2, zero=1, global_batch=64)

    def outside(groups, plan):
        mixed = Cluster.of(groups=groups)
        return layout(LLAMA, mixed, plan.on(LLAMA, mixed), run_level()).outside

    found = outside(kinds, plan)
    assert (found["dp"], found["inner"], found["pp"][1]) == ((False, True), (False, False), True)
    assert outside(kinds[::-1], plan)["dp"] == (True, False)
    stages = tuple(StagePlan(layers=8, tp=4, dp=1, micro_batch=1) for _ in range(4))
    assert outside(kinds, Plan(global_batch=64, stages=stages))["pp"] == (True, False, True, True)


def test_the_slowest_of_several_kinds_on_a_stage_decides_for_collectives_too():
    """The A100's passes take longest; the H100 slows collectives more, but not for as long."""
    both = PLAN.but(pp=1)
    old, new = (alone(device, (4, 2)) for device in (A100, "h100-sxm-80gb"))
    beside = (Stream.COLLECTIVE, Stream.COMPUTE)
    assert old[beside] < new[beside]
    assert sharing_on(LLAMA, MIXED, both.on(LLAMA, MIXED), run_level(), True).on(0) == old


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_with_faster_devices_a_cluster_is_no_slower(zero):
    plan = Plan(tp=4, zero=zero, global_batch=16)
    slow = Cluster.of(groups=[{"device": A100, "nodes": 1}] * 2)
    mixed, least = (simulate(LLAMA, on, plan, "events").step_time_s for on in (MIXED, slow))
    assert mixed <= least * (1 + 1e-9)


def test_each_of_unequal_stages_has_the_contention_of_its_own_communicator():
    stages = tuple(StagePlan(layers=16, tp=tp, dp=8 // tp, micro_batch=tp, zero=1) for tp in (2, 1))
    placed = Plan(global_batch=64, stages=stages).on(LLAMA, cluster())
    found = sharing_on(LLAMA, cluster(), placed, run_level(), True)
    assert [found.on(rank) for rank in range(2)] == [alone(A100, (4, 1)), alone(A100, (8, 1))]


def test_contention_is_never_faster_and_fades_as_bandwidth_grows():
    """On a real plan with a measured matrix: links as they are, 10 and 300 times as fast."""
    gaps = []
    for times in (1, 10, 300):
        made = program(cluster(times))
        shared = sharing(run_level(), load_profile(A100), (4, 1), True)
        path, events = run_program(made), run_events_of(made, shared)
        assert (events.end >= path.end).all()
        gaps.append(events.makespan / path.makespan - 1)
    assert gaps[0] > gaps[1] > gaps[2] >= 0
    assert gaps[2] < 1e-3


def test_a_matrix_of_zeros_leaves_only_the_links():
    profile = load_profile(A100)
    free = [replace(c, matrix=np.zeros((4, 4)).tolist()) for c in profile.contention]
    made = program(cluster())
    shared = replace(sharing(run_level(), replace(profile, contention=free), (4, 1)), links=False)
    assert run_events_of(made, shared).makespan == run_program(made).makespan
    assert set(shared.slowdown) == {(a, b) for a in CONTENDERS for b in CONTENDERS if a != b}
