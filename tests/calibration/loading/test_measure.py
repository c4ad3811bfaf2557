"""A pipeline is measured and predicted; what decides is found, what others use is said."""

import json
from functools import partial

import pytest

from calibration.loading import calibrate, measure
from calibration.loading.bench import Setting
from calibration.loading.calibrate import Calibration
from calibration.loading.measure import prediction
from tests.full import full

SMALL = {"files": 32, "scale": 64.0, "batch": 4}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(calibrate, "WORKER_S", 0.2)
    monkeypatch.setattr(calibrate, "TRAINER_S", 0.05)
    monkeypatch.setattr(measure, "WINDOW_S", 0.15)


def agrees(decides: str, found: measure.Measured) -> bool:
    predicted, phases = found.predicted, found.phases
    return (
        decides in (found.bottleneck, "compute")
        and (predicted.fetch_stall_fraction + predicted.prep_stall_fraction < 0.2) == (decides == "compute")
        and (phases.fetch_stall_fraction + phases.prep_stall_fraction < 0.4) == (decides == "compute")
        and 0.5 < predicted.samples_per_s / phases.samples_per_s < 2
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "decides"),
    [
        ({"storage_latency_s": 0.02, "trainer_s": 0.005}, "fetch"),
        full({"cached": 1.0, "trainer_s": 0.1}, "compute"),
        ({"cached": 1.0, "trainer_s": 0.0, "scale": 384.0}, "prep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_measured_and_predicted_agree_on_what_decides(given, decides):
    # Others may take the cores while the one or the other is measured, hardly in each of a few tries.
    tries = (measure.measure(Setting(**SMALL | given), seconds=0.3) for _ in range(4))
    found = next(filter(partial(agrees, decides), tries), None)
    assert found is not None
    data = json.loads(json.dumps(found.data(), allow_nan=False))
    assert data["error"] == pytest.approx(data["predicted"]["samples_per_s"] / data["measured"]["samples_per_s"] - 1)
    assert 0 <= data["others_share"] <= 1
    assert data["setting"]["files"] == 32


@pytest.mark.slow
def test_a_busy_machine_is_said():
    found = measure.measure(Setting(**SMALL, storage_latency_s=0.0, trainer_s=0.0), seconds=0.1)
    assert found.busy == (found.others_share > measure.MOST_LOAD)


def test_predictions_know_nothing_but_the_calibration():
    """A worker fetches 10 ms, then prepares 2 ms: 1000/12 samples/s each, and the trainer takes 100 at most."""
    known = Calibration(0.002, 0.0, 0.0, 1e9, latency_s=0.01, trainer_s=0.04)
    given = {"storage_bytes_per_s": 1e12, "batch": 4, "cores": 4}
    one = prediction(Setting(**given), known, 1e4, 0)
    assert one.samples_per_s == pytest.approx(1 / 0.012, rel=0.01)
    assert one.bottleneck == "fetch"
    four = prediction(Setting(**given, workers=4), known, 1e4, 0)
    assert four.samples_per_s == pytest.approx(100, rel=0.01)
    half = prediction(Setting(**given, files=100), known, 1e4, 500_000)
    assert half.hit_fraction == pytest.approx(0.5)


def test_waiting_for_a_ready_batch_is_the_trainers_time():
    known = Calibration(0.0, 0.0, 0.01, 1e9, latency_s=0.0, trainer_s=0.04)
    assert prediction(Setting(batch=4, cores=4), known, 1.0, 256).samples_per_s == pytest.approx(50, rel=0.01)
