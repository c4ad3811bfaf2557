"""Run-level parameters: what a fit finds, what it keeps to, and what the shipped sets may know."""

from dataclasses import asdict, replace
from functools import cache, partial

import numpy as np
import pytest

from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, RunLevelSet, run_level, shipped
from sim.engine.batch import Asked, Batch
from sim.engine.certainty import carried_sigma
from sim.engine.step import simulate
from sim.specs.fields import InputError
from sim.validation.ablation import ablation
from sim.validation.accuracy import accuracy
from sim.validation.fit import PRIORS, fit_run_level
from sim.validation.predict import analytic, elsewhere, fit_site
from sim.validation.table import read_runs
from sim.validation.translate import translate
from sim.validation.validate import summary, translated, validate
from tests.oracle import reference
from tests.validation.runs import write

TIMED = ("vtrain_multi", "llm_foundry_mpt", "simumax_b200", "torchtitan", "zero_bubble_2401_10241", "bigscience_a100",
         "ptdp_2104_04473", "korthikanti_2205_05198")  # fmt: skip


def level(**changes: float) -> RunLevelSet:
    return RunLevelSet.bare(RunLevel(**changes))


def cases(tmp_path, *changes):
    plans = [
        {"tp": str(t), "dp": str(8 // t), "micro_batch": str(m), "group": f"m{m}"}
        for t in (1, 2, 4, 8)
        for m in (1, 2, 4)
    ]
    return translated(read_runs(write(tmp_path / "runs.csv", *(p | c for p in plans for c in (changes or ({},))))))


def measured_under(found, truth: RunLevelSet, noise: float = 0.0):
    """Return the cases with step times that the truth would give."""
    times = Batch([Asked(c.model, c.cluster, c.placed) for c in found], "approximate")(truth).step_time_s
    times = times * np.exp(noise * np.random.default_rng(7).standard_normal(len(times)))
    return [replace(c, row=replace(c.row, step_time_s=float(t))) for c, t in zip(found, times, strict=True)]


def test_at_most_twelve_named_parameters_with_a_reason_each():
    assert set(PRIORS) == set(asdict(RunLevel())) and len(PRIORS) <= 12
    assert all(len(p.why) > 10 and p.sigma_log > 0 for p in PRIORS.values())


def test_without_runs_the_prior_stays():
    assert asdict(fit_run_level([])) == pytest.approx({name: p.median for name, p in PRIORS.items()})


def test_runs_of_schedules_without_closed_forms_are_fitted_too(tmp_path):
    """On the engine, at any parameters; what a term is worth is told of the others only."""
    found = cases(tmp_path, {"pp": "2", "tp": "1", "dp": "4", "vpp": "2", "schedule": "zbv", "micro_batch": "8"})[:1]
    one, slower = (level(**asdict(run_level().parameters) | {"gemm_slowdown": n}) for n in (1.0, 1.5))
    batch = Batch([Asked(c.model, c.cluster, c.placed) for c in found], "approximate")
    step = simulate(found[0].model, found[0].cluster, found[0].placed.plan, level=one)
    assert batch(one).step_time_s.tolist() == [step.step_time_s]
    assert batch(slower).step_time_s[0] > 1.1 * step.step_time_s
    assert not list(ablation(found))


@pytest.mark.slow
def test_a_slow_site_is_found(tmp_path):
    usual = run_level().parameters
    slower = {"gemm_slowdown": 1.3, "collective_slowdown": 1.6}
    truth = level(**asdict(usual) | {name: getattr(usual, name) * factor for name, factor in slower.items()})
    told = measured_under(cases(tmp_path), truth, 0.01)
    site = fit_site(told)
    predicted = [p.step_time_s.value for p in analytic(told, site)]
    assert predicted == pytest.approx([c.row.step_time_s for c in told], rel=0.05)
    # Which parameter takes how much is not settled by twelve runs; that both are slower is.
    assert site.parameters.gemm_slowdown > usual.gemm_slowdown
    assert site.parameters.collective_slowdown > usual.collective_slowdown
    assert 0.03 <= site.sigma_log < 0.1 and not site.experts


def test_a_site_knows_experts_only_from_runs_that_had_them(tmp_path):
    dense = cases(tmp_path)[:1]
    mixture = cases(tmp_path, {"experts": "8", "experts_per_token": "2", "moe_ffn": "8192"})[:1]
    assert [fit_site(measured_under(runs, level())).experts for runs in (dense, dense + mixture)] == [False, True]


def test_runs_of_one_group_that_stay_far_off_widen_the_interval(tmp_path):
    """Half the time that the shipped parameters say is too far for a prior; the interval holds the run all the same."""
    usual = run_level()
    (near,), (far,) = (
        [replace(c, row=replace(c.row, step_time_s=c.row.step_time_s * factor)) for c in told]
        for told in [measured_under(cases(tmp_path)[:1], usual)]
        for factor in (1.0, 0.5)
    )
    assert fit_site([near]).sigma_log == usual.sigma_log
    (p,) = analytic([far], fit_site([far]))
    assert p.step_time_s.low < far.row.step_time_s < 0.8 * p.step_time_s.value


@pytest.mark.slow
def test_one_wild_row_moves_nothing(tmp_path):
    told = measured_under(cases(tmp_path), level(gemm_slowdown=1.2))
    wild = [replace(told[0], row=replace(told[0].row, step_time_s=told[0].row.step_time_s * 20)), *told[1:]]
    straight, moved = (fit_site(t).parameters.gemm_slowdown for t in (told, wild))
    assert moved == pytest.approx(straight, rel=0.08)


def test_a_site_without_times_is_refused(tmp_path):
    rows = read_runs(write(tmp_path / "runs.csv", {"use_for": "memory", "memory_kind": "allocated",
                                                   "memory_rank": "max", "peak_memory_bytes": "1e10"}))  # fmt: skip
    with pytest.raises(InputError, match=r"--site: got 1; allowed: a table with at least one row"):
        fit_site(translated(rows))


def test_every_parameter_only_ever_slows(tmp_path):
    found = cases(tmp_path)
    batch = Batch([Asked(c.model, c.cluster, c.placed) for c in found])
    base = batch(level()).step_time_s
    for name in PRIORS:
        more = {"overlap_slowdown": 0.5, "unfused_compiled": 0.9, "host_s_per_launch": 1e-3}.get(name, 1.5)
        more = {"step_overhead_s": 1.0, "straggler": 0.05}.get(name, more)
        assert (batch(level(**{name: more})).step_time_s >= base - 1e-12).all(), name


def test_shipped_sets_leave_their_source_out():
    sets = shipped()
    assert {"all", "vTrain-multi", "torchtitan-2024-12", "SimuMax B200 v1.2"} <= set(sets)
    assert all(name not in held.source for name, held in sets.items() if name != "all")
    assert all(name in sets["all"].source for name in sets if name != "all")
    assert run_level("a source of tomorrow") is sets["all"]


@cache
def everything():
    rows = [row for name in TIMED for row in read_runs(reference(f"runs/{name}.csv"))]
    return [translate(row) for row in rows if "time" in row.uses]


@pytest.mark.slow
def test_a_shipped_set_is_what_the_other_sources_give():
    source = "torchtitan-2024-12"
    again = fit_run_level([c for c in everything() if c.row.source != source])
    assert asdict(again) == pytest.approx(asdict(run_level(source).parameters), rel=0.02)


SLOW_SITE = "bigscience_a100"
"""A cluster 15 % slower than the others (14.8 % raw, a constant fitted to it 11.2 %): only its own runs can tell."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMED)
def test_elsewhere(name):
    """No constant fitted to a table does better than predictions that never saw it."""
    time = summary(validate(read_runs(reference(f"runs/{name}.csv")), elsewhere))["time"]
    constants = time["baselines"].values()
    assert time["mape_debiased"] < min(b["mape"] for b in constants)
    if name != SLOW_SITE:
        assert time["mape"] < min(b["mape"] for b in constants)
    if time["pairwise_order"] is not None:
        assert time["pairwise_order"] > max(b["pairwise_order"] for b in constants)


@pytest.mark.slow
def test_intervals_cover_what_they_say():
    """A nominal 80 % holds 75 to 85 % of the runs of left-out sources (cost-models specification)."""
    inside = [
        row.low_s <= row.predicted_step_time_s / row.ratio <= row.high_s
        for name in TIMED
        for row in accuracy(validate(read_runs(reference(f"runs/{name}.csv")), elsewhere), name)
        if row.ratio is not None
    ]
    assert 0.75 <= sum(inside) / len(inside) <= 0.85


@pytest.mark.slow
def test_half_of_a_site_predicts_the_other_half():
    inside, runs = 0.0, 0
    for name in ("bigscience_a100", "vtrain_multi"):
        rows = [r for r in read_runs(reference(f"runs/{name}.csv")) if "time" in r.uses]
        groups = sorted({r.group or r.id for r in rows})
        early = [r for r in rows if groups.index(r.group or r.id) % 2]
        late = [r for r in rows if not groups.index(r.group or r.id) % 2]
        found = validate(late, partial(analytic, level=fit_site(translated(early))))
        time = summary(found)["time"]
        assert time["mape"] < 12 and time["mape"] < min(b["mape"] for b in time["baselines"].values())
        inside, runs = inside + time["n"] * time["coverage80"], runs + time["n"]
    assert inside / runs > 0.6


def test_a_relative_of_a_fitted_device_is_less_uncertain():
    """Only the move between an H100 and its capped version is untested where runs of either were fitted."""
    full, capped, other = (load_profile(n) for n in ("h100-sxm-80gb", "h100-sxm-96gb-500w", "l4"))
    move = (capped.scaling_sigma_log**2 - full.scaling_sigma_log**2) ** 0.5

    def carried(profile, *devices):
        return carried_sigma(profile, replace(level(), devices=devices))

    assert carried(full, full.name, capped.name) == 0
    assert carried(capped, full.name) == carried(full, capped.name) == pytest.approx(move)
    assert carried(full) == carried(full, other.name) == full.scaling_sigma_log > move


def test_a_sources_own_part_of_the_spread_is_a_part():
    for held in shipped().values():
        assert 0 < held.source_sigma_log < held.sigma_log < 0.2
