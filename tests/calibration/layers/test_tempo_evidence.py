"""What is measured of Tempo's layers: by hand, on tiny layers, written and read, and as a check of a device."""

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest

from calibration.host import HostStopwatch
from calibration.layers import tempo_evidence
from calibration.layers.tempo_bench import curve, gradient_errors, guard, saved, step_time
from calibration.layers.tempo_check import check, summary
from calibration.layers.tempo_evidence import gather, plans
from calibration.layers.tempo_results import Curve, LayerSizes, StepTime, read_tempos
from sim.specs import InputError, Model
from tests.full import fully
from tests.oracle import ROOT

TINY = LayerSizes(batch=2, seq=6, hidden=8, heads=2)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_formulas_by_hand():
    """96 numbers, 12 rows, 144 scores, 2 bytes each: 34 s b h + 5 a s^2 b and 4 numbers a row."""
    usual, tempo = (TINY.formula(2, 4, kind) for kind in (False, True))
    assert sum(usual.values()) == 34 * 96 + 5 * 144 + 4 * 4 * 12
    assert usual["all else"] == tempo["all else"] == 22 * 96
    less = {part: usual[part] - tempo[part] for part in usual}
    assert less == {"GELU": 4 * 96, "LayerNorm": 4 * 96 + 8 * 12, "attention core": 2 * 144, "all else": 0}


def test_a_number_of_bert_large():
    """34 + 5 a s / h bytes in 16 bit, less 4 + 4 + 2 a s / h (and statistics of 4 bytes a row)."""
    found = LayerSizes(batch=7, seq=384, hidden=1024, heads=16).a_number(2)
    assert sum(found["usual layers"].values()) == pytest.approx(34 + 5 * 6 + 16 / 1024)
    assert found["Tempo's"] == {"GELU": 4, "LayerNorm": 8 / 1024, "attention core": 18, "all else": 22}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_save_what_the_formulas_say(dtype):
    found = saved(TINY, dtype)
    assert found.exact
    assert not replace(found, tempo=found.tempo + 1).exact
    assert not replace(found, by_part=[found.by_part[0], 0, 0]).exact


def test_gradients_are_near_torchs():
    found = {(each.layer, each.gradient): each for each in gradient_errors("float32")}
    assert list(found) == [
        ("GELU", "input"), ("LayerNorm", "input"), ("LayerNorm", "gamma"), ("LayerNorm", "beta"),
        ("AttentionCore", "scores"), ("AttentionCore", "values"),
    ]  # fmt: skip
    gelu = found.pop(("GELU", "input"))
    assert gelu.usual < 2e-7 < gelu.tempo < 4e-6
    assert all(each.tempo < 1e-6 and each.usual < 1e-6 for each in found.values())


def test_the_guard_bounds_the_error():
    large, small = guard(1.0, "float32"), guard(1e-4, "float32")
    assert large.guarded == large.unguarded < 1e-6
    assert small.guarded < 1e-6
    assert small.unguarded > 1e-5


def test_a_curve():
    made = Curve(seed=1, usual=[4.0, 2.0, 1.0], tempo=[4.0, 2.02, 1.0])
    assert made.apart == pytest.approx(0.01)
    assert made.means("usual", 2) == {"2": 3.0}
    found = curve(3, 2)
    assert len(found.usual) == 2 and found.apart < 1e-4


def test_a_step_is_timed():
    assert StepTime(sizes=TINY, usual_s=2.0, tempo_s=2.1).longer == pytest.approx(0.05)
    found = step_time(TINY, HostStopwatch())
    assert 0 < found.usual_s < 1 and 0 < found.tempo_s < 1


def test_everything_is_measured_written_and_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tempo_evidence, "SIZES", (TINY,))
    monkeypatch.setattr(tempo_evidence, "STEPS", 2)
    monkeypatch.setattr(tempo_evidence, "plans", lambda: iter(()))
    out, told = tmp_path / "tempo.json", []
    made = gather(out, None, told.append)
    found = read_tempos(out)
    assert [one.exact for one in found.saved] == [True, True]
    assert (len(found.errors), len(found.guards), len(found.times), len(found.curves)) == (18, 18, 1, 3)
    assert told == [f"{part}: done" for part in ("saved", "errors", "curves", "times", "plans")]
    assert made.lines()[3:5] == ["2 of 2 layers save what the formulas say, to the byte", found.lines()[4]]
    again = gather(out, "times", told.append)
    assert again.curves == found.curves


def test_the_stored_results_say_what_the_readme_does():
    found = read_tempos(ROOT / "notebooks/data/tempo.json")
    assert len(found.saved) == 10 and all(one.exact for one in found.saved)
    assert all(abs(one.longer) < 0.05 for one in found.times)
    assert all(one.apart < 0.01 for one in found.curves)
    peaks = [(one.predicted.peak_memory_bytes[0], one.measured.peak_memory_bytes[0]) for one in found.plans]
    assert all(predicted == pytest.approx(measured, rel=1e-3) for predicted, measured in peaks)
    assert all(with_tempo[1] < usual[1] for usual, with_tempo in zip(peaks[::2], peaks[1::2], strict=True))


@fully
@pytest.mark.slow
def test_plans_are_executed_without_and_with_the_layers():
    usual, tempo = plans(Model(layers=2, hidden=64, heads=4, vocab=100, seq=64), (2,))
    assert (usual.name, tempo.name) == ("micro-batch 2", "micro-batch 2, Tempo")
    for side in ("predicted", "measured"):
        before, after = (getattr(each, side).peak_memory_bytes[0] for each in (usual, tempo))
        assert 0.5 * before < after < before
    assert tempo.max_gradient_error < 1e-5


def test_a_wrong_file_is_refused(tmp_path):
    (tmp_path / "wrong.json").write_text('{"command": "x"}')
    with pytest.raises(InputError, match=r"wrong\.json"):
        read_tempos(tmp_path / "wrong.json")


def test_a_summary_of_rows():
    rows = [
        {"kernels": {"gelu": 1e-7, "norm_backward": 3e-7}},
        {"exact": True, "ratio": 1.0},
        {"exact": False, "ratio": 4.0},
        {"failure": "OSError: gone"},
    ]
    assert summary(rows) == {"max_kernel_error": 3e-7, "ratio": pytest.approx(2.0), "exact": False, "failed": 1}
    assert summary([])["exact"] is None


@needs_triton
def test_the_check_runs_interpreted():
    kept = []
    found = check("cpu", 300.0, lambda so_far: kept.append(len(so_far["rows"])))
    assert found["complete"] and found["exact"] and found["failed"] == 0
    assert [row["kind"] for row in found["rows"]] == ["kernels", "gradients", "layer"]
    assert kept == [1, 2, 3]
    assert found["by_dtype"]["float32"]["max_kernel_error"] < 1e-6
    json.dumps(found)
