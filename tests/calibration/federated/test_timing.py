"""How far simulated times are off real ones: what is measured, and the shipped file."""

import json

from calibration.federated import timing
from calibration.federated.compare import Pace, Predicted
from calibration.federated.timing import Case, row, told, wanted
from calibration.federated.train import train
from tests.oracle import ROOT

SHIPPED = ROOT / "notebooks" / "data" / "decentralized-time.json"


def test_every_algorithm_is_asked_with_two_and_three_partitions():
    assert len({case.key for case in wanted()}) == len(wanted()) == 20
    assert {case.algorithm for case in wanted() if case.partitions == 3} == {name for name, _ in timing.THETAS}
    assert any(case.controlled for case in wanted())


def test_a_row_has_the_medians_of_its_rounds():
    rounds = [{"measured_s": m, "predicted_s": p, "bytes_equal": True, "thetas_equal": m < 3} for m, p in
              ((2.0, 2.2), (1.0, 9.0), (4.0, 1.0))]  # fmt: skip
    found = row(Case(2, "bsp", 1.0), rounds)
    assert found["error_percent"] == 10
    assert (found["bytes_equal"], found["thetas_equal"]) == (True, False)


def test_measuring_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    made, out = [], tmp_path / "found.json"

    def one(setting, communication, bytes_per_s, latency_s, pace, moves):
        made.append(communication.algorithm)
        run = train(timing.Setting(partitions=2, steps=4, travel_every=9), communication)
        assert bytes_per_s[0][1] == timing.BYTES_PER_S
        assert latency_s[1][0] == 2 * timing.LATENCY_S
        return timing.Compared(run, Predicted(run.seconds, run.traffic_bytes, ()))

    cases = [Case(2, "bsp", 1.0, even=False), Case(2, "dgc", 0.99, even=False)]
    monkeypatch.setattr(timing, "compared", one)
    monkeypatch.setattr(Pace, "measured", classmethod(lambda *_: Pace(0.0, 0.0, 0.0, 0.0)))
    monkeypatch.setattr(timing, "wanted", lambda: cases)
    out.with_suffix(".jsonl").write_text(json.dumps(told(cases[1])) + "\n")
    timing.main(out)
    found = json.loads(out.read_text())
    assert made == ["dgc", "bsp", "bsp", "dgc", "bsp", "dgc"]
    assert [one["error_percent"] for one in found["rows"]] == [0, 0]
    assert all(len(one["measured_s"]) == timing.ROUNDS for one in found["rows"])


def test_the_shipped_file_is_whole():
    found = json.loads(SHIPPED.read_text())
    assert [(one["partitions"], one["algorithm"], one["theta"]) for one in found["rows"]] == [
        (case.partitions, case.algorithm, case.theta) for case in wanted()
    ]
    assert all(one["bytes_equal"] and one["thetas_equal"] for one in found["rows"])
    assert all(abs(one["error_percent"]) <= 5 for one in found["rows"] if one["partitions"] == 2)
