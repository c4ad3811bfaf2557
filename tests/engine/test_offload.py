"""What host memory keeps: copies that hide or are waited for, memory that falls, engines that agree."""

from dataclasses import replace

import numpy as np
import pytest

from sim.costs import offload, stage
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, RunLevelSet, run_level
from sim.engine.assembly import step_schedule
from sim.engine.contended import layout, sharing
from sim.engine.events import run_events_of
from sim.engine.lower import Cause, Lane, lower
from sim.engine.placed import slowest
from sim.engine.step import simulate
from sim.schedules import Kind
from sim.specs import Cluster, InputError, Links, Offload, Plan
from sim.specs.catalog import models

LLAMA = models["llama3-8b"]
NODES = Cluster.of("h100-sxm-80gb", nodes=2)
BARE = RunLevelSet.bare(RunLevel())
SOME = Offload(optimizer=0.5, activations=0.3)
ALL = Offload(optimizer=1.0, activations=1.0)
WHOLE = Offload(optimizer=1.0, activations=1.0, weights=1.0, gradients=1.0)


def plan(**change):
    return Plan(**{"tp": 2, "pp": 2, "global_batch": 64} | change)


def linked(host_bytes_per_s):
    return Cluster.of("h100-sxm-80gb", nodes=2, links=Links(host_bytes_per_s=host_bytes_per_s))


@pytest.mark.parametrize("engine", ["path", "events"])
def test_nothing_offloaded_asks_no_host_link(engine):
    """A slow link and an unknown one change nothing, to the last bit, and no copy is among the costs."""
    bare, slow = (simulate(LLAMA, c, plan(offload=Offload()), engine) for c in (NODES, linked(1e6)))
    assert slow.breakdown_s == bare.breakdown_s
    assert slow.step_time_s == bare.step_time_s
    assert bare.breakdown_s["offload"] == 0
    assert not {"forward_h2d", "moved_bytes", "update_h2d_only"} & set(bare.costs)
    assert not any("host link" in note for note in bare.assumptions)


@pytest.mark.parametrize(
    "moved",
    [SOME, ALL, WHOLE, Offload(optimizer=0.7), Offload(activations=0.1), Offload(weights=0.6), Offload(gradients=0.4)],
)
@pytest.mark.parametrize(
    "change",
    [
        {}, {"pp": 1}, {"pp": 4, "virtual_stages": 2}, {"zero": 3}, {"schedule": "gpipe"}, {"schedule": "zb-h1"},
        {"recompute": "full"}, {"schedule": "2bw", "global_batch": 32}, {"schedule": "dualpipe"},
    ],
)  # fmt: skip
def test_engines_agree(change, moved):
    path, events = (simulate(LLAMA, NODES, plan(**change, offload=moved), engine) for engine in ("path", "events"))
    assert events.step_time_s == pytest.approx(path.step_time_s, rel=0.08)
    assert events.peak_memory_bytes == path.peak_memory_bytes
    for step in (path, events):
        assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s)
        assert min(step.breakdown_s.values()) >= 0
        assert step.breakdown_s["offload"] > 0
    assert any("50.4 GB/s" in note for note in path.assumptions)


@pytest.mark.parametrize("engine", ["path", "events"])
@pytest.mark.parametrize("change", [{}, {"pp": 1}, {"pp": 4, "virtual_stages": 2}])
def test_a_faster_link_is_never_slower_and_a_perfect_one_costs_nothing(change, engine):
    free = simulate(LLAMA, NODES, plan(**change), engine)
    steps = [
        simulate(LLAMA, linked(rate), plan(**change, offload=WHOLE), engine) for rate in (4e9, 2e10, 6e10, 1e12, 1e14)
    ]
    times = [step.step_time_s for step in steps]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-2]
    assert times[-1] == pytest.approx(free.step_time_s, rel=2e-3)
    assert steps[-1].breakdown_s["offload"] < 2e-3 * free.step_time_s


def test_a_link_of_a_stated_rate_is_not_scaled():
    assert NODES.host_bytes_per_s == pytest.approx(0.8 * 63e9)
    assert linked(2e10).host_bytes_per_s == 2e10
    assert any(
        "20.0 GB/s in each direction (as stated)" in n
        for n in simulate(LLAMA, linked(2e10), plan(offload=SOME)).assumptions
    )


def test_memory_falls_by_what_moved():
    """Half of the optimizer's bytes, whose room an update has where passes save; activations of microbatches alive."""
    without, half, third = (
        simulate(LLAMA, NODES, plan(pp=1, offload=o))
        for o in (Offload(), Offload(optimizer=0.5), Offload(activations=0.3))
    )
    states = without.memory[0].fixed["optimizer"]
    assert half.memory[0].fixed["optimizer"] == states / 2
    assert half.peak_memory_bytes == pytest.approx(without.peak_memory_bytes - states / 2)
    saved = float(np.ravel(without.costs["saved_bytes"])[0])
    assert third.peak_memory_bytes == pytest.approx(without.peak_memory_bytes - 0.3 * saved * (1 - 4 / 32))
    for step in (half, third):
        assert step.memory[0].total[-1] == pytest.approx(sum(step.memory[0].fixed.values()) + 96 * 2**20)


@pytest.mark.parametrize("layers", [1, 32])
def test_an_update_is_pipelined_by_layers(layers):
    """A layer's part of the states comes in and leaves beside nothing; in between the slower one decides."""
    model = replace(LLAMA, layers=layers, pattern="T" * layers)
    pieces = model.parameters / next(iter(model.blocks)).parameters
    given = plan(tp=1, pp=1, offload=Offload(optimizer=0.5))
    step = simulate(model, NODES, given, level=BARE)
    copy, update = (float(np.ravel(step.costs[n])[0]) for n in ("update_h2d_only", "optimizer_only"))
    assert copy == pytest.approx(simulate(model, NODES, plan(tp=1, pp=1)).memory[0].fixed["optimizer"] / 2 / 50.4e9)
    assert step.breakdown_s["offload"] == pytest.approx(2 * copy / pieces + max(0, copy - update) * (1 - 1 / pieces))
    events = simulate(model, NODES, given, "events", level=BARE)
    assert events.breakdown_s["offload"] == pytest.approx(step.breakdown_s["offload"], rel=5e-3)


def test_copies_that_fit_beside_their_layers_are_hidden():
    """Without contention nothing is exposed until a layer's copy takes longer than the layer."""

    def waited(host_bytes_per_s, engine):
        step = simulate(LLAMA, linked(host_bytes_per_s), plan(pp=1, offload=Offload(activations=0.5)), engine, BARE)
        return step.breakdown_s["offload"]

    for engine in ("path", "events"):
        assert waited(4e11, engine) == pytest.approx(0, abs=1e-6)
        assert waited(2e10, engine) > 0.1


def lowered(given):
    placed = given.on(LLAMA, NODES)
    parts = (stage.stage_model, stage.traffic_model, offload.offload_model)
    costs, traffic, moved = (slowest(LLAMA, NODES, placed, run_level(), part) for part in parts)
    made = lower(
        step_schedule(placed, costs | moved), costs | moved, traffic, layout(LLAMA, NODES, placed, run_level())
    )
    return made, run_events_of(made.program, sharing(run_level(), load_profile("h100-sxm-80gb"), (8, 2), True))


@pytest.mark.parametrize(
    "change", [{}, {"pp": 1}, {"pp": 4, "virtual_stages": 2}, {"schedule": "zbv", "virtual_stages": 2}]
)
def test_copies_keep_their_order_and_their_room(change):
    """What comes back has left; a layer waits for it; at no time are more than two layers' copies ahead of a pass."""
    made, run = lowered(plan(**change, offload=Offload(activations=1.0)))
    graph, moves = made.program.graph, made.program.cause == Cause.OFFLOAD
    out, back = (moves & (graph.lane % len(Lane) == lane) for lane in (Lane.D2H, Lane.H2D))
    assert out.sum() == back.sum() > 0
    for rank in range(2):
        passes = (graph.rank == rank) & (made.program.cause == Cause.PASS) & (graph.lane == rank * len(Lane))
        for s in np.unique(graph.stage[out & (graph.rank == rank)]):
            one = (graph.stage == s) & (graph.microbatch == 3)
            left, home = np.flatnonzero(one & out), np.flatnonzero(one & back)
            layers = np.flatnonzero(one & passes & (graph.kind == Kind.F))
            backward = np.flatnonzero(one & passes & np.isin(graph.kind, (Kind.B, Kind.I)))
            staying = len(layers) - len(left)
            assert (run.start[left] >= run.end[layers[: len(left)]]).all()
            assert (run.start[home] >= run.end[left[::-1]]).all()
            assert (run.start[backward[staying:]] >= run.end[home]).all()
            assert (run.start[layers[2 : len(left)]] >= run.end[left[:-2]]).all()
            assert (run.start[home[2:]] >= run.end[backward[staying:-2]]).all()


def test_a_device_without_a_host_link_must_be_told(tmp_path):
    text = (
        "{name: own, title: Own, vendor: Us, sms: 100, boost_hz: 1.5e9, peak_bf16_flop_per_s: 4e14, "
        "memory_bytes: 5e10, memory_bytes_per_s: 1.2e12, l2_bytes: 4e7, power_w: 300, idle_power_w: 30, "
        "intra_node: pcie, intra_bytes_per_s: 32e9, inter_bytes_per_s_per_node: 25e9}"
    )
    (tmp_path / "own.yaml").write_text(text)
    name, job = str(tmp_path / "own.yaml"), Plan(global_batch=8, offload=SOME)
    with pytest.raises(InputError, match=r"cluster\.links\.host_bytes_per_s: missing; required with plan\.offload"):
        simulate(models["gpt2-xl"], Cluster.of(name), job)
    assert (
        simulate(models["gpt2-xl"], Cluster.of(name, links=Links(host_bytes_per_s=1e10)), job).breakdown_s["offload"]
        > 0
    )
    assert simulate(models["gpt2-xl"], Cluster.of(name), Plan(global_batch=8)).step_time_s > 0
