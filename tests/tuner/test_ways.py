"""Searches on equal costs: what each finds is what the event engine says, and knowing less never finds more."""

from math import isclose

import numpy as np
import pytest

from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Job, Links, Model, Plan
from sim.tuner.options import Question, Techniques
from sim.tuner.solvers.chain import USUAL, value
from sim.tuner.solvers.exact import exact
from sim.tuner.space import default_knobs
from sim.tuner.staged import search_stages
from sim.tuner.stages import StageTables
from sim.tuner.tune import tune
from sim.tuner.ways import IDEAS, RIVALS, compared
from sim.tuner.ways_table import ComparedRow, read_compared, write_compared
from sim.tuner.worse import solve_alike, solve_without_surplus
from tests.oracle import ROOT

MODEL = Model(name="small", layers=8, hidden=1024, heads=8, vocab=50304, seq=1024, attention="flash")
LINKS = Links(intra_bytes_per_s=8e9, host_bytes_per_s=6e9)
TECHNIQUES = Techniques((1, 2), (0, 1, 3), ("none", "selective", "full"))


def cluster(memory_bytes: float = 3e9) -> Cluster:
    return Cluster.of("l4", nodes=1, gpus_per_node=4, links=LINKS, memory_bytes=memory_bytes)


def tables(stages: int, memory_bytes: float = 3e9) -> StageTables:
    return StageTables(Question(MODEL, cluster(memory_bytes), 32, stages, 4), TECHNIQUES)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("memory_bytes", [3.4e9, 3e9, 20e9])
def test_less_knowledge_finds_nothing_better(stages, memory_bytes) -> None:
    chain = tables(stages, memory_bytes).chain()
    best = exact(chain, USUAL, 1)
    alike = solve_alike(tables(stages, memory_bytes), USUAL, 3)
    blind = solve_without_surplus(tables(stages, memory_bytes), USUAL, 1)
    assert [value(chain, c) for c in alike.choices] == pytest.approx(alike.values)
    assert alike.value >= best.value * (1 - 1e-12)
    assert blind.value <= best.value * (1 + 1e-12)
    for choice in blind.choices:
        assert not choice.d.any()


def test_stages_that_are_alike_are_the_best_of_these() -> None:
    """With one stage every way is alike; with several no choice of the same option everywhere is faster."""
    alone = solve_alike(tables(1), USUAL, 1)
    assert isclose(alone.value, exact(tables(1).chain(), USUAL, 1).value)
    held = tables(2, 20e9)
    found = solve_alike(held, USUAL, 1)
    table = held.tables[0]
    here = (table.columns["layers"] == 4) & (table.columns["gpus"] == 2)
    ends = (table.alive[0] >= 2) & (table.alive[2] >= 1)
    first, last = (0, 2)
    values = [
        7 * max(table.t[first, 0, o], table.t[last, 0, o])
        + table.x[first, 0, o]
        + table.x[last, 0, o]
        + max(0.0, table.d[first, 0, o], table.d[last, 0, o] - table.x[first, 0, o])
        + max(table.o[first, 0, o], table.o[last, 0, o])
        for o in np.flatnonzero(here & ends)
    ]
    assert found.value == pytest.approx(min(values))


def test_layers_that_stages_cannot_share_evenly() -> None:
    found = solve_alike(StageTables(Question(MODEL, cluster(), 32, 3, 4), TECHNIQUES), USUAL, 1)
    assert not found.choices and "alike" in found.note


@pytest.mark.slow
def test_all_layers_of_a_stage_recompute_or_none() -> None:
    knobs = default_knobs(MODEL, cluster()) | {"recompute_layers": [0], "recompute": ["none", "full"]}
    whole = search_stages(MODEL, cluster(3e9), 32, knobs, {}, n=5)
    some = search_stages(MODEL, cluster(3e9), 32, knobs | {"recompute_layers": []}, {}, n=5)
    stages = [stage for _, plan in whole.found for stage in plan.stages]
    assert stages and all(stage.recompute_layers is None for stage in stages)
    assert {stage.recompute for stage in stages} == {"none", "full"}
    assert some.found[0][0] <= whole.found[0][0]


@pytest.mark.slow
def test_what_is_found_is_what_the_event_engine_says() -> None:
    found = {each.way: each for each in compared(MODEL, cluster(), 32, RIVALS)}
    assert list(found) == list(RIVALS)
    for each in found.values():
        step = simulate(MODEL, cluster(), each.plan, "events")
        assert step.fits == "yes" and step.step_time_s == each.step_time_s
    assert found["uniform"].step_time_s <= found["megatron"].step_time_s
    assert all(found["tuned"].step_time_s <= each.step_time_s * 1.01 for each in found.values())


@pytest.mark.slow
def test_an_idea_left_out_is_left_out() -> None:
    small = cluster(3.4e9)
    found = {each.way: each for each in compared(MODEL, small, 32, IDEAS)}
    stages = {name: each.plan.stages for name, each in found.items() if each.plan}
    assert all(stage.zero == 0 for stage in stages["no ZeRO"])
    assert all(stage.offload.optimizer == 0 for stage in stages["no optimizer offload"])
    assert all(stage.offload.activations == 0 for stage in stages["no activation offload"])
    assert not any(stage.offload.used for stage in stages["no offload"])
    assert len(set(stages["equal stages"])) == 1
    assert all(stage.recompute == "none" for stage in stages.get("no recompute", ()))
    assert found["no overlap"].plan.overlap_dp and found["no overlap"].plan.tp_overlap
    assert min(each.step_time_s for each in found.values() if each.plan) >= found["staged"].step_time_s * 0.99


def test_every_search_keeps_what_none_searches() -> None:
    small = Model(name="tiny", layers=2, hidden=256, heads=4, vocab=1024, seq=128)
    stated = Plan(global_batch=4, precision="fp8", overlap_dp=False, zero=1)
    for each in compared(small, cluster(), 4, ["megatron", "aceso", "no overlap"], stated):
        assert each.plan and each.plan.precision == "fp8" and not each.plan.overlap_dp
        assert each.plan.tp_overlap  # not searched, and on where it is left out
    with pytest.raises(InputError, match=r"plan.precision.*nvfp4"):
        list(compared(small, cluster(), 4, ["megatron"], Plan(global_batch=4, precision="nvfp4")))


@pytest.mark.parametrize(("way", "part"), [("uniform", "tune.textbook"), ("staged", "staged._solve_all")])
def test_a_search_that_is_interrupted_finds_nothing(monkeypatch, way, part) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"sim.tuner.{part}", interrupt)
    small = Model(name="tiny", layers=2, hidden=256, heads=4, vocab=1024, seq=128)
    with pytest.raises(KeyboardInterrupt):
        list(compared(small, cluster(), 4, [way]))


@pytest.mark.slow
def test_nothing_fits() -> None:
    (found,) = compared(MODEL, cluster(4e8), 32, ["megatron"])
    assert found.plan is None and found.step_time_s is None and "memory" in found.why
    with pytest.raises(InputError, match=r"ways.*one of megatron"):
        list(compared(MODEL, cluster(), 32, ["guess"]))


@pytest.mark.slow
def test_the_table_is_read_as_written(tmp_path) -> None:
    made = list(compared(MODEL, cluster(), 32, ["megatron"])) + list(compared(MODEL, cluster(4e8), 32, ["megatron"]))
    rows = [ComparedRow.of("job", "l4", 4, 32, found) for found in made]
    write_compared(rows, tmp_path / "table.csv")
    again = read_compared(tmp_path / "table.csv")
    assert [row.plan for row in again] == [row.plan for row in rows] and again[1].step_time_s is None
    assert [row.proof for row in again] == [found.proof for found in made] and again[0].proof and not again[1].proof
    assert again[0].step_time_s == pytest.approx(rows[0].step_time_s, rel=1e-5)


@pytest.mark.parametrize("plan", ["{", "[" * 9_000, '{"tp": ' + "9" * 5_000 + "}", "[]", '{"tp": "x"}'])
def test_a_plan_that_is_none_is_refused(plan) -> None:
    row = ComparedRow("job", "l4", 4, 32, "megatron", 1.0, 1, 1.0, "", plan)
    with pytest.raises(InputError, match="plan"):
        row.parsed()


@pytest.mark.parametrize("text", ["", "job\n1", "a,b\n", None])
def test_another_table_is_refused(tmp_path, text) -> None:
    path = tmp_path / "table.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError):
        read_compared(path)


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks" / "jobs" / "mist").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_cases_are_jobs(path) -> None:
    job = Job.load(path)
    assert job.tune and job.tune.target == "any"
    name, size, device = path.stem.split("-")
    assert job.model.name == f"{name}-{size}" and str(job.cluster.device).startswith(device)
    assert job.model.parameters == pytest.approx(float(size[:-1]) * 1e9, rel=0.12)


def test_a_profile_that_does_not_exist_is_not_nothing_fits() -> None:
    lost = Cluster.of(
        groups=[{"device": "l4", "gpus_per_node": 2}, {"device": "l4", "gpus_per_node": 2, "profile": "x"}]
    )
    with pytest.raises(InputError, match=r"^cluster\.groups\.1\.profile: got 'x'"):
        next(compared(MODEL, lost, 32, ["megatron"]))
    for knobs in ({}, {"precision": ["bf16"]}):
        with pytest.raises(InputError, match=r"^cluster\.groups\.1\.profile: got 'x'"):
            tune(MODEL, lost, 32, knobs)
