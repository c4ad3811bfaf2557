import csv
from dataclasses import asdict, replace
from math import exp, log

import numpy as np
import pytest

from sim.decentralized import KNOBS, AccuracyModel, fit_accuracy, read_runs, selected
from sim.decentralized.accuracy import log_looseness
from sim.specs.fields import InputError
from tests.decentralized.toys import SIGMA, fitted, lost, rows

COLUMNS = "algorithm,theta,skew,norm,data,seed,steps,accuracy,accuracy_loss,sent_bytes,sent_fraction"


def written(path, runs, more=""):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS.split(","), *([more] if more else [])])
        writer.writerows([*asdict(run).values(), *([0.5] if more else [])] for run in runs)
    return path


@pytest.mark.parametrize("more", ["", "partition_accuracy"])
def test_a_table_is_read_as_it_was_written(tmp_path, more):
    assert read_runs(written(tmp_path / "grid.csv", rows(), more)) == rows()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "grid.csv:1: got ''; allowed: columns algorithm, theta"),
        (COLUMNS.replace("skew,", ""), "grid.csv:1: .*columns skew too"),
        (COLUMNS, "grid.csv: got 'no rows'"),
        (f"{COLUMNS}\nbsp,1,0,none,toy,0,5,high,0,1,1", "grid.csv:2.accuracy: got 'high'; allowed: a number"),
        (f"{COLUMNS}\nbsp,1,0,none,toy,0,5,1.5,0,1,1", "grid.csv:2.accuracy: got 1.5; allowed: a number from 0 to 1"),
        (f"{COLUMNS}\nbsp,1,0,none,toy,0,5,nan,0,1,1", "grid.csv:2.accuracy: got nan"),
        (f"{COLUMNS}\nsgd,1,0,none,toy,0,5,1,0,1,1", "grid.csv:2.algorithm: got 'sgd'; allowed: one of bsp"),
        (f"{COLUMNS}\nbsp,1", "grid.csv:2: got '2 cells'; allowed: 11, as the header has"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, message):
    (tmp_path / "grid.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_runs(tmp_path / "grid.csv")


def test_loss_is_monotone_in_theta_and_near_what_made_it():
    for algorithm in ("fedavg", "gaia", "dgc"):
        model = fitted(algorithm, sigma=0.02)
        for skew in (0.0, 0.3, 0.5, 0.9, 1.0):
            low, high = KNOBS[algorithm].thetas[0], KNOBS[algorithm].thetas[-1]
            found = [model.accuracy_loss(theta, skew).value for theta in np.linspace(low, high, 40)]
            assert np.diff(found).min() >= -1e-12
            ends = [model.accuracy(theta, skew).value for theta in np.linspace(low, high, 40)]
            assert np.diff(ends).max() <= 1e-12
    for theta in KNOBS["fedavg"].thetas:
        assert fitted().accuracy_loss(theta, 1.0).value == pytest.approx(lost("fedavg", theta, 1.0), abs=3 * SIGMA)


def test_between_runs_it_is_linear_in_log_looseness_and_skew():
    model = fitted()
    corners = [model.accuracy_loss(theta, skew).value for theta in (20.0, 50.0) for skew in (0.5, 1.0)]
    middle = exp((log(20) + log(50)) / 2)
    assert model.accuracy_loss(middle, 0.75).value == pytest.approx(np.mean(corners))
    assert log_looseness("dgc", 0.99) == pytest.approx(log(100))


def test_beyond_the_edge_it_is_that_of_the_edge_and_told():
    model = fitted()
    assert model.accuracy_loss(1_000.0, 1.0) == model.accuracy_loss(200.0, 1.0)
    assert model.beyond(1_000.0, 1.0) and not model.beyond(200.0, 1.0)
    partly = fitted(skews=(0.25, 0.5))
    assert partly.beyond(20.0, 1.0) and not partly.beyond(20.0, 0.25)


def test_intervals_hold_what_they_promise():
    model = fitted(seeds=range(8), sigma=0.02)
    low, high = 0.7, 0.9
    assert low <= model.coverage["accuracy"] <= high
    assert low <= model.coverage["accuracy_loss"] <= high
    wide, narrow = (fitted(sigma=sigma).accuracy(20.0, 1.0) for sigma in (0.02, 0.002))
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)
    assert wide.low < wide.value < wide.high
    assert fitted(seeds=range(2)).coverage == {}


def test_a_theta_of_one_seed_leaves_the_coverage_of_the_others():
    runs = tuple(run for run in rows(seeds=range(8)) if run.seed == 0 or (run.theta, run.skew) != (200.0, 1.0))
    found = fit_accuracy(runs, "fedavg").coverage
    assert set(found) == {"accuracy", "accuracy_loss"}
    assert all(0.6 <= share <= 1 for share in found.values())


def test_estimates_stay_fractions():
    model = fitted(sigma=0.4)
    for theta in KNOBS["fedavg"].thetas:
        found = model.accuracy(theta, 1.0)
        assert 0 <= found.low <= found.value <= found.high <= 1


def test_a_table_that_says_too_little_is_refused():
    runs = rows()
    with pytest.raises(InputError, match=r"none with theta 20 at skew 0\.5"):
        AccuracyModel(tuple(run for run in runs if (run.theta, run.skew) != (20.0, 0.5)))
    with pytest.raises(InputError, match="one seed at skew 0"):
        fitted(seeds=range(1))
    with pytest.raises(InputError, match="algorithm: got 'dgc'"):
        fit_accuracy(runs, "dgc")


def test_runs_are_chosen_by_norm_and_data():
    other = tuple(replace(run, norm="group", accuracy=0.5) for run in rows())
    held = (*rows(), *other)
    assert fit_accuracy(held, "fedavg", norm="group").accuracy(20.0, 0.0).value == pytest.approx(0.5)
    assert fit_accuracy(held, "fedavg").accuracy(20.0, 0.0).value == pytest.approx(0.9, abs=0.02)
    with pytest.raises(InputError, match="norm: got 'batch'; allowed: one of none, group"):
        fit_accuracy(held, "fedavg", norm="batch")


def test_an_algorithm_without_a_knob_is_fitted_by_skew_alone():
    model = fitted("bsp")
    assert model.accuracy_loss(1.0, 0.75).value == pytest.approx(0.0, abs=3 * SIGMA)


def test_runs_are_selected_by_their_fields():
    every = rows()
    found = selected(every, skew={0.0, 1.0}, theta=5.0)
    assert len(found) == 10
    assert {run.skew for run in found} == {0.0, 1.0} and {run.theta for run in found} == {5.0}
    with pytest.raises(InputError, match="a field of short runs"):
        selected(every, colour="red")
