"""Executed plans of a file as they are learned from, and by group."""

from calibration.execute.learn import by_group, leave_one_out, mean_errors, runs_of
from sim.validation.executed import read_evidence
from tests.oracle import ROOT


def test_plans_of_a_file_by_group():
    plans = [one for one in read_evidence(ROOT / "notebooks/data/hardware.json").plans if one.processes == 2]
    runs = runs_of(plans)
    assert [run.predicted_s for run in runs] == [one.predicted.step_time_s for one in plans]
    assert [run.kind for run in runs] == [one.kind for one in plans]
    left = leave_one_out(runs)
    groups = by_group(left)
    assert list(groups)[-1] == "all" and groups["all"] == left
    assert sum(map(len, groups.values())) == 2 * len(left)
    before, after = mean_errors(groups["tensor parallel on 2 processes in fp32"])
    assert after < before
