import json
from functools import partial

import pytest
import typer
from typer.testing import CliRunner

from calibration.cluster import cli, measure
from calibration.cluster.cli import measure_command
from calibration.cluster.measure import measured, scheduled
from calibration.cluster.networks import NETWORKS
from sim.cluster.simulate import Rounds
from sim.specs.fields import InputError
from tests.cluster.toys import job, speeds


def invoke(*arguments):
    app = typer.Typer()
    app.command()(measure_command)
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_a_policy_assigns_the_slots():
    jobs, known = (job(10, name="a"), job(10, name="b"), job(10, name="c")), speeds(a=[2, 1], b=[2, 1], c=[2, 1])
    assign = scheduled(jobs, known, "fifo_perf", Rounds(round_s=1, reset_s=0, switch_s=0))
    assert assign(0, {"a": 10, "b": 10, "c": 10}) == {"fast": "a", "slow": "b"}
    assert assign(1, {"a": 1, "b": 9, "c": 10}) == {"fast": "a", "slow": "b"}
    assert assign(2, {"b": 9, "c": 10}) == {"fast": "b", "slow": "c"}
    assert assign(3, {"c": 10}) == {"fast": "c"}


@pytest.mark.slow
def test_three_trainings_are_compared(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "WARM_S", 0.02)
    monkeypatch.setattr(cli, "measured", partial(measured, profiled_s=0.05))
    out = tmp_path / "found.json"
    ended = invoke("--round-s", 1, "--longest-s", 0.8, "--out", out, "--policy", "finish_time_fairness_perf")
    assert ended.exit_code == 0
    data = json.loads(out.read_text())
    assert data["policy"] in ended.stdout
    for name in NETWORKS:
        assert name in ended.stdout
        assert min(data["throughputs"][name].values()) > 0
        assert sum(one["steps"].get(name, 0) for one in data["rounds"]) == data["steps"][name]
        times = data["completion"][name]
        assert 0 < times["measured_s"] <= data["rounds"][-1]["end_s"]
        assert times["error_percent"] == 100 * (times["simulated_s"] / times["measured_s"] - 1)
    assert data["moves_measured"] == len(data["moves"])
    assert 0 < data["device_time"]["fast"]["measured_s"] <= data["makespan"]["measured_s"]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("--round-s", 0.5), "--round-s"),
        (("--longest-s", "nan"), "--longest-s"),
        (("--link", 1), "--link-bytes-per-s"),
        (("--out", "missing/x.json"), "--out"),
        (("--policy", "fair"), "policy"),
        (("--policy", "max_min_fairness_packed"), "policy"),
        (("--policy", "max_sum_throughput_normalized_by_cost_perf"), "policy"),
    ],
)
def test_options_that_are_wrong(arguments, path):
    with pytest.raises(InputError) as caught:
        invoke(*arguments)
    assert caught.value.path == path
