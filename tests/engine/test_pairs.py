"""Fused pairs of DualPipe: collectives of one half run beside the other, and only what is waited for is charged."""

import numpy as np
import pytest

from sim.costs.run_level import RunLevel, RunLevelSet
from sim.engine.assembly import PAIRS, durations
from sim.engine.graph import graph_of
from sim.engine.noise import Noise
from sim.engine.step import simulate
from sim.engine.timeline import Durations
from sim.schedules import Kind, Shape, build
from sim.specs import Cluster, Offload, Plan
from sim.specs.catalog import models

NODES = Cluster.of("h100-sxm-80gb", nodes=8)
BARE = RunLevelSet.bare(RunLevel())
INSIDE = ("tp", "cp", "ep", "pp")
ORDERS = [{"schedule": "dualpipe"}, {"schedule": "dualpipev", "virtual_stages": 2}]


def both(model, level=BARE, cluster=NODES, **given):
    """Return the step by the path engine and by the event engine."""
    return [simulate(models[model], cluster, Plan(**{"pp": 4} | given), e, level) for e in ("path", "events")]


def alone(step, term):
    """Return the seconds of a term in all passes of the rank that decides a step, nothing hidden."""
    names = {Kind.F: f"forward_{term}", Kind.B: f"input_{term}", Kind.I: f"input_{term}"}
    order, rank = step.timeline.schedule, step.timeline.decides()
    return sum(float(np.ravel(step.costs[names[a.kind]])[0]) for a in order.actions[rank] if a.kind in names)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("llama3-8b", {"tp": 4}), ("llama3-8b", {"tp": 4, "zero": 3}), ("llama3-8b", {"tp": 4, "cp": 2, "zero": 1}),
        ("llama3-8b", {"tp": 4, "recompute": "full"}), ("llama3-8b", {"tp": 4, "offload": Offload(activations=0.2)}),
        ("mixtral-8x7b", {"ep": 8}),
    ],
)  # fmt: skip
def test_what_runs_beside_the_other_half_is_not_charged(order, name, given):
    """Compute is what its kernels take, and at least half of the collectives are hidden, by either engine."""
    path, events = both(name, global_batch=256, **given, **order)
    assert events.breakdown_s["compute"] == pytest.approx(path.breakdown_s["compute"], rel=1e-5)
    for step in (path, events):
        assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s)
        assert min(step.breakdown_s.values()) >= 0
        for term in INSIDE[:3]:
            whole = alone(step, term)
            assert step.breakdown_s[term] < 0.5 * whole if whole else step.breakdown_s[term] == 0


@pytest.mark.parametrize("level", [BARE, None])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("llama3-8b", {"tp": 8}), ("llama3-8b", {"tp": 4, "cp": 2}), ("llama3-8b", {"tp": 4, "zero": 2}),
        ("llama3-8b", {"tp": 4, "sequence_parallel": False}), ("llama3-70b", {"tp": 8, "global_batch": 64}),
        ("mixtral-8x7b", {"ep": 8, "tp": 2}), ("qwen3-30b-a3b", {"ep": 16}), ("qwen3-30b-a3b", {"pp": 2, "ep": 32}),
    ],
)  # fmt: skip
def test_both_engines_agree_on_pairs(order, name, given, level):
    """Also where experts are on several nodes and pairs send as long as they compute: in turn they took 1.4 as long."""
    path, events = both(name, level, **{"global_batch": 256} | given | order)
    assert path.step_time_s == pytest.approx(events.step_time_s, rel=0.025)


@pytest.mark.parametrize("order", ORDERS)
def test_zero_shares_links_with_what_pairs_send(order):
    """On one bus what hides ZeRO's collectives hides none of the others."""
    bus = Cluster.of("l4", nodes=1, gpus_per_node=8)
    path, events = both("llama3-8b", None, bus, pp=2, cp=2, zero=2, framework="torch", global_batch=128, **order)
    assert path.step_time_s == pytest.approx(events.step_time_s, rel=0.05)


def test_pairs_of_a_mixed_cluster_slow_down_as_on_their_own_devices():
    """The larger of two devices' slowdowns, each way, are no device's: a pair hid nothing then."""
    parts = ("h200-sxm-141gb", "a100-sxm-80gb")
    mixed = Cluster.of(groups=[{"device": device, "nodes": 1, "gpus_per_node": 4} for device in parts])
    path, events = both("llama3-8b", None, mixed, pp=2, tp=4, global_batch=16, **ORDERS[1])
    assert path.step_time_s == pytest.approx(events.step_time_s, rel=0.01)


def test_a_pair_ends_when_its_gradients_are_in_their_shards():
    """As every backward of ZeRO-2 does: the rank's next action waits for the last reduction."""
    timeline = both("llama3-8b", global_batch=64, tp=4, zero=2, schedule="dualpipe")[1].timeline
    program, run, graph = timeline.run.program, timeline.run, timeline.graph
    reduces = np.flatnonzero(program.cause == 2)
    for i in graph.pairs[1].tolist():
        own = reduces[
            (program.graph.rank[reduces] == graph.rank[i])
            & (program.graph.stage[reduces] == graph.stage[i])
            & (program.graph.microbatch[reduces] == graph.microbatch[i])
        ]
        assert graph.rank[i + 1] != graph.rank[i] or timeline.start[i + 1] >= run.end[own].max()


def test_pairs_of_no_collectives_hide_none():
    path, events = both("llama3-8b", global_batch=256, schedule="dualpipe")
    assert [events.breakdown_s[t] for t in INSIDE[:3]] == [path.breakdown_s[t] for t in INSIDE[:3]] == [0, 0, 0]


@pytest.mark.parametrize("engine", [0, 1])
def test_a_pair_waits_for_the_collectives_of_its_last_layer(engine):
    """Layer by layer both halves hide: of the last, a backward's, nothing is left to run beside."""
    step = both("llama3-8b", global_batch=64, tp=4, schedule="dualpipe")[engine]
    order, rank = step.timeline.schedule, step.timeline.decides()
    forward, backward = (float(np.ravel(step.costs[n])[0]) for n in ("forward_tp", "input_tp"))
    pairs = len(order.fused[rank])
    alone = sum(a.kind in (Kind.B, Kind.I) for a in order.actions[rank]) - pairs
    exposed = pairs * backward / 8 + alone * (forward + backward)
    assert step.breakdown_s["tp"] == pytest.approx(exposed, rel=0.05)  # embedding and head have some too


def test_only_pairs_are_shorter_than_their_costs():
    """Both halves by one share, so that neither takes less than nothing; and all of them together by what is hidden."""
    step = both("llama3-8b", global_batch=64, tp=4, schedule="dualpipe")[0]
    order = step.timeline.schedule
    graph, made = graph_of(order), durations(order, step.costs)
    whole = Durations(made.of_kind, made.message, made.back).program(graph).duration
    less = whole - made.program(graph).duration
    rest = np.setdiff1d(np.arange(len(graph)), graph.pairs)
    assert not less[rest].any()
    assert (less[graph.pairs].sum(axis=0) == made.hidden).all()
    assert (made.hidden > 0).all()
    first, second = less[graph.pairs] / whole[graph.pairs]
    assert first == pytest.approx(second, abs=1e-6)


def test_what_is_hidden_may_be_more_than_the_second_half():
    order = build("dualpipev", Shape(2, 4, 2))
    graph, times = graph_of(order), {Kind.F: np.full(4, 90), Kind.I: np.full(4, 5), Kind.W: np.full(4, 5)}
    given = Durations(
        times | {Kind.B: np.full(4, 10)}, np.zeros(4, dtype=np.int64), None, np.full(graph.pairs.shape[1], 20)
    )
    took = given.program(graph).duration[graph.pairs]
    assert took.tolist() == [[72] * took.shape[1], [8] * took.shape[1]]


def test_noise_is_drawn_of_what_pairs_take():
    quiet, noisy = (
        simulate(
            models["llama3-8b"], NODES, Plan(pp=4, tp=4, global_batch=64, schedule="dualpipe"), "path", BARE, noise
        )
        for noise in (None, Noise(jitter=0.01))
    )
    assert quiet.step_time_s < noisy.step_time_s < 1.1 * quiet.step_time_s
    assert sum(noisy.breakdown_s.values()) == pytest.approx(noisy.step_time_s)
    assert min(noisy.breakdown_s.values()) >= 0


def test_assumptions_say_what_the_path_takes_of_pairs():
    path, events = both("llama3-8b", global_batch=256, tp=4, schedule="dualpipe")
    flushed, _ = both("llama3-8b", global_batch=256, tp=4)
    assert [PAIRS in step.assumptions for step in (path, events, flushed)] == [True, False, False]
