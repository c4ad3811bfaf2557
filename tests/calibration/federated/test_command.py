"""`trainsim decentralized measure`: options in, a table or one JSON object out."""

import json

import pytest
import typer
from typer.testing import CliRunner

from calibration.execute.processes import ExecutionError
from calibration.federated import cli, compare
from calibration.federated.cli import measure_command
from sim.decentralized import KNOBS, Decentralized
from sim.specs.fields import InputError
from tests.calibration.full_disk import on_a_full_disk

QUICK = ("--partitions", "3", "--steps", "20", "--travel-every", "10")


def invoke(*arguments):
    app = typer.Typer()
    app.command()(measure_command)
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_prints_and_writes_one_object(tmp_path):
    out = tmp_path / "found.json"
    ended = invoke(*QUICK, "--theta", "5", "--out", out, "--json")
    assert ended.exit_code == 0
    told = json.loads(ended.stdout)
    assert told == json.loads(out.read_text())
    assert told["saving_over_bsp"] == told["bsp_traffic_bytes"] / told["traffic_bytes"]
    assert told["bsp_traffic_bytes"] == 5 * (told["traffic_bytes"] - told["travel_bytes"])
    assert [(travel["step"], travel["theta"]) for travel in told["travels"]] == [(10, 5.0), (20, 5.0)]
    assert len(told["partition_accuracy"]) == 3


def test_a_full_disk_loses_no_measurement(monkeypatch, tmp_path):
    ended = on_a_full_disk(monkeypatch, cli, [*QUICK, "--json", "--out", str(tmp_path / "found.json")])
    assert isinstance(ended.exception, OSError) and json.loads(ended.stdout)["traffic_bytes"] > 0


def test_a_controller_moves_theta():
    told = json.loads(invoke(*QUICK, "--travel-every", "5", "--controller", "hill_climbing", "--json").stdout)
    assert told["thetas"][0] == {"step": 1, "theta": 200.0}
    assert len({one["theta"] for one in told["thetas"]}) > 1
    assert told["theta"] in (200.0, 100.0, 50.0)  # one that it was at, or the next that sends more


@pytest.mark.slow
def test_processes_stand_beside_their_prediction(monkeypatch):
    monkeypatch.setattr(compare, "STEPS", 20)
    links = ("--bytes-per-s", "2e6", "--latency-s", "0.01", "--algorithm", "bsp", "--travel-every", "100")
    told = json.loads(invoke("--partitions", "2", "--steps", "30", *links, "--json").stdout)
    assert told["predicted"]["traffic_bytes"] == told["traffic_bytes"]
    assert told["error_percent"] == 100 * (told["predicted"]["seconds"] / told["seconds"] - 1)
    links_s = 30 * (told["bsp_traffic_bytes"] / 30 / 2 / 2e6 + 0.01)  # of each of two messages at a time
    assert min(told["seconds"], told["predicted"]["seconds"]) > links_s
    assert told["thetas"] == [{"step": 1, "theta": 1.0}]


def test_a_run_that_takes_too_long_is_one_line(monkeypatch):
    def late(*_, timeout_s, **__):
        raise ExecutionError(f"not ended after {timeout_s:g} s")

    monkeypatch.setattr("calibration.federated.cli.train_processes", late)
    ended = invoke(*QUICK, "--bytes-per-s", "1e6", "--timeout-s", "0.5", "--json")
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.endswith("error: not ended after 0.5 s\n")


def test_begins_with_the_theta_of_the_simulation():
    for algorithm in KNOBS:
        told = json.loads(invoke("--partitions", "2", "--steps", "1", "--algorithm", algorithm, "--json").stdout)
        assert [one["theta"] for one in told["thetas"]] == [Decentralized(algorithm=algorithm).begin]


def test_prints_a_table():
    ended = invoke(*QUICK, "--algorithm", "gaia")
    assert "times less than BSP" in " ".join(ended.stdout.split())
    assert "accuracy loss" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("--algorithm", "sgd"), "--algorithm"),
        (("--data", "cifar"), "--data"),
        (("--norm", "layer"), "--norm"),
        (("--theta", "0.5"), "theta"),
        (("--skew", "2"), "skew"),
        (("--partitions", "1"), "partitions"),
        (("--controller", "none"), "--controller"),
        (("--controller", "annealing", "--theta", "7"), "--theta"),
        (("--out", "nowhere/found.json"), "--out"),
        (("--latency-s", "0"), "--latency-s"),
        (("--timeout-s", "60"), "--timeout-s"),
        (("--tolerated", "0.1"), "--tolerated"),
        (("--controller", "annealing", "--algorithm", "bsp"), "--controller"),
    ],
)
def test_wrong_options_are_one_error(arguments, path):
    with pytest.raises(InputError) as told:
        invoke(*arguments)
    assert told.value.path == path
