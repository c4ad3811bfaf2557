"""`trainsim loading measure`: options in, a table or one JSON object out."""

import json

import pytest
import typer
from typer.testing import CliRunner

from calibration.loading import calibrate, cli, measure
from calibration.loading.cli import measure_command, trained
from sim.specs.fields import InputError
from tests.calibration.full_disk import on_a_full_disk

QUICK = ("--files", "16", "--seconds", "0.1", "--storage-latency-s", "0.001")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(calibrate, "WORKER_S", 0.1)
    monkeypatch.setattr(measure, "WINDOW_S", 0.15)


def invoke(*arguments):
    app = typer.Typer()
    app.command()(measure_command)
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


@pytest.mark.slow
def test_prints_and_writes_one_object(tmp_path):
    out = tmp_path / "found.json"
    ended = invoke(*QUICK, "--dataset", "audio", "--cached", "0.5", "--trainer", "sleep:0.01", "--out", out, "--json")
    assert ended.exit_code == 0
    data = json.loads(ended.stdout)
    assert data == json.loads(out.read_text())
    wanted = {"samples_per_s", "fetch_stall_fraction", "prep_stall_fraction", "bottleneck"}
    assert wanted <= set(data["measured"]) == set(data["predicted"])
    assert {"recommended_cache_bytes", "recommended_cores", "error", "others_share", "load_average"} <= set(data)
    assert data["setting"]["trainer_s"] == 0.01


@pytest.mark.slow
def test_a_full_disk_loses_no_measurement(monkeypatch, tmp_path):
    ended = on_a_full_disk(monkeypatch, cli, [*QUICK, "--json", "--out", str(tmp_path / "found.json")])
    assert isinstance(ended.exception, OSError) and "measured" in json.loads(ended.stdout)


@pytest.mark.slow
def test_prints_a_table():
    ended = invoke(*QUICK)
    assert ended.exit_code == 0
    assert "measured" in ended.stdout
    assert "waits for storage" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("--dataset", "video"), "--dataset"),
        (("--topology", "round"), "--topology"),
        (("--seconds", "0"), "--seconds"),
        (("--trainer", "sleep"), "--trainer"),
        (("--cached", "2"), "cached"),
        (("--out", "missing/x.json"), "--out"),
        (("--cores", "4000", *QUICK), "cores"),
        (("--cores", "1000", *QUICK), "cores"),
    ],
)
def test_bad_input(arguments, path):
    with pytest.raises(InputError) as error:
        invoke(*arguments)
    assert error.value.path == path


def test_trainers_by_name():
    assert trained("compute") == {"trainer": "compute"}
    assert trained("sleep:0.5") == {"trainer": "sleep", "trainer_s": 0.5}
    for text in ("sleep:-1", "sleep:nan", "sleep:", "compute:1", "", "wake:1"):
        with pytest.raises(InputError):
            trained(text)
