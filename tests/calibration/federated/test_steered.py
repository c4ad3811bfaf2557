"""What real controllers cost beside the best theta that stays: what is measured, and the shipped file."""

import json

import pytest

from calibration.federated import steered
from calibration.federated.steered import Case, measured, rounded, told, wanted
from tests.oracle import ROOT

SHIPPED = ROOT / "notebooks" / "data" / "decentralized-steered.json"


@pytest.fixture
def short(monkeypatch):
    """Trainings of seconds."""
    monkeypatch.setattr(steered, "STEPS", 60)
    monkeypatch.setattr(steered, "TRAVEL_EVERY", 20)


def test_thetas_have_two_exchanges_between_travels():
    assert Case("fedavg", 0.5, 0).thetas[-1] == 100
    assert Case("gaia", 0.5, 0).thetas[-1] == 0.4


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_a_row_stands_beside_the_loosest_theta_that_is_borne():
    found = told(Case("fedavg", 0.0, 1))
    assert len(found["thetas"]) == len(found["losses"]) == 3
    assert found["ends_with"] in (5.0, 10.0)
    assert found["best_theta"] == 10.0
    assert found["best_accuracy_loss"] <= 0.05
    assert found["best_bytes"] < found["bsp_bytes"] / 9


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_where_no_theta_is_borne_there_is_no_best():
    assert told(Case("fedavg", 1.0, 1))["best_theta"] is None


def test_measuring_goes_on_where_it_was_interrupted(tmp_path):
    journal, cases = tmp_path / "found.jsonl", wanted()[:2]
    lines = [json.dumps({"key": case.key, "accuracy": 0.5}) + "\n" for case in cases]
    journal.write_text("".join(lines))
    assert [line["key"] for line in measured(cases, journal, 1)] == [case.key for case in cases]
    assert journal.read_text() == "".join(lines)


def test_the_shipped_file_is_whole():
    found = json.loads(SHIPPED.read_text())
    assert [(one["algorithm"], one["skew"], one["seed"]) for one in found["rows"]] == [
        (case.algorithm, case.skew, case.seed) for case in wanted()
    ]
    assert rounded(found["rows"]) == found["rows"]
    assert all(len(one["thetas"]) == steered.STEPS // steered.TRAVEL_EVERY for one in found["rows"])
