"""`trainsim device new`: a file to fill in that already works."""

import json

import pytest

from sim.catalog import names
from sim.cli.device import device_text
from sim.specs import Device
from sim.specs.catalog import device
from sim.specs.device import Sourced


@pytest.mark.parametrize("like", names("devices"))
def test_the_written_file_is_the_device_it_copies(tmp_path, like):
    path = tmp_path / "own.yaml"
    path.write_text(device_text("4090", device(like), path.name))
    made, copied = device(str(path)), device(like)
    for name in Device.__dataclass_fields__:
        if name not in ("name", "title", "like", "price_date"):
            one, other = (getattr(d, name) for d in (made, copied))
            assert (one.value if isinstance(one, Sourced) else one) == (
                other.value if isinstance(other, Sourced) else other
            )
    assert (made.name, made.like) == ("4090", like)
    assert all(f"{name}:" in path.read_text() for name in Device.__dataclass_fields__)
    assert max(map(len, path.read_text().splitlines())) <= 120


def test_the_written_file_simulates_unedited(trainsim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = trainsim("device", "new", "my-gpu")
    assert (code, out) == (0, "my-gpu.yaml\n")
    assert "cluster: {device: my-gpu.yaml}" in err
    job = "model: llama3-8b\ncluster: {device: DEVICE, nodes: 2}\nplan: {tp: 4, global_batch: 64, zero: 1}\n"
    times = []
    for name in ("my-gpu.yaml", "h100-sxm-80gb"):
        (tmp_path / "job.yaml").write_text(job.replace("DEVICE", name))
        code, out, _ = trainsim("simulate", "job.yaml", "--json")
        assert code == 0
        times.append(json.loads(out)["step_time_s"])
    assert times[0] == pytest.approx(times[1], rel=1e-5)


def test_json_names_the_file(trainsim, tmp_path):
    target = tmp_path / "a.yaml"
    code, out, _ = trainsim("device", "new", "a", "--like", "MI300X", "--out", target, "--json")
    assert code == 0
    assert json.loads(out) == {"path": str(target), "like": "mi300x"}
    assert device(str(target)).intra_node == "xgmi"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a b",), "name: got 'a b'; allowed: 1 to 64 letters, digits"),
        (("../a",), "name: got '../a'"),
        (("l4",), "name: got 'l4'"),
        (("a", "--like", "h1000"), "--like: got 'h1000'; allowed: one of a100"),
        (("a", "--out", "a.txt"), "--out: got 'a.txt'; allowed: a file name that ends in .yaml"),
        (("a", "--out", "no/such/a.yaml"), "--out: got 'no/such/a.yaml'; allowed: a file in an existing folder"),
    ],
)
def test_bad_input_writes_nothing(trainsim, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = trainsim("device", "new", *arguments)
    assert code == 2
    assert message in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(trainsim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("mine")
    code, _, err = trainsim("device", "new", "a")
    assert code == 2
    assert "--out: got 'a.yaml'; allowed: a file that does not exist yet" in err
    assert (tmp_path / "a.yaml").read_text() == "mine"
