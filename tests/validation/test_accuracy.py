"""The committed table of predictions is what the simulator predicts."""

import pytest

from sim.validation.accuracy import accuracy, read_accuracy
from sim.validation.predict import elsewhere
from sim.validation.table import read_runs
from sim.validation.validate import validate
from tests.oracle import ROOT, reference


@pytest.mark.parametrize("table", ["ptdp_2104_04473", "torchtitan", "zero_bubble_2401_10241"])
def test_committed_predictions_are_todays(table: str) -> None:
    committed = {r.id: r for r in read_accuracy(ROOT / "notebooks/data/accuracy.csv") if r.source == table}
    today = accuracy(validate(read_runs(reference(f"runs/{table}.csv")), elsewhere), table)
    assert len(today) == len(committed) > 0
    for row in today:
        assert row.predicted_step_time_s == pytest.approx(committed[row.id].predicted_step_time_s, rel=2e-3)
        assert row.predicted_peak_memory_bytes == pytest.approx(committed[row.id].predicted_peak_memory_bytes, rel=2e-3)
