"""P(best), regret and the flip: twins share, the flip is where the plans really meet, nothing is left to chance."""

from dataclasses import replace

import numpy as np
import pytest

from sim.costs.profile import load_profile, profile_text
from sim.costs.run_level import RunLevelSet
from sim.engine.step import simulate
from sim.specs import Cluster, Model, Plan
from sim.tuner.robustness import SAMPLES, TITLES, robustness

MODEL = Model(layers=16, hidden=4096, heads=32, seq=2048)
CLUSTER = Cluster.of("a100-sxm-80gb", nodes=1)
PLANS = [
    Plan(tp=1, pp=4, virtual_stages=4, zero=1, recompute="selective", global_batch=64),
    Plan(tp=2, pp=1, zero=1, recompute="selective", global_batch=64),
    Plan(tp=8, pp=1, global_batch=64),
]


def ranked(plans=PLANS, **given):
    """Return the plans' steps, best first, and their times."""
    steps = sorted((simulate(MODEL, CLUSTER, p, **given) for p in plans), key=lambda s: s.step_time_s)
    return steps, [s.step_time_s for s in steps]


def test_probabilities_add_up_and_are_those_of_the_samples():
    found = robustness(*ranked())
    assert sum(found.p_best) == pytest.approx(1) and found.times_s.shape == (3, SAMPLES)
    wins = np.bincount(found.times_s.argmin(axis=0), minlength=3) / SAMPLES
    assert found.p_best == pytest.approx(tuple(wins))
    assert found.expected_regret == pytest.approx(float((found.times_s[0] / found.times_s.min(axis=0) - 1).mean()))
    assert found.p_best[2] == 0 and set(found.sigmas) <= set(TITLES)


def test_the_seed_decides():
    steps, seconds = ranked()
    same = [robustness(steps, seconds, samples=20, seed=1).times_s for _ in range(2)]
    assert np.array_equal(*same)
    assert not np.array_equal(same[0], robustness(steps, seconds, samples=20, seed=2).times_s)


def test_twins_share_and_one_plan_alone_has_nothing_to_compare():
    step = simulate(MODEL, CLUSTER, PLANS[0])
    found = robustness([step, step], [1.0, 1.0], samples=20)
    assert found.p_best == (0.5, 0.5) and found.expected_regret == 0 and found.flip.sigmas == 0
    assert robustness([step], [1.0]) is None


def test_errors_that_all_plans_share_drop_out():
    """Two plans of one shape, of which one takes a little longer in everything, never change places."""
    step = simulate(MODEL, CLUSTER, PLANS[0])
    found = robustness([step, step], [1.0, 1.001], samples=50)
    assert found.p_best == (1.0, 0.0) and found.flip is None
    assert np.log(found.times_s[0]).std() > 0.01


def test_the_spread_of_the_winner_is_what_runs_of_one_source_differ_by():
    # Without checkpoints: what looks at each operation of a layer in Python may be slower than the device.
    steps, seconds = ranked([plan.but(framework="torch", recompute="none") for plan in PLANS])
    level = steps[0].level
    between = np.sqrt(level.sigma_log**2 - level.source_sigma_log**2)
    found = robustness(steps, seconds, samples=200)
    assert np.log(found.times_s[0]).std() == pytest.approx(max(between, 0.05), rel=0.35)


def test_nothing_uncertain_leaves_the_order():
    steps, seconds = ranked()
    bare = RunLevelSet.bare(steps[0].level.parameters)
    found = robustness([replace(s, level=bare) for s in steps], seconds, samples=20)
    measured = {"gemm_slowdown", "attention_slowdown", "memory_bound_slowdown", "host_s_per_launch"}
    assert all(sigma == 0 for name, sigma in found.sigmas.items() if name not in measured)


def test_at_the_flip_the_plans_take_equally_long(tmp_path):
    """Here that of what issuing takes, in Python too."""
    steps, seconds = ranked()
    flip = robustness(steps, seconds, samples=50).flip
    assert flip is not None and 0 < abs(flip.sigmas) <= 4 and (flip.at > flip.value) == (flip.sigmas > 0)
    held = steps[0].level
    level = replace(held, parameters=replace(held.parameters, **{flip.parameter: flip.at}))
    assert flip.parameter == "host_s_per_launch"
    profile = load_profile(CLUSTER.profile)
    longer = {k: v * flip.at / flip.value for k, v in vars(profile).items() if k.endswith("issue_s") and v}
    (tmp_path / "profile.json").write_text(profile_text(replace(profile, **longer)))
    cluster = Cluster.of(CLUSTER.device, nodes=1, profile=str(tmp_path))
    pair = [steps[0], steps[flip.rival - 1]]
    ratio = [simulate(MODEL, cluster, s.plan, level=level).step_time_s / s.step_time_s for s in pair]
    assert ratio[0] * pair[0].step_time_s == pytest.approx(ratio[1] * pair[1].step_time_s, rel=1e-3)
