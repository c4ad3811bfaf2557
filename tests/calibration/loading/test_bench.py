"""Settings become files, caches, loaders and trainers, and nothing of them is left."""

import os

import pytest
import torch

from calibration.loading.bench import Setting, loader, on_cores, opened, trainer
from calibration.loading.minio import Counts
from calibration.loading.phases import first
from calibration.loading.trainers import Computing, Sleeping
from sim.specs.fields import InputError

SMALL = {"files": 16, "scale": 48.0, "batch": 4, "storage_latency_s": 0.0}


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_source_has_its_share_in_memory(share):
    setting = Setting(cached=share, **SMALL)
    with opened(setting) as bench:
        source = bench.source(setting)
        most = max(bench.manifest.sizes_bytes)
        assert share * bench.manifest.total_bytes - most < source.used_bytes() <= share * bench.manifest.total_bytes
        for item in range(16):
            assert source.read(item) == bench.files.read(item)
        kept = len(source.held())
        assert source.counts() == Counts(kept, 16 - kept)
        folders = bench.folder, bench.memory
        assert bench.source(setting).used_bytes() == source.used_bytes()
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("topology", ["serial", "staged"])
@pytest.mark.parametrize(("kind", "scale"), [("images", 48.0), ("audio", 0.3)])
def test_loaders_and_trainers_of_both_kinds(topology, kind, scale):
    setting = Setting(**SMALL | {"kind": kind, "scale": scale}, topology=topology, trainer="compute")
    with opened(setting) as bench:
        batch = first("batches", loader(setting, bench.cached))
        train = trainer(setting, batch)
        assert isinstance(train, Computing)
        before = [weights.clone() for weights in train.network.parameters()]
        train(batch)
        assert any(not torch.equal(old, new) for old, new in zip(before, train.network.parameters(), strict=True))
        assert isinstance(trainer(Setting(), batch), Sleeping)


def test_cores_are_given_back():
    before = os.sched_getaffinity(0)
    with on_cores(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    with pytest.raises(InputError, match="cores"), on_cores(len(before) + 1):
        pass
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("name", "value"), [("cached", 1.5), ("files", 1), ("workers", 0), ("trainer", "none")])
def test_bad_settings(name, value):
    with pytest.raises(InputError) as error:
        Setting(**{name: value})
    assert error.value.path == name
