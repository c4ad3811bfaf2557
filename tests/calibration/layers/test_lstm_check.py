"""The check of recurrent layers, interpreted: what it says of rows, and what time or an error leaves."""

import json
from importlib.util import find_spec
from math import sqrt

import pytest

from calibration import checked
from calibration.layers import lstm_check
from calibration.layers.lstm_check import check, summary

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_a_summary_of_rows():
    rows = [
        {"sigma_log": 0.1},
        {"lost": 0.0, "of_default": 2.0, "of_library": 0.5, "error": 1e-7},
        {"lost": 0.06, "of_default": 4.0, "of_library": 1.0, "error": 1e-6},
        {"failure": "OSError: gone"},
    ]
    assert summary(rows) == {
        "near": 0.5,
        "of_default": pytest.approx(sqrt(8)),
        "of_library": pytest.approx(sqrt(0.5)),
        "max_relative_error": 1e-6,
        "failed": 1,
    }
    assert summary([])["near"] is None


@pytest.mark.slow
@needs_triton
def test_it_runs_interpreted():
    kept = []
    found = check("cpu", 300.0, lambda so_far: kept.append(len(so_far["rows"])))
    assert found["complete"] and found["failed"] == 0
    assert [row["kind"] for row in found["rows"]] == ["learned", "learned", "layer", "layer"]
    assert kept == [1, 2, 3, 4]
    assert found["by_dtype"]["float32"]["max_relative_error"] < 1e-5
    assert found["of_default"] > 0 and found["of_library"] > 0 and found["near"] in (0.0, 0.5, 1.0)
    json.dumps(found)


@needs_triton
def test_what_time_or_an_error_leaves_is_kept(monkeypatch):
    clock = iter(float(n) for n in range(100))
    monkeypatch.setattr(checked, "monotonic", lambda: next(clock))

    def fail(*given):
        raise OSError("gone")

    monkeypatch.setattr(lstm_check, "learned", fail)
    found = check("cpu", 3.0)
    assert not found["complete"]
    assert found["rows"] == [{"dtype": "float32", "failure": "OSError: gone"}] * 2
    assert found["failed"] == 2
