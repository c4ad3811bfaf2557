"""What results say: the best k, what was predicted, and files."""

import pytest

from calibration.checkpointing.results import (
    Case,
    Evidence,
    Point,
    Recovery,
    Setting,
    overhead_percent,
    read_evidence,
    recovery_s,
    write_evidence,
)
from sim.checkpointing import Times
from sim.specs.fields import InputError

TIMES = Times(
    iteration_s=0.1, update_s=0.02, host_snapshot_s=0.03, persist_s=0.2, reload_s=0.5, state_bytes=1e6, contention=0.1
)


def case(percents, cores="own", predicted=None):
    """Return a case whose measured overheads are these by k."""
    points = [
        Point(
            steps_between=k,
            rounds=[percent - 5, percent, percent + 9],
            predicted_percent=percent if predicted is None else predicted[k],
            load=0.0,
        )
        for k, percent in percents.items()
    ]
    setting = Setting(backend="disk", api="torch.save", cores=cores, megabytes=50)
    recovery = Recovery(steps_between=max(percents), measured_s=1.0, predicted_s=1.1)
    return Case(setting=setting, times=TIMES, points=points, recovery=recovery)


def test_predictions_are_the_laws():
    """The copy of 0.03 s hides beside the 0.08 s before an update; writing slows ten percent of its 0.2 s."""
    assert overhead_percent(TIMES, 4) == pytest.approx(100 * (0.1 * 0.2) / 0.4)
    beside = 0.1 - 0.03
    assert overhead_percent(TIMES, 1) == pytest.approx(100 * (0.1 * beside + 0.2 - beside) / 0.1)
    assert recovery_s(TIMES, 4) == pytest.approx(0.5 + 0.42 / 2 + 0.03 + 0.2 * 1.1)


@pytest.mark.parametrize(
    ("percents", "best"),
    [({1: 20, 2: 6, 3: 3.4, 6: 1}, 3), ({1: 3, 2: 4, 3: 1}, 3), ({1: 1, 2: 0.5}, 1), ({1: 20, 2: 6}, None)],
)
def test_the_best_k_is_the_least_from_which_all_stay_within(percents, best):
    assert case(percents).best(0.035) == best


def test_k_by_policy():
    assert case({1: 1}).k("checkfreq-rule", 0.035) == 3, "0.2 s and what hides of the copy last three steps"
    assert case({1: 1}).k("checkfreq", 0.035) == 6, "0.02 s lost are 3.5 % of 0.57 s"


def test_goodput_is_of_the_predicted_k():
    found, said = case({1: 50, 4: 5}).goodput
    assert 0.9 < found < 1 / 1.05 and 0.9 < said < 1 / 1.05


def test_lines_count_what_holds():
    own = case({5: 4, 6: 3, 7: 2}, predicted={5: 4.5, 6: 3.5, 7: 9})
    shared = case({1: 50, 2: 3}, cores="shared")
    found = evidence([own, shared]).lines()
    assert found[3:] == [
        "writing on a core of its own: 2 of 3 overheads within 2 points (median 0.5, most 7.0), k within 1 of the "
        "measured best in 1 of 1",
        "writing on the trainer's core: 2 of 2 overheads within 2 points (median 0.0, most 0.0), k within 1 of the "
        "measured best in 0 of 1",
    ]


def evidence(cases):
    text = {"command": "c", "date": "2026-01-01", "machine": "m", "software": "s"}
    return Evidence(**text, overhead_budget=0.035, adaptations=[], cases=cases)


def test_what_is_written_is_read(tmp_path):
    held, path = evidence([case({1: 50, 4: 5})]), tmp_path / "e.json"
    write_evidence(path, held)
    assert read_evidence(path) == held
    path.write_text(path.read_text().replace('"k"', '"q"').replace("disk", "tape"))
    with pytest.raises(InputError, match=r"cases\.0\.setting\.backend: got 'tape'"):
        read_evidence(path)
