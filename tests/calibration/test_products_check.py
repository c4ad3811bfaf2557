"""Products in 8 bits and of experts: right, and beside what they are compared with."""

import pytest

from calibration.products_check import check, summary


def test_on_a_processor_tiny_ones_run_and_are_right():
    kept = []
    found = check("cpu", 60.0, kept.append)
    assert found["complete"] and found["failed"] == 0
    assert [row["kind"] for row in found["rows"]] == ["8 bits", "experts"]
    assert found["max_relative_error"] < 1e-2
    assert all(row["seconds"] > 0 for row in found["rows"])
    assert kept[-1]["rows"] == found["rows"]


def test_ratios_are_of_the_medians_of_what_there_is():
    rows = [
        {"speedup": 1.0, "relative_error": 2e-3},
        {"speedup": 3.0},
        {"of_alone": 2.0},
        {"failure": "no such kernel"},
    ]
    told = {"speedup": 2.0, "of_alone": 2.0, "max_relative_error": 2e-3, "failed": 1}
    assert summary(rows) == pytest.approx(told)
    assert summary([])["speedup"] is None
