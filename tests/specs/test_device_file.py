"""A device of the user's own: read from YAML or JSON, plain numbers allowed, wrong ones refused by name."""

import json
import os

import pytest

from sim.specs import Cluster, InputError, Job
from sim.specs.catalog import USER, device

OWN = {
    "name": "own", "title": "Own", "vendor": "Us", "sms": 100, "boost_hz": 1.5e9, "peak_bf16_flop_per_s": 4e14,
    "memory_bytes": 48 * 2**30, "memory_bytes_per_s": {"value": 1.2e12, "source": "datasheet"}, "l2_bytes": 4e7,
    "power_w": 300, "idle_power_w": 30, "intra_node": "pcie", "intra_bytes_per_s": 32e9,
    "inter_bytes_per_s_per_node": 25e9, "gpus_per_node": 4,
}  # fmt: skip


def write(folder, **change):
    """Write the device with `change` (None leaves a field out) and return the file's path."""
    path = folder / "own.json"
    path.write_text(json.dumps({k: v for k, v in (OWN | change).items() if v is not None}))
    return str(path)


def test_plain_numbers_are_the_users(tmp_path):
    found = device(write(tmp_path))
    assert (found.sms.value, found.sms.source) == (100, USER)
    assert found.memory_bytes_per_s.source == "datasheet"
    assert (found.gpus_per_node, found.domain_gpus, found.peak_fp8_flop_per_s) == (4, 4, None)


def test_the_device_that_it_is_like_is_known_in_any_spelling(tmp_path):
    assert device(write(tmp_path, like="H100 SXM 80GB")).like == "h100-sxm-80gb"
    assert device(write(tmp_path)).like is None


def test_yaml_takes_powers_of_ten_without_sign(tmp_path):
    text = "\n".join(f"{k}: {json.dumps(v)}" for k, v in OWN.items() if k != "peak_bf16_flop_per_s")
    (tmp_path / "own.yaml").write_text(text + "\npeak_bf16_flop_per_s: 989.4e12\npeak_fp8_flop_per_s: 2E15\n")
    found = device(str(tmp_path / "own.yaml"))
    assert found.peak_bf16_flop_per_s.value == 989.4e12
    assert found.peak_fp8_flop_per_s is not None
    assert found.speedup("fp8") == pytest.approx(2e15 / 989.4e12)


def test_a_file_that_changes_is_read_again(tmp_path):
    path = write(tmp_path)
    assert device(path).power_w.value == 300
    write(tmp_path, power_w=350)
    os.utime(path, ns=(1, 1))
    assert device(path).power_w.value == 350


def test_a_job_finds_the_file_beside_it(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub")
    cluster = {"device": "own.json", "nodes": 2}
    for name, given in (("a", cluster), ("b", {"groups": [cluster, {"device": "l4", "gpus_per_node": 4}]})):
        job = {"model": "llama3.2-1b", "cluster": given, "plan": {"global_batch": 24}}
        (tmp_path / "sub" / f"{name}.json").write_text(json.dumps(job))
    monkeypatch.chdir(tmp_path)
    alone, mixed = (Job.load(f"sub/{name}.json").cluster for name in "ab")
    assert alone.hardware.title == "Own"
    assert (alone.gpus, alone.memory_bytes, alone.usd_per_hour) == (8, 48 * 2**30, None)
    assert mixed.members[0] == alone
    assert mixed.gpus == 12


CASES = [
    ({"sms": -3}, "cluster.device.sms", "a number from 0 to 1e+18"),
    ({"sms": "many"}, "cluster.device.sms", "a number from 0 to 1e+18"),
    ({"sms": True}, "cluster.device.sms", "a number from 0 to 1e+18"),
    ({"sms": {"value": 3}}, "cluster.device.sms.source", "required: text"),
    ({"sms": None}, "cluster.device.sms", "required: streaming multiprocessors"),
    ({"name": ""}, "cluster.device.name", "the name that reports show, text of 1 to 400"),
    ({"intra_node": "ethernet"}, "cluster.device.intra_node", "nvlink, xgmi, pcie or host"),
    ({"gpus_per_node": 100}, "cluster.device.gpus_per_node", "a whole number from 1 to 72"),
    ({"domain_gpus": 3}, "cluster.device.domain_gpus", "a multiple or divisor of gpus_per_node = 4"),
    ({"idle_power_w": 301}, "cluster.device.idle_power_w", "a number up to power_w = 300 W"),
    ({"host_bytes_per_s": 0}, "cluster.device.host_bytes_per_s", "a number from 1e+06 to 1e+14 B/s"),
    ({"sms": 0}, "cluster.device.sms", "a number from 1 to 1e+06 units"),
    ({"memory_bytes": 0}, "cluster.device.memory_bytes", "a number from 1e+06 to 1e+14 B"),
    ({"like": "h1000"}, "cluster.device.like", "one of a100"),
    ({"cores": 4}, "cluster.device.cores", "no such key; known keys: name, title"),
]


@pytest.mark.parametrize(("change", "path", "allowed"), CASES)
def test_a_wrong_field_is_named(tmp_path, change, path, allowed):
    write(tmp_path, **change)
    job = {"model": "gpt2-xl", "cluster": {"device": "own.json"}, "plan": {"global_batch": 8}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    with pytest.raises(InputError) as caught:
        Job.load(tmp_path / "job.json")
    assert caught.value.path == path
    assert allowed in caught.value.allowed


def test_a_missing_file_is_named():
    with pytest.raises(
        InputError,
        match=r"device: got 'none\.yaml'; allowed: a readable device file \(none at none\.yaml\), or one of a100",
    ):
        Cluster.of("none.yaml")
