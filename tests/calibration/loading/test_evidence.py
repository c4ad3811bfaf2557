"""Evidence grows in a file and is not measured twice."""

import pytest

from calibration.loading import calibrate, evidence, measure
from calibration.loading.evidence import Gathered, given
from calibration.loading.results import read_results


@pytest.fixture
def small(monkeypatch):
    quick = {"files": 16, "batch": 4, "storage_latency_s": 0.001}
    monkeypatch.setattr(evidence, "SCALES", {"images": 48.0, "audio": 0.3})
    monkeypatch.setattr(evidence, "DECODED", {"images": (48.0,), "audio": (0.3,)})
    monkeypatch.setattr(evidence, "DECODED_S", 0.02)
    monkeypatch.setattr(evidence, "SECONDS", 0.05)
    monkeypatch.setattr(calibrate, "WORKER_S", 0.1)
    monkeypatch.setattr(measure, "WINDOW_S", 0.12)
    settings = {kind: {"serial": (given(0.5, 1, 1, 0.005, **quick),)} for kind in ("images", "audio")}
    monkeypatch.setattr(evidence, "SETTINGS", settings)
    monkeypatch.setattr(Gathered, "_caches", lambda self: True)
    monkeypatch.setattr(Gathered, "_shared", lambda self: True)


@pytest.mark.slow
def test_goes_on_where_the_file_ends(small, tmp_path, monkeypatch):
    out, told = tmp_path / "loading.json", []
    assert not Gathered(out, 0.0, told.append).gather()  # what is decoded, and then the budget is spent
    assert [each.kind for each in read_results(out).decoding] == ["images", "audio"]
    assert Gathered(out, 100.0, told.append).gather()
    assert [point.setting.kind for point in read_results(out).points] == ["images", "audio"]
    assert len(told) == 2
    monkeypatch.setattr(evidence, "measured", lambda *a: pytest.fail("measured again"))
    monkeypatch.setattr(evidence, "decoding", lambda *a: pytest.fail("decoded again"))
    assert Gathered(out, 100.0, told.append).gather()
