"""What other searches find over what one found, and plans read back from the table."""

import pytest

from sim.engine.step import simulate
from sim.specs import Job
from sim.tuner.ways_table import ComparedRow, over, read_compared
from tests.oracle import ROOT


def row(job: str, way: str, time: float | None) -> ComparedRow:
    return ComparedRow(job, "l4", 4, 64, way, time, 1, 1.0, "", "")


def test_only_what_both_found_is_compared():
    rows = [row("a", "x", 3.0), row("a", "tuned", 2.0), row("b", "tuned", 4.0), row("b", "x", None), row("c", "x", 1.0)]
    assert over(rows, "tuned", ["x", "y"]) == {"x": {"a": 1.5}, "y": {}}
    assert rows[0].parsed() is None


def test_a_plan_reads_back():
    rows = read_compared(ROOT / "notebooks/data/plans.csv")
    plan = next(one.parsed() for one in rows if (one.job, one.way) == ("gpt-7b-l4", "tuned"))
    assert plan is not None and len(plan.stages) == 4
    assert plan.stages[0].offload.activations == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt-1.3b-a100", "gpt-13b-l4"])
def test_what_is_stored_is_what_is_simulated_today(name):
    job = Job.load(ROOT / f"notebooks/jobs/mist/{name}.yaml")
    rows = [row for row in read_compared(ROOT / "notebooks/data/plans.csv") if row.job == name and row.plan]
    different = {row.plan: row for row in rows}
    assert len(different) > 1
    for row in different.values():
        now = simulate(job.model, job.cluster, row.parsed(), "events").step_time_s
        assert now == pytest.approx(row.step_time_s, rel=1e-5)
