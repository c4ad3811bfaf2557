"""Single changes that make a plan fit: Tempo's layers where nothing else does."""

from dataclasses import replace

import pytest

from sim.costs.run_level import RunLevel, RunLevelSet
from sim.engine.noise import Noise
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models
from sim.tuner.binding import binding, lacking_bytes
from sim.tuner.fixes import fixes
from sim.tuner.tune import tune

MODEL = Model(layers=2, hidden=1024, heads=16, vocab=1000, seq=4096, dropout=0.1, attention="eager")
ONE = Cluster.of("a100-sxm-80gb", nodes=1, gpus_per_node=1)
PLAN = Plan(global_batch=8, micro_batch=1, recompute="full")
KNOBS = {"micro_batch": 1, "recompute": ["full"], "zero": [0], "unequal_stages": [False]}


@pytest.fixture(scope="module")
def between():
    """The device on which the plan fits with Tempo's layers only."""
    usual, tempo = (lacking_bytes(simulate(MODEL, ONE, PLAN.but(tempo=on))) for on in (False, True))
    return replace(ONE, memory_bytes=ONE.memory_bytes + (usual + tempo) / 2)


def test_a_plan_that_fits_with_nothing_else(between):
    step = simulate(MODEL, between, PLAN)
    assert step.fits == "close"
    (found,) = (fix for fix in fixes(step) if fix.step.fits == "yes")
    assert (found.change, found.step.plan) == ("Tempo's layers on", PLAN.but(tempo=True).on(MODEL, between).plan)
    assert found.saved_bytes == step.device_memory_bytes - found.step.device_memory_bytes
    assert found.slower > 0


def test_it_is_proposed_where_a_model_has_such_layers(between):
    assert "Tempo's layers on" not in [fix.change for fix in fixes(simulate(MODEL, between, PLAN.but(tempo=True)))]
    llama = simulate(models["llama3-8b"], Cluster.of("h100-sxm-80gb"), Plan(tp=8, global_batch=8))
    assert "Tempo's layers on" not in [fix.change for fix in fixes(llama)]


def test_a_search_without_a_plan_names_it(between):
    with pytest.raises(InputError, match=r"a plan fits with .*tune\.knobs\.tempo true"):
        tune(MODEL, between, 8, KNOBS)
    found = tune(MODEL, between, 8, KNOBS | {"tempo": [False, True]})
    assert {one.plan.tempo for one in found.plans} == {True}


def test_memory_binds_where_the_usual_layers_are_faster_and_do_not_fit(between):
    told = [each.text for each in binding(simulate(MODEL, between, PLAN.but(tempo=True))) if each.kind == "memory"]
    assert "setting of Tempo's layers off instead of on: −" in told[0]


@pytest.mark.parametrize(
    ("engine", "level", "noise"),
    [
        ("events", None, None),
        ("path", RunLevelSet.bare(RunLevel()), None),
        ("path", None, Noise(slow={(0, 0): 1.5})),
    ],
)
def test_a_change_is_run_as_the_step_was_but_without_events(engine, level, noise):
    model, cluster, plan = models["llama3-8b"], Cluster.of("h100-sxm-80gb"), Plan(tp=2, global_batch=32)
    step = simulate(model, cluster, plan, engine, level, noise)
    by_path = simulate(model, cluster, plan, "path", level, noise)
    assert fixes(step)
    for fix in fixes(step):
        assert not fix.step.contention
        likewise = simulate(model, cluster, fix.step.plan, "path", level, noise)
        assert fix.slower == likewise.step_time_s / by_path.step_time_s - 1
        same = simulate(model, cluster, fix.step.plan, engine, level, noise)
        assert fix.saved_bytes == step.device_memory_bytes - same.device_memory_bytes
