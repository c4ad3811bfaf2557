"""Stage tables and the search over unequal stages: equal to brute force, and to what the engines say of the plans."""

from collections import Counter
from dataclasses import fields, replace
from itertools import product
from random import Random

import numpy as np
import pytest

from sim.costs.run_level import level_of, straggling
from sim.engine.assembly import on_ranks, pass_seconds, step_schedule, tied_reduce
from sim.engine.closed_form import PLACES, own_ends
from sim.engine.step import most_allocated, simulate
from sim.plans.targets import refusals
from sim.schedules import Kind
from sim.specs import Cluster, InputError, Links, Model, NodeGroup, Offload, Plan, StagePlan
from sim.specs.catalog import models
from sim.tuner import staged
from sim.tuner.options import Grid, Question, Techniques
from sim.tuner.solvers.chain import Choice, Effort, value
from sim.tuner.solvers.exact import exact
from sim.tuner.solvers.graph import grow
from sim.tuner.space import default_knobs
from sim.tuner.staged import FREEDOMS, plan_of, questions, search_stages, solve_exactly
from sim.tuner.stages import StageTables
from sim.tuner.tune import tune
from tests.full import FULL

SPACES = 500 if FULL else 25
TINY = Model(name="tiny", layers=5, hidden=2048, heads=16, vocab=32_000, seq=1024)
SMALL = Model(name="small", layers=24, hidden=2048, heads=16, vocab=50_304, seq=2048)
L4S = Cluster.of("l4", nodes=1, gpus_per_node=8)
HALVES = (0.0, 0.5, 1.0)
HOST = ("offload_optimizer", "offload_activations", "offload_weights", "offload_gradients")


def columns(plan, model, cluster, costs):
    """Return t, x, d and o of every stage on one node, from the costs of a step."""
    schedule, s = step_schedule(plan.on(model, cluster), costs), plan.pp
    passes, ranks = pass_seconds(costs, s), {n: on_ranks(costs, n, schedule) for n in ("reduce", "slowed", "optimizer")}
    own = passes[Kind.F] + passes[Kind.B]
    ends = own_ends(costs)
    through = own - ends
    message = 2 * np.append((np.zeros(s) + costs["send"])[1:], 0)
    gpus = np.array(plan.on(model, cluster).stage_gpus)
    layers = np.array(plan.split_stages)
    others = np.where(layers > 0, np.minimum(1, model.layers / cluster.gpus * gpus / np.maximum(1, layers)), 0.0)
    trip = through * (1 + others * (s - 1)) / s + message * (s - 1) / s
    t = np.max([own, through * (1 + others) / 2 + message / 2, trip], axis=0)
    t[-1] = own[-1]
    d = ranks["reduce"] - ranks["slowed"] + ends + tied_reduce(costs, schedule)
    return t, through + ranks["slowed"] + message, d, ranks["optimizer"]


def seconds(plan, model, cluster):
    """Return the closed form of a plan of unequal stages, without tables, and whether it fits."""
    step = simulate(model, cluster, plan)
    t, x, d, o = columns(plan, model, cluster, step.costs)
    late = max(0.0, *(d - (np.cumsum(x) - x)))
    fits = max(m.peak_bytes for m in step.memory) <= most_allocated(step.profile, cluster)
    return (step.placed.microbatches - 1) * t.max() + x.sum() + late + o.max(), fits


def raw_plans(model, cluster, batch, values):
    """Yield every plan of the space, stage by stage, without tables."""
    for s, b in product(values["pp"], values["samples"]):
        if cluster.gpus % s or batch % b:
            continue
        each = [
            StagePlan(layers=n, tp=tp, dp=dp, micro_batch=b // dp, zero=zero, recompute=kind, **some)
            for n in range(model.layers + 1)
            for tp, zero in product(values["tp"], values["zero"])
            for dp in [cluster.gpus // s // tp]
            if dp and cluster.gpus // s % tp == 0 and b % dp == 0 and (dp > 1 or not zero or 0 not in values["zero"])
            for kind in values["recompute"]
            for again in ([None] if kind == "none" or not n else [c for c in values["recompute_layers"] if c <= n])
            for some in [{"recompute_layers": again} if again and again < n else {}]
        ]
        for stages in product(each, repeat=s):
            if sum(p.layers for p in stages) == model.layers:
                yield Plan(global_batch=batch, stages=stages)


@pytest.mark.slow
@pytest.mark.parametrize("seed", sorted({*range(SPACES), 275, 475}))  # those two: ends of unequal tp, a tied table
def test_the_search_finds_what_brute_force_finds(seed):
    random = Random(seed)
    vocab = random.choice((32_000, 400_000))  # a head of one layer's work, or of a dozen's
    model = Model(name="tiny", layers=random.choice((3, 4)), hidden=2048, heads=16, vocab=vocab, seq=1024)
    cluster = Cluster.of("l4", nodes=1, gpus_per_node=random.choice((2, 4)), memory_bytes=random.uniform(3e9, 2e10))
    values = {
        "tp": random.sample((1, 2), random.choice((1, 2))),
        "pp": random.choice(([1], [2], [1, 2])),
        "samples": random.sample((1, 2, 4), random.choice((1, 2))),
        "zero": random.sample((0, 1, 3), random.choice((1, 2))),
        "recompute": random.sample(("none", "full", "selective"), random.choice((1, 2))),
        "recompute_layers": random.sample((1, 2, 3), random.choice((1, 2))),
    }
    brute = [seconds(plan, model, cluster) for plan in raw_plans(model, cluster, 16, values)]
    best = min((value for value, fits in brute if fits), default=np.inf)
    found = np.inf
    techniques = Techniques(*(tuple(values[n]) for n in ("tp", "zero", "recompute", "recompute_layers")))
    for s, samples in product(values["pp"], values["samples"]):
        tables = StageTables(Question(model, cluster, 16, s, samples), techniques)
        every = exact_of(tables)
        found = min(found, every)
    assert found == pytest.approx(best, rel=1e-9)


def exact_of(tables):
    # All stages have as many devices here: the brute force looks at no others.
    tables.counts = [
        [n for n in each if n * tables.asked.stages == tables.asked.cluster.gpus] for each in tables.counts
    ]
    solution = solve_exactly(tables, Effort(), 1)
    assert solution.certified
    return solution.value


def drawn(graph, random):
    """Return a random choice of a chain."""
    keys = np.array([[random.random(), random.random()] for _ in graph.levels])
    return graph.decode(keys)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["l4", "a100-sxm-40gb"])
@pytest.mark.parametrize(("stages", "samples"), [(1, 8), (2, 4), (4, 4), (8, 2)])
def test_the_closed_form_is_close_to_both_engines(device, stages, samples):
    """Random stages, most of them badly balanced: within 5 % of both engines, with copies 8 %."""
    cluster = Cluster.of(device, nodes=1, gpus_per_node=8)
    random = Random(stages)
    host = {"optimizer": HALVES[1:], "activations": HALVES[1:]}
    for offload, zero in (({}, (0, 1, 2, 3)), (host, (0, 1, 2, 3))):
        techniques = Techniques((1, 2, 4), zero, ("none", "selective", "full"), (), offload)
        tables = StageTables(Question(SMALL, cluster, 64, stages, samples), techniques)
        chain = tables.chain()
        graph = grow(chain)
        for _ in range(3):
            choice = drawn(graph, random)
            expected = value(chain, choice) * tables.slower
            plan = plan_of(tables.asked, choice)
            for engine in ("path", "events"):
                found = simulate(SMALL, cluster, plan, engine).step_time_s
                assert found == pytest.approx(expected, rel=0.08 if offload else 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["l4", "a100-sxm-40gb"])
def test_the_closed_form_of_the_best_is_closer(device):
    """Balanced, as the best are: within 1.5 % of both engines."""
    cluster = Cluster.of(device, nodes=1, gpus_per_node=8)
    knobs = default_knobs(SMALL, cluster) | {key: [0.0] for key in HOST} | {"zero": [0, 1]}
    expected, plan = search_stages(SMALL, cluster, 256, knobs, {}).found[0]
    for engine in ("path", "events"):
        assert simulate(SMALL, cluster, plan, engine).step_time_s == pytest.approx(expected, rel=0.015)


def test_memory_of_every_stage_is_what_the_engine_says():
    host = {"optimizer": HALVES, "activations": HALVES}
    techniques = Techniques((1, 2), (0, 1, 2, 3), ("none", "selective", "full"), (), host)
    tables = StageTables(Question(SMALL, L4S, 64, 4, 4), techniques)
    random, graph = Random(1), grow(tables.chain())
    for _ in range(10):
        choice = drawn(graph, random)
        step = simulate(SMALL, L4S, plan_of(tables.asked, choice))
        most = most_allocated(step.profile, L4S)
        for s, (cell, point) in enumerate(zip(choice.cells, choice.points, strict=True)):
            place = 0 if s == 0 else 2 if s == 3 else 1
            room = cell.table.alive[place, cell.options[point]]
            assert room >= min(16, 4 - s)
            assert step.memory[s].peak_bytes <= most * (1 + 1e-9)


@pytest.mark.slow
def test_more_freedom_is_never_slower():
    found = [
        search_stages(SMALL, L4S, 64, default_knobs(SMALL, L4S), {}, freedom).found[0][0]
        for freedom in ("techniques", "all")
    ]
    assert found[1] <= found[0]


def test_offload_makes_room_for_what_does_not_fit():
    tight = Cluster.of("l4", nodes=1, gpus_per_node=2, memory_bytes=14e9)
    knobs = {"tp": [1, 2], "pp": [1, 2], "cp": [1], "ep": [1], "micro_batch": [1], "zero": [0, 1]} | {
        "recompute": ["none", "full"]
    }
    without = search_stages(SMALL, tight, 8, knobs | {key: [0.0] for key in HOST}, {})
    with_host = search_stages(SMALL, tight, 8, knobs, {})
    assert not without.found or with_host.found[0][0] < without.found[0][0]
    assert any(s.offload.used for s in with_host.found[0][1].stages)


@pytest.mark.parametrize("memory_bytes", [1e9, 2e9, 6e9, 14e9])
def test_shares_are_tried_only_of_what_fits_with_the_most_on_the_host(memory_bytes, monkeypatch):
    """Nothing is lost by that; where nothing fits, none are tried."""
    asked = Question(SMALL, Cluster.of("l4", nodes=1, gpus_per_node=2, memory_bytes=memory_bytes), 8, 2, 2)
    hosts = {"optimizer": (0.0, 0.25, 0.5, 1.0), "activations": (0.0, 0.5, 1.0)}
    techniques = Techniques((1, 2), (0, 1), ("none", "full"), (4, 12), hosts)
    evaluated, tried = Grid._evaluated, []

    def noted(grid, axes, shares=None):
        tried.append(shares is not None and max(map(len, shares)) > 1)
        return evaluated(grid, axes, shares)

    monkeypatch.setattr(Grid, "_evaluated", noted)
    tables = StageTables(asked, techniques)
    found = solve_exactly(tables, Effort(), 1)
    assert any(tried) == (memory_bytes > 1e9)
    monkeypatch.setattr(Grid, "_may_fit", lambda grid, table, ids: ids)
    whole = StageTables(asked, techniques)
    expected = solve_exactly(whole, Effort(), 1)
    assert (found.value, tables.evaluated) == (pytest.approx(expected.value), whole.evaluated)
    assert bool(found.choices) == (memory_bytes > 6e9)
    every = np.arange(tables.plain[0].t.shape[-1])
    out = evaluated(tables.grids[0], tables.grids[0]._axes_of(tables.plain[0], every), techniques.shares)
    for place in PLACES[:3]:
        one_alive = out[f"peak_{place}"][-1]
        assert np.all(one_alive[..., -1:, -1:, :, :] <= one_alive * (1 + 1e-12)), place


@pytest.mark.parametrize("cluster", [Cluster.of("a100-sxm-40gb", nodes=3, gpus_per_node=4), L4S])
def test_a_graph_asks_once_for_all_that_is_offered_alike(cluster):
    """However many layers are left, and whatever number of devices makes no difference."""
    tables = StageTables(Question(SMALL, cluster, 24, 4, 4), Techniques((1, 2), (0, 1), ("none", "full"), (3,)))
    chain, asked = tables.chain(), []

    def cells(stage, left, used):
        asked.append((stage, used))
        first_after, some = cluster.gpus - sum(used), tables.counts[0]
        used_up = (stage + 1) * some[0] <= first_after <= (stage + 1) * some[-1]
        sizes = [n for n in some if n <= first_after and used_up]
        expected = [c for n in sizes for c in tables._cells_of(stage, 0, n, tables.crosses(first_after, n))]
        offered = tables.cells(stage, left, used)
        assert list(offered) == expected
        return offered

    graph = grow(replace(chain, cells=cells))
    assert {bool(tables.cells(*place[:1], 0, place[1])) for place in asked} == {True, False}
    assert len(asked) == len(set(asked)) < sum(len(level.left) for level in graph.levels)
    every = grow(replace(chain, by_layers=True))
    assert every.cells == graph.cells
    for one, other in zip(graph.levels, every.levels, strict=True):
        assert all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_value_at_hand_makes_the_graph_smaller_and_loses_nothing(stages):
    tables = StageTables(Question(SMALL, L4S, 64, stages, 4), Techniques((1, 2), (0, 1), ("none", "full"), (3,)))
    whole = exact(tables.chain())
    near = whole.value * 1.02
    chain = tables.chain(near * tables.slower)
    assert exact(chain, Effort(at_most=near)).value == whole.value
    assert not exact(tables.chain(whole.value * tables.slower), Effort(at_most=whole.value)).choices
    assert grow(chain, at_most=near).edges < grow(tables.chain()).edges / 2


@pytest.mark.slow
def test_the_n_best_are_distinct_sorted_and_fit(monkeypatch):
    monkeypatch.setattr(staged, "EACH", 4)
    found = search_stages(SMALL, L4S, 64, default_knobs(SMALL, L4S), {}, n=12)
    times = [seconds for seconds, _ in found.found]
    assert times == sorted(times)
    assert len(times) > 3
    assert len({plan for _, plan in found.found}) == len(found.found)
    assert all(step.fits == "yes" for step in found.steps(SMALL, L4S))
    assert found.certified
    assert found.gap(times[0]) == 0
    pipelines = Counter((plan.pp, plan.stages[0].dp * plan.stages[0].micro_batch) for _, plan in found.found)
    assert len(pipelines) > 1 and max(pipelines.values()) <= 4  # the engine has several to choose from


def test_a_pipeline_alone_offers_all_of_them(monkeypatch):
    monkeypatch.setattr(staged, "EACH", 4)
    knobs = default_knobs(SMALL, L4S) | {"pp": [4], "micro_batch": [1], "tp": [1], "zero": [0]}
    few = search_stages(SMALL, L4S, 64, knobs, {}, "techniques", n=12)
    assert len({plan.stages[0].micro_batch for _, plan in few.found}) == 1
    assert 4 < len(few.found) <= 12


def test_an_interrupt_leaves_the_best_so_far():
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 3

    knobs = default_knobs(SMALL, L4S) | {"pp": [2]}
    found = search_stages(SMALL, L4S, 64, knobs, {}, stop=stop)
    assert not found.certified
    assert found.gap(1.0) > 0
    assert found.notes


@pytest.mark.slow
def test_stages_of_a_mixed_cluster():
    mixed = Cluster(groups=(NodeGroup(device="h100-sxm-80gb", nodes=1), NodeGroup(device="a100-sxm-80gb", nodes=1)))
    knobs = default_knobs(SMALL, mixed) | {"pp": [2, 4], "micro_batch": [1, 2], "zero": [0, 1]}
    plan = search_stages(SMALL, mixed, 64, knobs, {}).found[0][1]
    layers = plan.split_stages
    half = len(layers) // 2
    assert sum(layers[:half]) > sum(layers[half:])  # the faster devices come first and take more
    assert simulate(SMALL, mixed, plan).fits == "yes"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["torch", "any"])
def test_plans_run_on_their_target(target):
    found = search_stages(SMALL, L4S, 64, default_knobs(SMALL, L4S), {}, FREEDOMS[target], 8)
    for _, plan in found.found:
        assert not list(refusals(SMALL, plan.on(SMALL, L4S), target))


def test_stages_of_a_stack_of_several_kinds():
    model = models["mixtral-8x7b"]
    cluster = Cluster.of("h100-sxm-80gb", nodes=2)
    knobs = default_knobs(model, cluster) | {"ep": [8], "tp": [1], "pp": [2], "micro_batch": [1]}
    knobs |= {key: [0.0] for key in HOST}
    found = search_stages(model, cluster, 64, knobs, {})
    assert simulate(model, cluster, found.found[0][1]).step_time_s == pytest.approx(found.found[0][0], rel=0.05)


def test_every_question_can_be_asked():
    values = default_knobs(SMALL, L4S)
    every = list(questions(SMALL, L4S, 64, values))
    assert {q.stages for q in every} == {1, 2, 4, 8}
    assert all(64 % q.samples == 0 for q in every)
    alike = list(questions(SMALL, L4S, 64, values, freedom="techniques"))
    assert {q.tp for q in alike} == {1, 2, 4, 8}


@pytest.mark.slow
def test_tune_finds_unequal_stages_where_memory_is_short():
    found = tune(SMALL, L4S, 64, target="any", top=3)
    equal = tune(SMALL, L4S, 64, {"unequal_stages": [False]}, target="any", top=3)
    assert equal.unequal is None
    assert found.best.contended_s <= equal.best.contended_s
    assert found.evaluated > equal.evaluated
    if FULL:  # the same again
        assert [r.plan for r in tune(SMALL, L4S, 64, target="any", top=3).plans] == [r.plan for r in found.plans]


def test_knobs_of_stages_are_kept():
    knobs = {"recompute": ["full"], "recompute_layers": [2], "offload_optimizer": [0.5], "pp": [4], "tp": [1]}
    plan = search_stages(SMALL, L4S, 64, default_knobs(SMALL, L4S) | knobs, {}).found[0][1]
    assert {s.recompute_layers for s in plan.stages} == {2}
    assert {s.offload for s in plan.stages} == {Offload(optimizer=0.5)}


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "deepspeed"])
def test_targets_of_equal_stages_refuse_knobs_of_stages(target):
    with pytest.raises(InputError, match=r"tune\.knobs\.recompute_layers"):
        tune(SMALL, L4S, 64, {"recompute_layers": [2]}, target=target)


def test_costs_of_a_table_are_those_of_its_plan():
    techniques = Techniques((1, 2), (0, 1), ("none", "full"), (3,))
    tables = StageTables(Question(SMALL, L4S, 64, 4, 4), techniques)
    choice = drawn(grow(tables.chain()), Random(2))
    plan = plan_of(tables.asked, choice)
    costs = simulate(SMALL, L4S, plan).costs
    for name, expected in zip("txdo", columns(plan, SMALL, L4S, costs), strict=True):
        assert choice.of(name) == pytest.approx(expected, rel=1e-3), name
    assert isinstance(choice, Choice)
    assert tables.slower == 1 + straggling(level_of(L4S).parameters.straggler, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "device", "recompute", "freedom"),
    [
        ("opt-6.7b", "l4", ("full",), "techniques"),
        ("mixtral-8x7b", "h100-sxm-80gb", ("none", "full"), "all"),
        ("t5-large", "l4", ("full",), "layers"),
        ("bert-large", "h100-sxm-80gb", ("none", "selective"), "layers"),
    ],
)
def test_no_pipeline_beats_its_bound_without_recompute(name, device, recompute, freedom):
    cluster = Cluster.of(device, nodes=2)
    values, techniques = default_knobs(models[name], cluster), Techniques((1, 2, 8), (0, 3), recompute)
    every = list(questions(models[name], cluster, 64, values, (), freedom))
    least = np.array([StageTables(q, techniques).least for q in every])
    bound = np.array([staged._Pipeline.of(q, techniques, 0).least for q in every])
    some = np.isfinite(least)  # some have no legal stage
    assert (bound <= least).all()
    assert (bound[some] > 0.65 * least[some]).all()
    assert ("none" in recompute) == (bound == least).all()


@pytest.mark.slow
def test_only_pipelines_that_may_be_faster_than_what_is_found_get_tables(monkeypatch):
    made = []

    def tables(asked, techniques):
        made.append(techniques.recompute)
        return StageTables(asked, techniques)

    monkeypatch.setattr(staged, "StageTables", tables)
    knobs = default_knobs(SMALL, L4S) | {"recompute": ["full"]}
    asked = len(list(questions(SMALL, L4S, 64, knobs)))
    search_stages(SMALL, L4S, 64, knobs, {})
    assert made.count(("none",)) == asked
    assert 0 < made.count(("full",)) < asked
    made.clear()
    nothing = search_stages(SMALL, L4S, 64, knobs, {}, at_most=1e-9)
    assert (nothing.found, nothing.evaluated, nothing.certified) == ([], 0, True)
    assert set(made) == {("none",)}


@pytest.mark.slow
def test_only_unequal_stages_fit():
    """Where no plan of equal stages fits, the search goes on with what may lie on the host."""
    tight = Cluster.of("l4", nodes=1, gpus_per_node=2, memory_bytes=11e9)
    knobs = {"tp": [1], "pp": [2], "micro_batch": [1], "recompute": ["none", "full"], "zero": [0]}
    with pytest.raises(InputError, match="fits"):
        tune(SMALL, tight, 8, knobs | {"unequal_stages": [False]}, target="any")
    best = tune(SMALL, tight, 8, knobs, target="any", top=2).best
    assert any(s.offload.used for s in best.plan.stages)
    assert any("equal stages" in line for line in best.why)


def test_zero_bubble_orders_are_a_knob():
    knobs = {"schedule": ["1f1b", "zb-h1", "zb-h2"], "pp": [4], "tp": [1], "unequal_stages": [False]}
    found = tune(SMALL, L4S, 64, knobs, target="any", top=2)
    assert found.gap == 0
    assert found.best.plan.schedule.startswith("zb")


@pytest.mark.parametrize("nodes", [1, 2])
def test_equal_stages_given_one_by_one_count_once(nodes):
    """They are the equal plan, also on two nodes, where every second message leaves the node."""
    cluster = Cluster.of("l4", nodes=nodes, gpus_per_node=8 // nodes, links=Links(inter_bytes_per_s_per_node=1e9))
    own = StagePlan(layers=SMALL.layers // 4, tp=2, dp=1, micro_batch=1, zero=0)
    equal, each = (
        simulate(SMALL, cluster, Plan(pp=4, global_batch=16, **given)) for given in ({"tp": 2}, {"stages": (own,) * 4})
    )
    assert each.step_time_s == equal.step_time_s
    assert staged.joined([equal], [each]) == [equal]
