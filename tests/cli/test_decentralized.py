"""Decentralised training at the shell: the contract's fields, words, and what is refused."""

import csv
import json
from dataclasses import asdict

import pytest

from sim.cli.check import checked_file
from sim.decentralized import KNOBS
from tests.decentralized.toys import rows

SIMULATE = ("decentralized", "simulate")
SMALL = ("--steps", 400, "--parameters", 1_000_000, "--step-s", 0.1)


@pytest.fixture
def table(tmp_path):
    """A table of short runs of a toy."""
    path = tmp_path / "grid.csv"
    runs = rows()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(asdict(runs[0]))
        writer.writerows(asdict(run).values() for run in runs)
    return path


@pytest.fixture(autouse=True)
def apart(tmp_path, monkeypatch):
    """No table of short runs but those that are stated."""
    monkeypatch.setattr("sim.cli.decentralized.SHORT_RUNS", "data/no-such.csv")
    monkeypatch.chdir(tmp_path)


def test_simulate_prints_the_contract(trainsim, table):
    more = ("--controller", "hill_climbing", "--travel-every", 100, "--skew", 0.5, "--accuracy", table, "--json")
    code, out, err = trainsim(*SIMULATE, *SMALL, *more)
    data = json.loads(out)
    assert (code, err.strip()) == (0, "")
    assert set(data) >= {
        "traffic_bytes", "seconds", "accuracy", "accuracy_interval", "theta", "thetas", "travels",
        "bsp_traffic_bytes", "saving_over_bsp", "assumptions", "coverage", "parts_s", "reports",
    }  # fmt: skip
    assert data["bsp_traffic_bytes"] == 400 * 20 * 4_000_000
    assert data["travel_bytes"] == 4 * 5 * 4_000_000
    assert data["saving_over_bsp"] == data["bsp_traffic_bytes"] / data["traffic_bytes"]
    assert data["accuracy_interval"][0] < data["accuracy"] < data["accuracy_interval"][1]
    assert data["thetas"][0]["theta"] == KNOBS["fedavg"].thetas[-1]
    assert len(data["travels"]) == 4
    assert trainsim(*SIMULATE, *SMALL, *more)[1] == out


def test_options_win_over_the_file_and_the_file_is_checked(trainsim, tmp_path):
    path = tmp_path / "training.yaml"
    path.write_text("algorithm: fedavg\ntheta: 20\nsteps: 400\nstep_s: 0.1\nwan: {latency_s: 0.0}\n")
    assert checked_file(path)[:2] == ("decentralized", [])
    data = json.loads(trainsim(*SIMULATE, path, "-k", 3, "--theta", 50, "--bytes-per-s", 1e8, "--json")[1])
    assert (data["partitions"], data["theta"], data["exchanges"]) == (3, 50, 8)
    assert data["seconds"] == pytest.approx(8 * (5 + 1))
    assert (data["accuracy"], data["coverage"]) == (None, None)
    path.write_text("algorithm: fedavg\nwan: {latency_s: -1}\nthetaz: 5\n")
    kind, problems, _, _ = checked_file(path)
    assert kind == "decentralized"
    assert {problem.path for problem in problems} == {"wan.latency_s", "thetaz"}


def test_words_and_what_if(trainsim, table):
    code, out, _ = trainsim(*SIMULATE, *SMALL, "--accuracy", table, "--what-if", "skew")
    assert code == 0
    assert "times less than BSP" in out
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("skew")] == [
        "skew 0", "skew 0.25", "skew 0.5", "skew 0.75", "skew 1",
    ]  # fmt: skip
    data = json.loads(trainsim(*SIMULATE, *SMALL, "--what-if", "partitions", "--json")[1])
    assert [row["value"] for row in data["what_if"]] == [2, 3, 5, 8, 12]


def test_partitions_that_take_no_time_say_so(trainsim):
    code, out, _ = trainsim("decentralized", "simulate", "--step-s", 0, "--steps", 10)
    assert code == 0
    assert "Partition 0: nothing takes any time." in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--theta", 2.5), "theta: got 2.5; allowed: a whole number from 1 to 1e+06"),
        (("--algorithm", "bsp", "--theta", 3), "theta: got 3.0; allowed: left out, or 1: bsp has no theta"),
        (("--controller", "annealing"), "accuracy: missing; required with controller annealing"),
        (("--algorithm", "sgd"), "algorithm: got 'sgd'; allowed: one of bsp, gaia, fedavg, dgc, diloco"),
        (("-k", 1), "--partitions: got 1; allowed: a whole number from 2 to 64"),
        (("--accuracy", "none.csv"), "none.csv: got 'no such file"),
    ],
)
def test_bad_input_is_refused(trainsim, options, message):
    code, out, err = trainsim(*SIMULATE, *options)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_a_table_without_the_algorithm_is_refused_where_it_is_stated(trainsim, table):
    code, _, err = trainsim(*SIMULATE, "--algorithm", "dgc", "--accuracy", table)
    assert code == 2
    assert "algorithm: got 'dgc'" in err
