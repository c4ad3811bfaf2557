"""The search on models with layers of several kinds, on mixed clusters, and with settings that are kept."""

import numpy as np
import pytest

import sim
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Plan
from sim.specs.catalog import models
from sim.tuner.score import bounds, score_members
from sim.tuner.space import build_space
from tests.full import full

MIXED = Cluster.of(groups=[{"device": "h100-sxm-80gb", "nodes": 2}, {"device": "a100-sxm-80gb", "nodes": 2}])
H100 = Cluster.of("h100-sxm-80gb", nodes=4)
KNOBS = {"tp": [1, 4], "pp": [1, 2, 4], "virtual_stages": [1, 2], "micro_batch": [1], "zero": [0, 3]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cluster", "knobs", "kept"),
    [
        ("t5-base", H100, {}, {}),
        full("nemotron-3-nano", H100, {"ep": [8]}, {}),
        ("deepseek-v2", H100, {"ep": [2, 8]}, {}),
        ("mixtral-8x7b", H100, {"ep": [1, 8]}, {"rank_order": "tp-cp-pp-dp"}),
        ("t5-base", H100, {}, {"software_year": 2090.0}),
        ("llama3-8b", MIXED, {"cp": [1, 2]}, {}),
        ("nemotron-3-nano", MIXED, {"ep": [4]}, {}),
    ],
)
def test_no_step_beats_its_bound(name, cluster, knobs, kept):
    space = build_space(models[name], cluster, 64, KNOBS | knobs, kept)
    least, scores = bounds(space), score_members(space)
    chosen = np.argwhere(space.allowed)
    for at in map(tuple, chosen[:: max(1, len(chosen) // 40)]):
        step = simulate(models[name], cluster, space.plan(*map(int, at)))
        assert least[at] <= step.step_time_s * (1 + 1e-9)
        assert scores.step_time_s[at] == pytest.approx(step.step_time_s, rel=0.5)


@pytest.mark.slow
def test_a_search_keeps_expert_parallelism():
    found = sim.tune(models["mixtral-8x7b"], H100, 64, top=3, plan=Plan(global_batch=64, ep=8))
    assert found.gap == 0
    assert all(r.plan.ep == 8 and r.step.fits == "yes" and r.step.breakdown["ep"] > 0 for r in found.plans)


@pytest.mark.slow
def test_experts_are_spread_by_the_search_itself():
    found = sim.tune(models["mixtral-8x7b"], H100, 256, knobs={"virtual_stages": [1]}, top=1)
    fixed = sim.tune(models["mixtral-8x7b"], H100, 256, knobs={"virtual_stages": [1], "ep": [1]}, top=1)
    assert found.gap == 0 and found.best.plan.ep > 1
    assert found.best.step.step_time_s < fixed.best.step.step_time_s


@pytest.mark.slow
def test_a_search_over_groups_of_one_device_is_that_of_one_cluster():
    groups = [{"device": "h100-sxm-80gb", "nodes": 2}] * 2
    knobs = KNOBS | {"unequal_stages": [False]}
    apart, one = (sim.tune(models["llama3-8b"], c, 64, knobs, top=3) for c in (Cluster.of(groups=groups), H100))
    assert [r.plan for r in apart.plans] == [r.plan for r in one.plans]
    assert apart.best.step.step_time_s == one.best.step.step_time_s


@pytest.mark.slow
def test_a_mixed_cluster_is_searched():
    slow = Cluster.of("a100-sxm-80gb", nodes=4)
    times = [sim.tune(models["llama3-8b"], c, 64, KNOBS, top=1).best.step.step_time_s for c in (H100, MIXED, slow)]
    assert times[0] < times[1] <= times[2] * (1 + 1e-3)


@pytest.mark.slow
def test_plans_of_uneven_models_fit():
    found = sim.tune(models["nemotron-3-nano"], H100, 64, KNOBS | {"zero": [1, 3]}, top=5)
    assert {r.step.fits for r in found.plans} == {"yes"}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"knobs": {"schedule": ["chimera"]}}, r"tune\.knobs\.schedule: got 'chimera'; allowed: none, 1f1b"),
        (
            {"plan": Plan(global_batch=64, pp=2, stage_layers=(15, 17))},
            r"plan\.stage_layers: got \[15, 17\]; allowed: left out",
        ),
    ],
)
def test_what_is_not_searched_is_refused(given, path):
    with pytest.raises(InputError, match=path):
        sim.tune(models["llama3-8b"], H100, 64, **given)


@pytest.mark.slow
def test_a_page_of_a_mixed_cluster_and_of_experts(tmp_path):
    found = sim.tune(models["mixtral-8x7b"], MIXED, 64, KNOBS, top=1, plan=Plan(global_batch=64, ep=8))
    for what in (found, found.best.step):
        page = sim.save_html(what, tmp_path / "page.html").read_text()
        assert "H100" in page
        assert "A100" in page
