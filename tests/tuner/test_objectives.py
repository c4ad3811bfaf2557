"""Objectives between plans and between clusters: fronts, deadlines, and what is said where nothing fits."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import sim
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Offload, Plan, Training
from sim.tuner import ranking
from sim.tuner import tune as tuning
from sim.tuner.explain import explain
from sim.tuner.front import beaten, front, pareto
from sim.tuner.objectives import MEASURES, Setting
from sim.tuner.tune import tune
from sim.units import THIN_SPACE

SMALL = Model(name="small", layers=12, hidden=2048, heads=16, seq=1024)
NODE = Cluster.of("a100-sxm-40gb", nodes=1)
TRAINING = Training(tokens=1e9, goodput=0.9)


@pytest.fixture(scope="module")
def found():
    return tune(SMALL, NODE, 32, {"virtual_stages": [1]}, top=2)


POINTS = arrays(np.float64, st.tuples(st.just(2), st.integers(1, 30)), elements=st.integers(0, 9).map(float))


@given(POINTS)
def test_pareto_is_what_nothing_beats(points):
    x, y = points
    kept = {(x[i], y[i]) for i in pareto(x, y)}
    wanted = {
        (a, b) for a, b in zip(x, y, strict=True)
        if not any(c <= a and d <= b and (c, d) != (a, b) for c, d in zip(x, y, strict=True))
    }  # fmt: skip
    assert kept == wanted


@given(POINTS, POINTS)
def test_beaten_is_every_point_at_or_behind_another(points, others):
    each = [any(c <= a and d <= b for c, d in others.T) for a, b in points.T]
    assert beaten(*points, *others).tolist() == each


@pytest.mark.slow
@pytest.mark.parametrize(("x", "y"), [("memory_headroom", "step_time"), ("tokens_per_usd", "memory_headroom")])
def test_the_front_is_that_of_simulating_every_plan(found, x, y):
    space, setting = found.space, Setting(SMALL, NODE, 32)
    steps = [simulate(SMALL, NODE, space.plan(*at)) for at in np.argwhere(space.allowed)]
    steps += found.unequal.steps(SMALL, NODE)
    held = [(s.step_time_s, s.peak_memory_bytes) for s in steps if s.fits == "yes"]
    losses = np.array([[MEASURES[name].loss(setting, *one) for one in held] for name in (x, y)])
    wanted = {held[i] for i in pareto(*losses)}
    made = front(found, x, y)
    assert made.certified
    assert {(p.step_time_s, p.peak_memory_bytes) for p in made.plans} == wanted
    assert len(made.plans) == len(wanted) > 5
    assert [p.x for p in made.plans] == sorted((p.x for p in made.plans), reverse=MEASURES[x].more)


@pytest.mark.slow
def test_levels_of_memory_bring_plans_of_unequal_stages():
    """The fastest plan that fits so much memory, or one that beats it, is on the front."""
    tight = Cluster.of("l4", nodes=1, gpus_per_node=4)
    knobs = {"pp": [1, 2], "virtual_stages": [1], "micro_batch": [1, 2]}
    tuned = tune(SMALL, tight, 32, knobs, target="any", top=2)
    plain, made = front(tuned), front(tuned, levels=3)
    assert made.unequal > plain.unequal
    assert any(p.plan.stages for p in made.plans)
    for p in plain.plans:
        assert any(q.x >= p.x and q.y <= p.y for q in made.plans)
    for share in (0.25, 0.5, 0.75):
        smaller = Cluster.of("l4", nodes=1, gpus_per_node=4, memory_bytes=share * tight.memory_bytes)
        for best in tuned.unequal.again(smaller, np.inf).steps(SMALL, tight):
            assert any(q.peak_memory_bytes <= best.peak_memory_bytes and q.y <= best.step_time_s for q in made.plans)
    with pytest.raises(InputError, match="levels"):
        front(tuned, levels=-1)


def test_a_front_cut_short_is_not_certified(found):
    made = front(found, most=3)
    assert (made.ran, made.certified) == (3, False)
    assert len(made.plans) <= 3 + made.unequal


def test_objectives_that_agree_leave_one_plan(found):
    (only,) = front(found, "step_time", "cost").plans
    assert only.step_time_s == min(r.step.step_time_s for r in found.plans)
    assert only.y == pytest.approx(found.best.step.usd_per_1e9_tokens)


def test_free_memory_is_the_steps(found):
    step = found.best.step
    free = MEASURES["memory_headroom"].value(Setting(SMALL, NODE, 32), step.step_time_s, step.peak_memory_bytes)
    assert free == pytest.approx(NODE.memory_bytes - step.device_memory_bytes)


@pytest.mark.parametrize(
    ("arguments", "path"),
    [({"x": "step_time"}, "y"), ({"most": 0}, "most"), ({"x": "gpus_for_deadline"}, "x"), ({"y": "speed"}, "y")],
)
def test_bad_fronts(found, arguments, path):
    with pytest.raises(InputError) as caught:
        front(found, **arguments)
    assert caught.value.path == path


def test_a_price_is_asked_for(found):
    with pytest.raises(InputError, match="usd_per_gpu_hour"):
        MEASURES["cost"].value(Setting(SMALL, Cluster.of("b200"), 32), 1.0, 1.0)


ALIKE = {"virtual_stages": [1], "unequal_stages": [False]}


def days(nodes, batch):
    """Return what the best plan takes on so many nodes, or infinity."""
    try:
        best = tune(SMALL, Cluster.of("a100-sxm-40gb", nodes=nodes), batch, ALIKE, top=1).best
    except InputError:
        return np.inf
    return sim.whole_run(best.step, TRAINING).days


@pytest.mark.slow
def test_the_fewest_nodes_by_trying_all():
    batch = 96
    each = [days(n, batch) for n in range(1, 7)]
    cluster = Cluster.of("a100-sxm-40gb", nodes=6)
    for allowed in (each[0], 0.999 * each[0], 1.01 * min(each), min(each)):
        found = tune(
            SMALL, cluster, batch, ALIKE, top=1,
            objective="gpus_for_deadline", training=TRAINING, deadline_days=allowed,
        )  # fmt: skip
        assert found.cluster.nodes == 1 + next(i for i, one in enumerate(each) if one <= allowed)
        assert sim.whole_run(found.best.step, TRAINING).days <= allowed * (1 + 1e-9)
        assert f"{found.cluster.gpus} devices" in found.best.why[1]
        assert found.objective == "gpus_for_deadline"
    with pytest.raises(InputError, match=r"tune\.deadline_days: .* at least .* days, on \d of the cluster's 6 nodes"):
        tune(
            SMALL, cluster, batch, ALIKE,
            objective="gpus_for_deadline", training=TRAINING, deadline_days=0.9 * min(each),
        )  # fmt: skip


@pytest.mark.slow
def test_a_number_of_nodes_whose_stages_cannot_be_equal_counts_too():
    """On 3 nodes neither a batch of 512 nor 32 layers can be shared equally."""
    deep, batch, asked = (
        replace(SMALL, layers=32, pattern=None),
        512,
        {"virtual_stages": [1], "tp": [1], "recompute": ["none"]},
    )
    on_three = tune(deep, Cluster.of("a100-sxm-40gb", nodes=3), batch, asked, top=1).best
    deadline_days = sim.whole_run(on_three.step, TRAINING).days
    found = tune(
        deep, Cluster.of("a100-sxm-40gb", nodes=4), batch, asked, top=1,
        objective="gpus_for_deadline", training=TRAINING, deadline_days=deadline_days,
    )  # fmt: skip
    assert (found.cluster.nodes, found.best.plan) == (3, on_three.plan)
    assert "the fastest, 2, takes at least" in found.best.why[1]


def test_a_deadline_is_for_one_kind_of_nodes():
    mixed = Cluster.of(groups=[{"device": "a100-sxm-40gb"}, {"device": "a100-sxm-80gb"}])
    with pytest.raises(InputError, match=r"cluster\.groups"):
        tune(SMALL, mixed, 32, objective="gpus_for_deadline", training=TRAINING, deadline_days=1)


ROOM = 6e9
TIGHT = Cluster.of("a100-sxm-40gb", nodes=1, memory_bytes=ROOM)


def ways(error):
    """Return (GB of memory, nodes, batch, {knob: value}) that an error says would make a plan fit."""
    memory, nodes, batch = (
        re.search(text, error.allowed) for text in (r"([\d.]+) GB more", r"(\d+) more node", r"global_batch (\d+)")
    )
    knobs = dict(re.findall(r"tune\.knobs\.(\w+) (\w+)", error.allowed))
    return memory and float(memory[1]), nodes and int(nodes[1]), batch and int(batch[1]), knobs


@pytest.mark.slow
def test_where_nothing_fits_every_way_out_is_one():
    knobs = ALIKE | {"recompute": "none", "zero": 1, "tp": [1, 2], "micro_batch": [8]}
    with pytest.raises(InputError) as caught:
        tune(SMALL, TIGHT, 32, knobs)
    memory, nodes, batch, free = ways(caught.value)
    assert caught.value.path == "cluster.memory_bytes"
    assert "does not fit the memory: " in caught.value.allowed
    tune(SMALL, Cluster.of("a100-sxm-40gb", memory_bytes=ROOM + 1e9 * (memory + 0.01)), 32, knobs, top=1)
    with pytest.raises(InputError):
        tune(SMALL, Cluster.of("a100-sxm-40gb", memory_bytes=ROOM + 0.98e9 * memory), 32, knobs, top=1)
    assert free
    for knob, value in free.items():
        tune(SMALL, TIGHT, 32, knobs | {knob: int(value) if value.isdigit() else value}, top=1)
    if batch:
        tune(SMALL, TIGHT, batch, knobs, top=1)
    if nodes:
        tune(SMALL, Cluster.of("a100-sxm-40gb", nodes=1 + nodes, memory_bytes=ROOM), 32, knobs, top=1)
        for fewer in range(2, min(1 + nodes, 12)):
            with pytest.raises(InputError):
                tune(SMALL, Cluster.of("a100-sxm-40gb", nodes=fewer, memory_bytes=ROOM), 32, knobs, top=1)


@pytest.mark.slow
def test_states_on_the_host_are_a_way_out():
    """Target any tries optimizer and activations there by itself; a stated share is the user's."""
    alone = {"tp": [1], "pp": [1], "micro_batch": [1], "recompute": ["full"], "zero": [0]}
    one = Cluster.of("a100-sxm-40gb", nodes=1, gpus_per_node=1)
    plan = Plan(global_batch=4, recompute="full", offload=Offload(optimizer=1.0, activations=1.0))
    less = replace(plan, offload=replace(plan.offload, gradients=1.0))
    needed = [simulate(SMALL, one, p).device_memory_bytes for p in (plan, less)]
    tight = replace(one, memory_bytes=0.4 * needed[0] + 0.6 * needed[1])
    with pytest.raises(InputError, match=r"a plan fits with .*, or tune\.knobs\.offload_gradients 1"):
        tune(SMALL, tight, 4, alone, target="any")
    assert tune(SMALL, tight, 4, alone | {"offload_gradients": [1.0]}, target="any").best.step.fits == "yes"
    with pytest.raises(InputError) as caught:
        tune(SMALL, tight, 4, alone | {"offload_optimizer": [0.0]}, target="any")
    assert "offload" not in caught.value.allowed
    roomy = replace(one, memory_bytes=1.02 * needed[0] / 0.8)
    with pytest.raises(InputError, match=r"tune\.target any"):
        tune(SMALL, roomy, 4, alone, target="torch")
    assert tune(SMALL, roomy, 4, alone, target="any").best.step.fits == "yes"


def test_the_counts_of_an_empty_space_add_up():
    with pytest.raises(InputError) as caught:
        tune(SMALL, NODE, 7, {"tp": 1, "pp": 1})
    told = caught.value.allowed.replace(THIN_SPACE, "")
    whole = int(re.search(r"of (\d+) configurations", told)[1])
    table = told.split("excluded: ")[1].split("; a plan fits")[0]
    assert sum(map(int, re.findall(r": (\d+)", table))) == whole
    _, _, batch, knobs = ways(caught.value)
    assert batch == 56
    assert knobs["tp"] == "8"


@pytest.mark.slow
def test_a_target_that_runs_nothing_is_named():
    with pytest.raises(InputError, match=r"a plan fits with tune\.target any") as caught:
        tune(SMALL, NODE, 32, {"zero": 1, "sequence_parallel": True, "tp": 2}, target="torchtitan")
    assert "torchtitan shards gradients with the optimizer" in caught.value.allowed


class Stopper:
    """A progress that presses Ctrl-C at the n-th call of one kind."""

    def __init__(self, what, after):
        self.what, self.left = what, after

    def __call__(self, what, done, of):
        self.left -= what == self.what
        if self.left < 0:
            self.left = 10**9
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(("what", "after", "kept"), [("confirming", 2, 2), ("ranking", 0, 6), ("ranking", 2, 2)])
def test_an_interruption_keeps_the_best_so_far(found, what, after, kept):
    cut = tune(SMALL, NODE, 32, {"virtual_stages": [1]}, top=6, progress=Stopper(what, after))
    assert cut.interrupted
    assert not cut.certified
    assert len(cut.plans) == kept
    assert cut.best.step.step_time_s * (1 - cut.gap) <= min(r.step.step_time_s for r in found.plans) + 1e-12
    assert not found.interrupted


TWO_GPUS = Cluster.of("l4", nodes=1, gpus_per_node=2)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "after"), [("bounding stages", 1), ("solving stages", 0), ("solving stages", 2)])
def test_an_interruption_among_unequal_stages_keeps_the_best_so_far(what, after):
    knobs = {"virtual_stages": [1]}
    whole = tune(SMALL, TWO_GPUS, 32, knobs, top=3, target="any")
    cut = tune(SMALL, TWO_GPUS, 32, knobs, top=3, target="any", progress=Stopper(what, after))
    assert cut.interrupted and cut.unequal.interrupted
    assert not cut.certified and not cut.unequal.certified
    assert cut.gap > 0
    assert cut.plans
    assert cut.best.step.step_time_s * (1 - cut.gap) <= whole.best.step.step_time_s + 1e-12


@pytest.mark.slow
def test_an_interruption_of_the_explanations_keeps_the_order(found, monkeypatch):
    explained = []

    def stopped(*given):
        explained.append(1)
        if len(explained) == 2:
            raise KeyboardInterrupt
        return explain(*given)

    monkeypatch.setattr(ranking, "explain", stopped)
    cut = tune(SMALL, NODE, 32, {"virtual_stages": [1]}, top=2)
    assert cut.interrupted and not cut.certified
    assert [r.plan for r in cut.plans] == [r.plan for r in found.plans]
    assert len(cut.plans[0].why) > 2
    assert cut.plans[1].why == ("interrupted before it was explained",)


def test_an_interruption_of_the_weighing_keeps_the_order(monkeypatch):
    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(ranking, "robustness", stopped)
    cut = tune(SMALL, NODE, 32, {"virtual_stages": [1], "pp": [1]}, top=2)
    assert cut.interrupted and not cut.certified
    assert len(cut.plans) == 2 and cut.baseline
    assert cut.robustness is None


@pytest.mark.slow
def test_a_share_on_the_host_needs_a_link_to_it():
    """Of host processors there is none: a share that is asked for is refused, and none is tried unasked."""
    linkless = Cluster.of("cpu", nodes=2)
    with pytest.raises(InputError, match=r"host_bytes_per_s.*required with plan\.offload"):
        tune(SMALL, linkless, 32, {"offload_optimizer": [0.5]}, target="any")
    found = tune(SMALL, linkless, 32, {"virtual_stages": [1], "pp": [1, 2]}, target="any", top=1)
    assert not found.best.plan.offloads


def test_an_interruption_before_any_plan_is_one():
    with pytest.raises(KeyboardInterrupt):
        tune(SMALL, NODE, 32, {"virtual_stages": [1]}, progress=Stopper("confirming", 0))


@pytest.mark.slow
def test_the_answer_does_not_depend_on_the_clock(found, monkeypatch):
    clock = iter(float(10**6 * n) for n in range(10**6))
    monkeypatch.setattr(tuning, "perf_counter", lambda: next(clock))
    slow = tune(SMALL, NODE, 32, {"virtual_stages": [1]}, top=2)
    assert [r.plan for r in slow.plans] == [r.plan for r in found.plans]
    assert (slow.gap, slow.certified) == (found.gap, found.certified)


@pytest.mark.parametrize(
    ("knob", "low", "high"), [("tp", 1, 2), ("tp", 2, 4), ("micro_batch", 2, 2), ("micro_batch", 1, 4)]
)
def test_bounds_are_the_list_of_what_is_inside(knob, low, high):
    bounded = tune(SMALL, NODE, 32, {"pp": 1, knob: {"min": low, "max": high}}, top=1)
    listed = tune(SMALL, NODE, 32, {"pp": [1], knob: list(range(low, high + 1))}, top=1)
    assert bounded.best.plan == listed.best.plan
    assert bounded.evaluated == listed.evaluated
