"""How sure a step is that waits for its host, and that no GPU is taken for one whose host takes no time."""

from dataclasses import replace
from math import hypot

import numpy as np
import pytest

from sim.catalog import names
from sim.costs.profile import load_profile
from sim.costs.run_level import run_level, shipped
from sim.engine.batch import Asked, Batch
from sim.engine.certainty import EXPERTS_SIGMA_LOG, ISSUE_SIGMA_LOG, experts_sigma, step_sigma, waiting_sigma
from sim.engine.sensitivity import times_with
from sim.engine.step import simulate
from sim.specs import Cluster, Model, Plan
from sim.specs.catalog import models

SMALL, LARGE = (Model(layers=8, hidden=h, heads=h // 64, vocab=1024, seq=s) for h, s in ((256, 128), (8192, 2048)))
H100 = Cluster.of("h100-sxm-80gb", nodes=1)
PLAN = Plan(global_batch=16, micro_batch=1)


@pytest.mark.parametrize("name", names("profiles"))
def test_every_gpu_waits_for_its_host(name):
    profile = load_profile(name)
    assert profile.issue_s > 0
    assert bool(profile.issue_of) is not profile.measured
    assert (profile.pointwise_issue_s or 0) > 0 or name == "cpu"


def test_small_models_take_as_long_on_fast_gpus_of_any_kind():
    """Both wait for their hosts: the H200's profile alone knew of that, and it was twice as slow as an H100."""
    devices = ("h100-sxm-80gb", "h200-sxm-141gb")
    one, other = (simulate(SMALL, Cluster.of(name, nodes=1), PLAN).step_time_s for name in devices)
    assert one == pytest.approx(other, rel=0.02)


def test_whose_hosts_they_are_is_told():
    assert "what hosts take to issue kernels: as measured for h200-sxm-141gb" in simulate(SMALL, H100, PLAN).assumptions
    assert any("times as long to issue as plain ones" in line for line in simulate(SMALL, H100, PLAN).assumptions)
    own = simulate(SMALL, Cluster.of("h200-sxm-141gb", nodes=1), PLAN.but(framework="torch")).assumptions
    assert not any("issue kernels" in line for line in own)


def test_the_same_chip_with_newer_libraries_is_told():
    """And what is told can be had: products of newer libraries take less time than those of the estimate."""
    model, plan = models["gpt3-175b"], Plan(tp=8, global_batch=16)
    told = next(line for line in simulate(model, H100, plan).assumptions if line.startswith("newer software"))
    assert "cluster.profile = h100-sxm-80gb-2026 takes the kernels of h200-sxm-141gb with libraries of 2026" in told
    other = Cluster.of("h100-sxm-80gb", nodes=1, profile="h100-sxm-80gb-2026")
    steps = [simulate(model, cluster, plan) for cluster in (H100, other)]
    assert 0.75 < steps[1].step_time_s / steps[0].step_time_s < 0.95
    assert not any(line.startswith("newer software") for line in steps[1].assumptions)
    assert steps[1].sigma_log > steps[0].sigma_log  # no run that was fitted has these kernels


PIPELINE = Plan(pp=4, global_batch=16, micro_batch=1)


@pytest.mark.parametrize("plan", [PLAN, PIPELINE, PIPELINE.but(virtual_stages=2), PIPELINE.but(schedule="pipedream")])
def test_a_step_grows_with_issue_by_its_waiting(plan):
    step = simulate(SMALL, H100, plan)
    slower = times_with(step, {name: np.array([1.01]) for name in step.profile.issue})
    assert step.waiting == pytest.approx(100 * (slower[0] / step.step_time_s - 1), abs=0.1)
    assert step.waiting > 0.2 and min(kernel.share for kernel in step.kernels) > -1e-3
    assert Batch([Asked(SMALL, H100, step.placed)]).waiting(step.level) == pytest.approx([step.waiting], abs=0.1)


def test_other_hosts_widen_the_interval_of_what_waits_for_them():
    step, level = simulate(SMALL, H100, PLAN), run_level()
    assert step.sigma_log == pytest.approx(hypot(level.sigma_log, waiting_sigma(step.waiting, SMALL, PLAN)))
    assert step_sigma(step.profile, level, hosts=0.3) == pytest.approx(hypot(level.sigma_log, 0.3))
    plain, modules = (waiting_sigma(0.5, SMALL, PLAN.but(core_modules=core)) for core in (False, True))
    assert modules > plain == pytest.approx(ISSUE_SIGMA_LOG / 2)
    large = simulate(LARGE, H100, PLAN)
    assert large.waiting == 0
    assert large.sigma_log == pytest.approx(level.sigma_log)


@pytest.mark.parametrize(("other", "term"), [({"sinks": True}, EXPERTS_SIGMA_LOG), ({}, 0.0)])
def test_experts_beside_other_layers_widen_the_interval_unless_fitted_runs_had_them(other, term):
    mixture = Model(layers=8, hidden=8192, heads=128, vocab=1024, seq=2048, experts=8, experts_per_token=2, **other)
    level = run_level()
    step = simulate(mixture, H100, PLAN)
    assert step.sigma_log == pytest.approx(hypot(level.sigma_log, term), rel=1e-3)
    assert {experts_sigma(mixture, held) for held in shipped().values()} == {term}
    own = replace(level, experts=True)
    assert simulate(mixture, H100, PLAN, level=own).sigma_log == pytest.approx(level.sigma_log, rel=1e-3)
    assert experts_sigma(LARGE, level) == 0


def test_a_kernel_that_its_host_outlasts_has_no_share():
    waits, computes = (
        sum(kernel.share for kernel in simulate(model, H100, PLAN).kernels if kernel.op == "gemm")
        for model in (SMALL, LARGE)
    )
    assert waits < 1e-3 and computes > 0.5
