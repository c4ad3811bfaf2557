"""What is expected of devices that are not at hand: over the batch, over the links, and as a file."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from calibration.workloads import evidence
from calibration.workloads.evidence import DEVICE, DEVICES, gather
from calibration.workloads.expected import read_expectations
from calibration.workloads.registry import WORKLOADS
from sim.specs import Cluster
from sim.specs.catalog import device
from sim.specs.fields import InputError
from tests.oracle import ROOT


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A network whose full size is its tiny one, which is traced sooner."""
    with pytest.MonkeyPatch.context() as patch:
        small = WORKLOADS["wgan"]
        tiny = replace(
            small,
            samples={"tiny": 16, "full": 16},
            make=lambda size: small.make("tiny"),
            draw=lambda size, samples, generator: small.draw("tiny", samples, generator),
        )
        patch.setattr(evidence, "WORKLOADS", {"wgan": tiny})
        patch.setattr(evidence, "BATCHES", (8, 16, 32))
        path = tmp_path_factory.mktemp("expected") / "w.json"
        told = []
        found = gather(path, ("wgan",), told.append)
    assert told == ["wgan"]
    return path, found


def test_larger_batches_have_more_throughput_and_more_memory(made):
    alone = made[1].alone("wgan")
    assert [row.samples for row in alone] == [8, 16, 32]
    rates = [row.metrics.samples_per_s for row in alone]
    peaks = [row.metrics.peak_bytes for row in alone]
    assert rates == sorted(rates) and peaks == sorted(peaks)
    assert made[1].peak_flop_per_s == device(DEVICE).peak_bf16_flop_per_s.value


def test_slower_links_scale_worse(made):
    shares = {links: by["wgan"] for links, by in made[1].scaling.items()}
    assert list(shares) == ["NVLink", "InfiniBand", "Ethernet"]
    assert 0 < shares["Ethernet"] < shares["InfiniBand"] <= 1.001
    assert {row.processes for row in made[1].rows} == {1, DEVICES}


def test_a_batch_that_does_not_fit_is_the_last_one(made, monkeypatch):
    small = Cluster.of(DEVICE, nodes=1, gpus_per_node=1, memory_bytes=1e9)
    monkeypatch.setattr(evidence, "Cluster", SimpleNamespace(of=lambda *given, **more: small))
    monkeypatch.setattr(evidence, "BATCHES", (8, 16))
    monkeypatch.setattr(evidence, "batch_bytes", lambda *given: 1e9)
    rows = list(evidence.alone(evidence.Traced(WORKLOADS["a3c"], evidence.table(WORKLOADS["a3c"], "tiny", "cuda"))))
    assert [(row.samples, row.fits) for row in rows] == [(8, False)]


def test_a_file_is_read_as_it_was_written_or_refused(made):
    path, found = made
    held = read_expectations(path)
    assert [row.links for row in held.rows] == [row.links for row in found.rows]
    assert held.rows[0].metrics.samples_per_s == pytest.approx(found.rows[0].metrics.samples_per_s, rel=1e-5)
    raw = json.loads(path.read_text())
    raw["rows"][0]["samples"] = 0
    path.with_name("bad.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"rows\.0\.samples: got 0"):
        read_expectations(path.with_name("bad.json"))


def test_what_a_page_draws_is_in_percent(made):
    found = made[1]
    assert list(found.saturation("wgan")) == ["8", "16", "32"] and max(
        found.saturation("wgan").values()
    ) == pytest.approx(100)
    busy = found.utilisation("wgan")
    assert busy["compute"]["8"] == 100 * found.alone("wgan")[0].metrics.compute_utilisation
    assert found.memory()["wgan, 16"] == found.own("wgan").metrics.memory_bytes
    assert found.percent_of_linear()["NVLink"]["wgan"] == 100 * found.scaling["NVLink"]["wgan"]


def test_a_device_waits_while_kernels_are_launched(made):
    """All the more with fewer samples."""
    shares = [row.metrics.compute_utilisation for row in made[1].alone("wgan")]
    assert 0 < shares[0] < shares[-1] < 0.9


@pytest.mark.slow
def test_what_is_stored_is_what_is_expected_today(tmp_path):
    path = ROOT / "notebooks" / "data" / "workloads" / "expected.json"
    stored = [row for row in read_expectations(path).rows if row.workload == "a3c"]
    gather(tmp_path / "a3c.json", ("a3c",), lambda name: None)
    assert read_expectations(tmp_path / "a3c.json").rows == stored
