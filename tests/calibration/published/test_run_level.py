"""Runs that a fit is given: what cannot be expressed is told, not dropped."""

import csv

from calibration.published.run_level import expressed
from sim.validation.table import read_runs
from tests.oracle import ROOT


def test_runs_that_cannot_be_expressed_are_told(tmp_path):
    with (ROOT / "notebooks" / "data" / "ptdp.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rows[0]["tp"] = "7"
    path = tmp_path / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        made = csv.DictWriter(file, rows[0])
        made.writeheader()
        made.writerows(rows)
    cases, (refused,) = expressed(read_runs(path))
    assert len(cases) == len(rows) - 1
    assert refused.id == rows[0]["id"] and "plan.tp: got 7" in refused.reason
