import json
from functools import partial

import pytest
import typer
from typer.testing import CliRunner

from calibration.cluster import cli, measure
from calibration.cluster.cli import measure_command
from calibration.cluster.measure import measured, turns
from calibration.cluster.networks import NETWORKS
from sim.cluster.jobs import ClusterJob
from sim.cluster.throughputs import Throughputs
from sim.specs.fields import InputError


def invoke(*arguments):
    app = typer.Typer()
    app.command()(measure_command)
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_jobs_go_round_the_slots():
    jobs = tuple(ClusterJob(job_type=name, steps=1) for name in "abc")
    assign = turns(jobs, Throughputs(types=("fast", "slow"), alone={}))
    left = dict.fromkeys("abc", 1)
    assert [assign(n, left) for n in range(3)] == [
        {"fast": "a", "slow": "b"},
        {"fast": "b", "slow": "c"},
        {"fast": "c", "slow": "a"},
    ]
    assert assign(3, {"c": 1}) == {"fast": "c"}


def test_three_trainings_share_two_slots(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "WARM_S", 0.05)
    monkeypatch.setattr(cli, "measured", partial(measured, profiled_s=0.05))
    out = tmp_path / "found.json"
    ended = invoke("--round-s", 0.2, "--longest-s", 0.4, "--json", "--out", out)
    assert ended.exit_code == 0
    data = json.loads(ended.stdout)
    assert data == json.loads(out.read_text())
    for name in NETWORKS:
        assert data["throughputs"][name]["fast"] > data["throughputs"][name]["slow"] > 0
        assert sum(one["steps"].get(name, 0) for one in data["rounds"]) == data["steps"][name]
        assert 0 < data["completion_s"][name] <= data["rounds"][-1]["end_s"]
    assert data["moves"]
    assert 0 < data["move_s"] < 2


def test_a_table(monkeypatch):
    monkeypatch.setattr(measure, "WARM_S", 0.02)
    monkeypatch.setattr(cli, "measured", partial(measured, profiled_s=0.05))
    ended = invoke("--round-s", 0.1, "--longest-s", 0.1)
    assert ended.exit_code == 0
    assert "steps/s slow" in ended.stdout
    assert all(name in ended.stdout for name in NETWORKS)


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("--round-s", 0), "--round-s"),
        (("--longest-s", "nan"), "--longest-s"),
        (("--link", 1), "--link"),
        (("--out", "missing/x.json"), "--out"),
    ],
)
def test_options_that_are_wrong(arguments, path):
    with pytest.raises(InputError) as caught:
        invoke(*arguments)
    assert caught.value.path == path
