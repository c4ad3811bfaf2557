"""Weights and gradients in host memory: what is copied when, how much room it takes, what it lets fit."""

import numpy as np
import pytest

from sim.costs import inputs, offload, stage
from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, RunLevelSet, run_level, symbol_values
from sim.engine.assembly import step_schedule
from sim.engine.closed_form import closed_form, lower_bound
from sim.engine.contended import layout, sharing
from sim.engine.events import run_events_of
from sim.engine.lower import Cause, Lane, lower
from sim.engine.step import simulate, slowest
from sim.schedules import Kind
from sim.specs import Cluster, Links, Model, Offload, Plan
from sim.specs.catalog import models

LLAMA = models["llama3-8b"]
SMALL = Model(name="small", layers=24, hidden=2048, heads=16, vocab=50_304, seq=2048)
NODES = Cluster.of("h100-sxm-80gb", nodes=2)
BARE = RunLevelSet.bare(RunLevel())
NAMES = ("optimizer", "activations", "weights", "gradients")
WHOLE = Offload(**dict.fromkeys(NAMES, 1.0))
MADE = (Kind.B, Kind.W)
"""Actions that make weight gradients."""


def plan(**change):
    return Plan(**{"tp": 2, "pp": 2, "global_batch": 64} | change)


def costs_of(given, cluster=NODES):
    placed = given.on(LLAMA, cluster)
    return slowest(LLAMA, cluster, placed, run_level(), offload.offload_model)


def lowered(given):
    placed = given.on(LLAMA, NODES)
    parts = (stage.stage_model, stage.traffic_model, offload.offload_model)
    costs, traffic, moved = (slowest(LLAMA, NODES, placed, run_level(), part) for part in parts)
    made = lower(
        step_schedule(placed, costs | moved), costs | moved, traffic, layout(LLAMA, NODES, placed, run_level())
    )
    return made.program, run_events_of(made.program, sharing(run_level(), load_profile("h100-sxm-80gb"), (8, 2), True))


def copied(program, lane, *kinds):
    """Return the copies in a direction, of all actions or of some kinds."""
    graph = program.graph
    found = (program.cause == Cause.OFFLOAD) & (graph.lane % len(Lane) == lane)
    return found & np.isin(graph.kind, kinds) if kinds else found


def bytes_of(program, which, rate=50.4e9):
    return float(program.duration[which].sum()) * 1e-9 * rate


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["path", "events"])
def test_a_share_of_nothing_is_no_offload(engine):
    """Shares of 0 beside one that is used change nothing, and all of them 0 are a plan without offload."""
    one, named = (
        simulate(LLAMA, NODES, plan(offload=o), engine)
        for o in (Offload(activations=0.3), Offload(activations=0.3, weights=0.0, gradients=0.0))
    )
    assert (one.step_time_s, one.breakdown_s) == (named.step_time_s, named.breakdown_s)
    assert not np.any(one.costs["forward_h2d"]) and not np.any(one.costs["backward_d2h"])
    none, zeros = (simulate(LLAMA, NODES, plan(**o), engine) for o in ({}, {"offload": Offload(weights=0.0)}))
    assert (none.step_time_s, none.memory[0].fixed) == (zeros.step_time_s, zeros.memory[0].fixed)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("name", "held", "per_parameter", "sharded", "room"),
    [("weights", "parameters", 2, 3, 2), ("gradients", "gradients", 4, 2, 3)],
)
def test_memory_falls_by_what_the_layers_hold(name, held, per_parameter, sharded, room, zero):
    """Embedding and head stay, and the room of a few layers out of 32; the update's is free while passes save."""
    without, half = (
        simulate(LLAMA, NODES, plan(pp=1, zero=zero, offload=o)) for o in (Offload(), Offload(**{name: 0.5}))
    )
    block = next(iter(LLAMA.blocks))
    parameters = 32 * (block.split_parameters / 2 + block.repeated_parameters)
    moved = per_parameter * parameters / 2 / (8 if zero >= sharded else 1)
    assert without.memory[0].fixed[held] - half.memory[0].fixed[held] == pytest.approx(moved)
    assert half.memory[0].fixed["offload"] == pytest.approx(moved * room / 32)
    assert half.peak_memory_bytes == pytest.approx(without.peak_memory_bytes - moved * (1 - room / 32))


def test_an_update_has_its_room_while_nothing_is_saved():
    """Three layers' part of the optimizer states comes and goes at the end, and is not there in between."""
    held = simulate(LLAMA, NODES, plan(pp=1, offload=Offload(optimizer=0.5))).memory[0]
    update = int(np.flatnonzero([action.kind is Kind.OPTIMIZER for action in held.actions])[0])
    room = held.fixed["optimizer"] * 3 * next(iter(LLAMA.blocks)).parameters / LLAMA.parameters
    assert held.fixed["offload"] == 0
    assert held.total[2 * update] == pytest.approx(held.total[2 * update + 1] + room)
    assert held.activations[2 * update] == pytest.approx(0)


def test_room_beside_passes_is_of_all_that_moves_there():
    """Two layers of weights, three of gradients, four of activations, of 16 on a rank."""
    costs = costs_of(plan(offload=Offload(activations=1.0, weights=1.0, gradients=1.0)))
    parts = [costs_of(plan(offload=Offload(**{n: 1.0}))) for n in ("activations", "weights", "gradients")]
    sizes = parts[0]["moved_bytes"][0], parts[1]["moved_weights_first"][0], parts[2]["moved_gradients_first"][0]
    room = sum(size * n / 16 for size, n in zip(sizes, (4, 2, 3), strict=True))
    assert costs["staged_bytes"][0] == pytest.approx(room)


@pytest.mark.parametrize("engine", ["path", "events"])
def test_what_does_not_fit_fits_with_everything_in_host_memory(engine):
    cluster, large = Cluster.of("a100-sxm-40gb", nodes=1), {"tp": 8, "pp": 1, "global_batch": 8}
    without, whole = (
        simulate(models["llama3-70b"], cluster, Plan(**large, offload=o), engine) for o in (Offload(), WHOLE)
    )
    assert (without.fits, whole.fits) == ("no", "yes")
    assert whole.peak_memory_bytes < 0.25 * without.peak_memory_bytes
    assert whole.step_time_s > without.step_time_s
    assert whole.breakdown_s["offload"] > 0


@pytest.mark.parametrize(
    "change",
    [{}, {"zero": 3}, {"pp": 4, "virtual_stages": 2}, {"schedule": "zb-h1"}, {"schedule": "dualpipe"}, {"zero": 1}],
)
def test_every_byte_is_copied_as_often_as_it_must_be(change):
    """Weights come twice a microbatch and leave once; gradients come as often as they leave, once a microbatch."""
    given = plan(**change)
    m, chunks, rate = given.on(LLAMA, NODES).microbatches, given.pp * given.virtual_stages, NODES.host_bytes_per_s
    program, _ = lowered(given.but(offload=Offload(weights=1.0)))
    costs = costs_of(given.but(offload=Offload(weights=1.0)))
    held = float(np.sum(np.zeros(chunks) + costs["forward_h2d"])) * rate
    assert bytes_of(program, copied(program, Lane.H2D)) == pytest.approx(2 * m * held, rel=1e-4)
    copies = given.copies
    assert bytes_of(program, copied(program, Lane.D2H)) == pytest.approx(copies * held, rel=1e-4)
    program, _ = lowered(given.but(offload=Offload(gradients=1.0)))
    costs = costs_of(given.but(offload=Offload(gradients=1.0)))
    held = float(np.sum(np.zeros(chunks) + costs["backward_d2h"])) * rate
    back, out = copied(program, Lane.H2D), copied(program, Lane.D2H)
    assert bytes_of(program, out) == pytest.approx(m * held, rel=1e-4)
    assert bytes_of(program, back) == pytest.approx(m * held, rel=1e-4)
    assert bytes_of(program, copied(program, Lane.H2D, *MADE)) == pytest.approx((m - copies) * held, rel=1e-4)
    mean = float(np.sum(np.zeros(chunks) + costs["backward_h2d"])) * rate
    assert m * mean == pytest.approx((m - copies) * held)


@pytest.mark.parametrize(
    "change", [{}, {"pp": 1}, {"zero": 3}, {"pp": 4, "virtual_stages": 2}, {"schedule": "zbv", "virtual_stages": 2}]
)
def test_weights_come_one_layer_ahead(change):
    """A layer waits for its weights (or their gathering does), which come when the layer before the last is done."""
    program, run = lowered(plan(**change, offload=Offload(weights=1.0)))
    graph, passes = program.graph, np.isin(program.graph.kind, (Kind.F, Kind.B, Kind.I))
    lane, cause = (Lane.GATHER, Cause.DATA) if change.get("zero") == 3 else (Lane.MAIN, Cause.PASS)
    for rank in range(2 if change.get("pp") != 1 else 1):
        came = np.flatnonzero((graph.rank == rank) & copied(program, Lane.H2D))
        used = np.flatnonzero((graph.lane == rank * len(Lane) + lane) & (program.cause == cause) & passes)
        assert len(came) == len(used) > 0
        assert (run.start[used] >= run.end[came]).all()
        assert (run.start[came[2:]] >= run.end[used[:-2]]).all()


@pytest.mark.parametrize("change", [{}, {"pp": 1}, {"zero": 2}, {"schedule": "zb-h1"}])
def test_gradients_are_summed_in_order(change):
    """A layer's come when they have left, its sum waits for them, and at most three layers' are on the device."""
    program, run = lowered(plan(**change, offload=Offload(gradients=1.0)))
    graph = program.graph
    back, out = copied(program, Lane.H2D, *MADE), copied(program, Lane.D2H, *MADE)
    done = (program.cause == Cause.PASS) & np.isin(graph.kind, MADE) & (graph.lane % len(Lane) == Lane.MAIN)
    for s in range(2 if change.get("pp") != 1 else 1):
        first, later = (
            [np.flatnonzero(w & (graph.stage == s) & (graph.microbatch == k)) for w in (back, done, out)]
            for k in (0, 1)
        )
        assert len(first[0]) == 0
        came, made, left = later
        assert (run.start[came] >= run.end[first[2]]).all()
        assert (run.start[made] >= run.end[came]).all()
        assert (run.start[left] >= run.end[made]).all()
        assert (run.start[came[3:]] >= run.end[left[:-3]]).all()
    if change.get("zero") == 2:  # what leaves has been reduced into shards
        reduced = np.flatnonzero((graph.lane == Lane.REDUCE) & (graph.microbatch == 1))
        left = np.flatnonzero(out & (graph.rank == 0) & (graph.microbatch == 1))
        assert (run.start[left] >= run.end[reduced]).all()


def test_an_update_reads_weights_that_are_their_own_master():
    """Mixed precision writes the weights and reads the optimizer's copy; FSDP's fp32 shards are read and written."""
    mixed, fsdp = (
        costs_of(plan(pp=1, zero=3, framework=f, offload=Offload(weights=1.0))) for f in ("megatron", "torch")
    )
    assert mixed["update_h2d_only"] == 0 < mixed["update_d2h_only"]
    assert fsdp["update_h2d_only"] == pytest.approx(fsdp["update_d2h_only"])
    assert fsdp["update_d2h_only"] == pytest.approx(2 * mixed["update_d2h_only"])


def test_copies_of_weights_hide_beside_their_layers():
    """Without contention nothing is exposed but a step's first layer, until a copy takes longer than a layer."""

    def waited(rate, engine):
        cluster = Cluster.of("h100-sxm-80gb", nodes=2, links=Links(host_bytes_per_s=rate))
        moved = Offload(weights=1.0, gradients=1.0)
        step = simulate(LLAMA, cluster, plan(pp=1, micro_batch=4, global_batch=256, offload=moved), engine, BARE)
        return step.breakdown_s["offload"] / step.step_time_s

    for engine in ("path", "events"):
        assert waited(1e12, engine) < 2e-3
        assert waited(1e10, engine) > 0.2


@pytest.mark.parametrize("engine", ["path", "events"])
def test_what_comes_once_a_step_hides_no_copies(engine):
    """Gradient norm and logging come before the first piece is copied."""
    given, slow = plan(offload=Offload(optimizer=0.5)), RunLevelSet.bare(RunLevel(step_overhead_s=0.1))
    fast, late = (simulate(LLAMA, NODES, given, engine, level).step_time_s for level in (BARE, slow))
    assert late - fast == pytest.approx(0.1, rel=1e-6)


def test_assumptions_say_what_stays():
    notes = {n: simulate(LLAMA, NODES, plan(offload=Offload(**{n: 0.5}))).assumptions for n in NAMES}
    stays = {n: any("embedding and head stay on the device" in note for note in notes[n]) for n in NAMES}
    assert stays == {"optimizer": False, "activations": False, "weights": True, "gradients": True}


@pytest.mark.parametrize("rate", [8e9, 5.04e10, 2e11])
@pytest.mark.parametrize("change", [{}, {"zero": 3}, {"schedule": "zb-h1"}, {"schedule": "pipedream"}])
def test_engines_stay_close_on_slow_and_fast_links(rate, change):
    """Within 7 %, where waiting for copies makes the step up to 13 times as long."""
    cluster = Cluster.of("h100-sxm-80gb", nodes=2, links=Links(host_bytes_per_s=rate))
    for moved in (WHOLE, Offload(weights=1.0), Offload(gradients=0.3)):
        path, events = (simulate(LLAMA, cluster, plan(**change, offload=moved), e) for e in ("path", "events"))
        assert events.step_time_s == pytest.approx(path.step_time_s, rel=0.08)
        assert events.peak_memory_bytes == path.peak_memory_bytes


def closed_forms(step):
    model, cluster = step.model, step.cluster
    values = inputs.model_values(model) | inputs.cluster_values(cluster, step.profile)
    values |= symbol_values(step.level.parameters)
    values |= {k: np.mean(v) for k, v in inputs.plan_values(model, step.placed, cluster).items()}
    kept = Structure.of(model), step.plan.order, True
    return closed_form(*kept)(values) | lower_bound(*kept)(values)


def all_agree(given, cluster, within):
    """Hold both fast engines to the event engine's step, the bound to both, and causes of time to their sum."""
    path, events = (simulate(SMALL, cluster, given, engine) for engine in ("path", "events"))
    out, makespan = closed_forms(path), events.timeline.makespan
    assert path.timeline.makespan == pytest.approx(makespan, rel=within)
    assert float(out["step_time_s"]) == pytest.approx(makespan * 1e-9, rel=within)
    assert float(out["lower_bound_s"]) <= path.timeline.makespan * 1e-9
    assert sum(path.breakdown_s.values()) == pytest.approx(path.step_time_s)
    assert min(path.breakdown_s.values()) >= 0


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize(
    "change", [{}, {"pp": 2}, {"zero": 1}, {"zero": 2}, {"schedule": "gpipe"}, {"pp": 2, "virtual_stages": 3}]
)
def test_gradients_that_must_leave_hold_up_the_backwards_of_all_ranks(change, share):
    """A layer waits for room until those before it are reduced and gone, so that reductions delay other ranks too."""
    slow = Cluster.of("l4", nodes=1, gpus_per_node=8)
    given = Plan(**{"pp": 4, "global_batch": 32, "offload": Offload(gradients=share)} | change)
    all_agree(given, slow, 0.08)


@pytest.mark.parametrize(
    "change",
    [
        {"virtual_stages": 2}, {"virtual_stages": 2, "global_batch": 64}, {"schedule": "gpipe"},
        {"pp": 2, "virtual_stages": 3, "global_batch": 64}, {"schedule": "looped-bfs", "virtual_stages": 2},
    ],
)  # fmt: skip
def test_passes_of_a_kind_in_a_row_wait_for_the_copies_of_each_other(change):
    """While a pipeline fills, no backward hides what leaves; while it drains, a backward has the link for itself."""
    moved = Offload(activations=1.0)
    given = Plan(**{"pp": 4, "global_batch": 32, "micro_batch": 2, "offload": moved} | change)
    all_agree(given, NODES, 0.05)


@pytest.mark.parametrize(
    "change", [{"schedule": "looped-bfs", "virtual_stages": 3}, {"virtual_stages": 3}, {"schedule": "gpipe"}]
)
def test_few_layers_a_chunk_have_room_for_their_copies_while_a_rank_waits(change):
    """Other ranks do not wait for a link that only a busy rank fills: every pass took as long as that."""
    moved = Offload(activations=1.0, weights=0.25, gradients=1.0)
    given = Plan(**{"pp": 8, "global_batch": 16, "micro_batch": 2, "offload": moved} | change)
    all_agree(given, Cluster.of("h100-sxm-80gb", nodes=1), 0.05)


@pytest.mark.parametrize(
    "change",
    [
        {}, {"pp": 1}, {"zero": 3}, {"pp": 4, "virtual_stages": 2}, {"schedule": "gpipe"}, {"schedule": "zb-h1"},
        {"recompute": "full", "zero": 1},
    ],
)  # fmt: skip
@pytest.mark.parametrize("moved", [WHOLE, Offload(weights=0.6), Offload(gradients=0.6, optimizer=0.2)])
def test_closed_forms_of_a_step_are_near_the_event_engine(change, moved):
    """Within 10 % with the usual host link; the peak exactly; and the bound holds for the compiled path."""
    given = plan(**change, offload=moved)
    path, events = (simulate(LLAMA, NODES, given, engine) for engine in ("path", "events"))
    schedule, out = path.plan.order, closed_forms(path)
    assert float(out["step_time_s"]) == pytest.approx(events.timeline.makespan * 1e-9, rel=0.1)
    if schedule != "zb-h1" or not moved.activations:  # else what an I has fetched waits for its W
        assert float(out["peak_memory_bytes"]) == pytest.approx(events.peak_memory_bytes, rel=1e-9)
    assert float(out["lower_bound_s"]) <= path.timeline.makespan * 1e-9
