"""Software of a known date: what it shortens, what it leaves alone, and how much less is then known."""

from dataclasses import asdict
from math import exp, hypot

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.run_level import (
    LESS_A_YEAR,
    OVERHEADS,
    SOFTWARE_SIGMA,
    SOFTWARE_YEAR,
    RunLevel,
    RunLevelSet,
    run_level,
    symbol_values,
)
from sim.engine.batch import Asked, Batch
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models
from sim.sweep.evaluate import Evaluate
from sim.sweep.grid import Grid

NODES = Cluster.of("h100-sxm-80gb", nodes=4)
LLAMA = models["llama3-8b"]
SMALL = Model(hidden=1024, layers=2, heads=8, vocab=1024, seq=1024)
GIVEN = {"tp": 2, "pp": 2, "global_batch": 64, "zero": 1}
YEARS = st.floats(2015, 2100)


def step(year: float | None = None, **given):
    return simulate(LLAMA, NODES, Plan(**GIVEN | given, software_year=year))


def test_only_framework_overheads_follow_the_software() -> None:
    level = RunLevel(**dict.fromkeys(OVERHEADS, 5e-4) | {"memory_bound_slowdown": 2.0, "collective_slowdown": 1.5})
    then, now = symbol_values(level), symbol_values(level, SOFTWARE_YEAR + 2)
    assert then == asdict(level) == symbol_values(level, SOFTWARE_YEAR)
    assert {name for name in then if then[name] != now[name]} == set(OVERHEADS)
    assert [now[n] / then[n] for n in OVERHEADS] == pytest.approx([exp(-2 * LESS_A_YEAR)] * len(OVERHEADS))


def test_left_out_it_changes_nothing() -> None:
    unknown, usual = step(), step(SOFTWARE_YEAR)
    assert unknown.step_time_s == usual.step_time_s
    assert unknown.sigma_log == usual.sigma_log
    assert not any("software of" in line for line in unknown.assumptions)


def test_a_known_date_says_what_it_assumes_and_is_less_certain() -> None:
    dated = step(SOFTWARE_YEAR + 1.75)
    (line,) = [line for line in dated.assumptions if line.startswith("software of 2025.75")]
    assert "-5.1 % against 2024" in line and "an assumption" in line
    assert dated.sigma_log == pytest.approx(hypot(step().sigma_log, 1.75 * SOFTWARE_SIGMA))
    assert dated.peak_memory_bytes == step().peak_memory_bytes


@pytest.mark.parametrize("profile", ["h100-sxm-80gb-2026", "h200-sxm-141gb"])
def test_kernels_that_were_timed_with_newer_libraries_are_not_shortened_again(profile) -> None:
    """Their times hold what memory-bound kernels have gained until then."""
    cluster = Cluster.of("h100-sxm-80gb", nodes=4, profile=profile)
    one = Cluster.of("h100-sxm-80gb", nodes=1, gpus_per_node=1, profile=profile)
    level = RunLevelSet.bare(RunLevel(memory_bound_slowdown=1.3))  # no collectives: nothing else follows the software
    newer, *same, older = (
        simulate(SMALL, one, Plan(global_batch=1, software_year=year), level=level).step_time_s
        for year in (2027.0, 2026.0, 2024.5, None, 2023.0)
    )
    assert newer < same[0] == same[1] == same[2] < older
    assert "(memory-bound kernels -5.8 %, as the profile's are of 2026)" in " ".join(
        simulate(LLAMA, cluster, Plan(**GIVEN, software_year=2028.0)).assumptions
    )
    asked = [Asked(LLAMA, each, Plan(**GIVEN, software_year=2026.5).on(LLAMA, each)) for each in (cluster, NODES)]
    together = Batch(asked, "walked")(run_level()).step_time_s
    assert together.tolist() == [float(Batch([a], "walked")(run_level()).step_time_s[0]) for a in asked]
    grid = Grid(model="llama3-8b", cluster=cluster, plan=GIVEN | {"software_year": 2026.5}, axes={"plan.tp": [2]})
    row = Evaluate(grid).outcome(0, 1).numbers["step_time_s"][0]
    assert row == pytest.approx(simulate(LLAMA, cluster, asked[0].placed.plan).step_time_s, rel=0.02)


@given(
    st.tuples(YEARS, YEARS).map(sorted),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from([0, 1, 3]),
)
def test_newer_software_is_never_slower(years, tp, schedule, recompute, zero) -> None:
    older, newer = (step(y, tp=tp, schedule=schedule, recompute=recompute, zero=zero) for y in years)
    assert newer.step_time_s <= older.step_time_s
    assert newer.step_time_s < older.step_time_s or years[1] - years[0] < 0.01


def test_a_table_of_several_dates_is_each_by_itself() -> None:
    asked = [
        Asked(LLAMA, NODES, Plan(**GIVEN, software_year=year).on(LLAMA, NODES)) for year in (None, 2022.0, 2026.5, None)
    ]
    together = Batch(asked, "walked")(run_level()).step_time_s
    assert together.tolist() == [float(Batch([a], "walked")(run_level()).step_time_s[0]) for a in asked]
    assert together[1] > together[0] == together[3] > together[2]


@pytest.mark.parametrize("year", [2014.9, 2100.1, "2026", float("nan")])
def test_other_dates_are_refused(year) -> None:
    with pytest.raises(InputError) as caught:
        step(year)
    assert caught.value.path.endswith("software_year")


def test_a_step_shorter_than_what_frameworks_do_around_it_says_so():
    """As a tiny network's is; of one that takes seconds it is no news."""
    cluster, plan = Cluster.of("h100-sxm-80gb", nodes=1), Plan(global_batch=64)
    tiny = simulate(Model(hidden=64, layers=1, heads=1, vocab=64, seq=64), cluster, plan.but(global_batch=8))
    large = simulate(Model(hidden=4096, layers=8, heads=32, seq=2048), cluster, plan)
    said = ["once a step" in " ".join(run.assumptions) for run in (tiny, large)]
    assert said == [True, False]
    assert tiny.level.parameters.step_overhead_s > 0.5 * tiny.step_time_s
