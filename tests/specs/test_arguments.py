"""What a notebook passes wrongly is told by the argument's name."""

from inspect import signature
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import pytest

import sim
from sim.specs import InputError, Links, Model
from sim.specs.arguments import checked
from sim.specs.plan import StagePlan

MODEL = sim.models["gpt2-xl"]
CLUSTER = sim.Cluster.of("l4")
PLAN = sim.Plan(global_batch=8)

CALLS = [
    (lambda: sim.tune("x"), "cluster: missing; required"),
    (lambda: sim.tune("gpt2-xl", CLUSTER, 8), "model: got 'gpt2-xl'; allowed: a Model"),
    (lambda: sim.tune(MODEL, CLUSTER, True), "global_batch: got True; allowed: a whole number"),
    (lambda: sim.tune(MODEL, CLUSTER, 8, budget_s="1"), "budget_s: got '1'; allowed: a number"),
    (lambda: sim.tune(MODEL, CLUSTER, 8, plan={"tp": 2}), "plan: got {'tp': 2}; allowed: a Plan or None"),
    (lambda: sim.simulate(MODEL, "h100", PLAN), "cluster: got 'h100'; allowed: a Cluster"),
    (lambda: sim.simulate(MODEL, CLUSTER), "plan: missing; required"),
    (lambda: sim.simulate(MODEL, CLUSTER, PLAN, "magic"), "engine: got 'magic'; allowed: one of path, events"),
    (
        lambda: sim.simulate(MODEL, CLUSTER, PLAN, trace=1),
        "trace: got 1; allowed: no such argument; known: model, cluster, plan, engine, level",
    ),
    (
        lambda: sim.simulate(MODEL, CLUSTER, PLAN, "path", None, None, (), 1),
        "simulate: got '8 arguments'; allowed: model, cluster, plan, engine, level, noise, guests",
    ),
    (lambda: sim.simulate(MODEL, CLUSTER, PLAN, model=MODEL), "model: got Model(name='gpt2-xl'"),
    (lambda: sim.Plan(global_batch="8"), "global_batch: got '8'; allowed: a whole number from 1 to 10000000"),
    (lambda: sim.Plan(8), "Plan: got 8; allowed: values by name: tp, pp"),
    (lambda: PLAN.on(MODEL, "l4"), "cluster: got 'l4'; allowed: a Cluster"),
    (lambda: sim.Cluster.of(5), "device: got 5; allowed: text"),
    (lambda: sim.Cluster.of("l4", node=5), "node: got 5; allowed: no such key"),
    (lambda: sim.Model.from_hf(5), "path: got 5; allowed: text or a path"),
    (lambda: sim.Model.from_hf("x.json", seq="1"), "seq: got '1'; allowed: a whole number or None"),
    (lambda: sim.Job.load(None), "path: got None; allowed: text or a path"),
    (lambda: sim.emit(5, "torch-csv"), "plan: got 5; allowed: a Step or a HasStep"),
    (lambda: sim.emit(5, 5), "plan: got 5; allowed: a Step or a HasStep"),
    (lambda: sim.fixes(PLAN), "step: got Plan("),
    (lambda: sim.save_html(5, "x.html"), "result: got 5; allowed: a Tuned or a Step"),
    (lambda: sim.save_trace(5, "x.json"), "step: got 5; allowed: a Step"),
    (lambda: sim.plot.timeline(5), "step: got 5; allowed: a Step or a Timeline"),
    (lambda: sim.whole_run(5, "1T"), "step: got 5; allowed: a Step"),
    (lambda: sim.compute_optimal(1e9), "budget: missing; required"),
    (lambda: sim.simulate(MODEL, CLUSTER, PLAN, "events", guests=[3]), "guests: got [3]; allowed: functions"),
    (lambda: sim.plot.memory(sim.simulate(MODEL, CLUSTER, PLAN), 9), "stage: got 9; allowed: a pipeline rank, 0 to 0"),
    (lambda: sim.plot.breakdown([1]), "step: got [1]; allowed: a Step or a list, each a Step"),
    (lambda: sim.plot.breakdown(1), "step: got 1; allowed: a Step or a list, each a Step"),
    (lambda: sim.plot.executed_times([]), "plans: got []; allowed: one executed plan or more"),
    (lambda: sim.plot.executed_memory([5]), "plans: got [5]; allowed: a list, each an Executed"),
    (lambda: sim.plot.breakdown("one"), "step: got 'one'; allowed: a Step or a list, each a Step"),
    (lambda: sim.plot.curves({"a": 3}, "", ""), "lines.a: got 3; allowed: a dict, each value a number"),
    (lambda: sim.plot.bars({"a": {"b": "c"}}, ""), "groups.a.b: got 'c'; allowed: a number"),
    (lambda: sim.plot.factors({}, "", 3), "published: got 3; allowed: a dict, each value a number or None"),
    (lambda: sim.plot.tasks([1]), "table: got [1]; allowed: an ndarray"),
    (lambda: sim.plot.in_turn({"a": 3}), "turns.a: got 3; allowed: a Measures"),
    (lambda: sim.plot.in_turn({3: 3}), "turns: got 3; allowed: a dict, each key text"),
    (lambda: sim.plot.cluster_fairness({"a": 3}), "levels.a: got 3; allowed: a list of numbers"),
    (lambda: sim.plot.cluster_fairness({"a": ["b"]}), "levels.a.0: got 'b'; allowed: a finite number"),
    (lambda: sim.plot.schedules([1.0], [1.0], [5]), "names: got [5]; allowed: a list of texts"),
    (lambda: sim.plot.schedules([1.0], [1.0, 2.0], ["a", "b"]), "predicted_s: got [1.0]; allowed: a number of seconds"),
    (lambda: sim.plot.schedules([1.0], [0.0], ["a"]), "measured_s: got [0.0]; allowed: a number of seconds above 0"),
    (lambda: sim.plot.schedules([], [], []), "names: got []; allowed: a list of texts"),
    (lambda: sim.whatif(MODEL, CLUSTER, 5), "plan: got 5; allowed: a Plan or a HasStep"),
    (lambda: sim.tune(MODEL, CLUSTER, 8, knobs={("tp",): [1]}), "knobs: got ['tp']; allowed: a dict, each key text"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message[:40] for _, message in CALLS])
def test_facade(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_a_list_is_a_list_and_a_mapping_in_it_an_object_as_in_a_file():
    assert sim.Plan(pp=2, stage_layers=[6, 6], global_batch=8).stage_layers == (6, 6)
    assert sim.Plan(pp=2, stage_layers=np.array([6, 6]), global_batch=8).stage_layers == (6, 6)
    stated = sim.Plan(stages=[{"layers": 6}, StagePlan(layers=6)], global_batch=8)
    assert stated.stages == (StagePlan(layers=6),) * 2
    with pytest.raises(InputError, match=r"^stages.1.tpp: got 2; allowed: no such key"):
        sim.Plan(stages=[{"layers": 6}, {"layers": 6, "tpp": 2}], global_batch=8)
    with pytest.raises(InputError, match=r"^stage_layers.1: got 'six'; allowed: a whole number"):
        sim.Plan(stage_layers=[6, "six"], global_batch=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(sim.plot.__all__))
def test_figures_of_something_else_are_refused(name):
    figure = getattr(sim.plot, name)
    needed = [p for p in signature(figure).parameters.values() if p.default is p.empty]
    for wrong in (PLAN, "x", 3, None):
        with pytest.raises(InputError) as caught:
            figure(*[wrong] * len(needed))
        assert caught.value.path in {p.name for p in needed}


def test_numpy_numbers_are_numbers():
    assert sim.Plan(tp=np.int64(1), global_batch=np.int32(8)) == PLAN.but(tp=1)
    found = sim.tune(MODEL, CLUSTER, np.int64(8), {"tp": np.array([1, 2])}, top=1)
    assert found.best.plan.tp in (1, 2)


def test_only_what_can_be_told_is_looked_at(tmp_path):
    @runtime_checkable
    class Named(Protocol):
        name: str

    @checked
    def taken(a: Named | None, b: Literal["x", "y"] = "x", *, c: str | Path = "", d: list[int] | None = None, **more):
        return a, b, c, d, more

    assert taken(MODEL, "y", c=tmp_path, d="anything", e=1) == (MODEL, "y", tmp_path, "anything", {"e": 1})
    for arguments in ({"a": 5}, {"a": None, "b": "z"}, {"a": None, "b": ["x"]}, {"a": None, "c": 1}):
        with pytest.raises(InputError) as caught:
            taken(**arguments)
        assert caught.value.path == list(arguments)[-1]


def test_wrong_links_and_sizes_keep_their_paths():
    with pytest.raises(InputError, match=r"^links\.latency_s: got 'x'"):
        sim.Cluster.of("l4", links={"latency_s": "x"})
    with pytest.raises(InputError, match=r"^latency_s: got -1"):
        Links(latency_s=-1)
    with pytest.raises(InputError, match=r"^hidden: got \[1\]"):
        Model(layers=1, hidden=[1], heads=1)
