"""Caches that processes share: exact counts in a real DataLoader, and the bytes that were put in."""

import os
import time
from multiprocessing import get_context
from pathlib import Path
from threading import Thread

import pytest
from torch.utils.data import DataLoader

from calibration.guards import within
from calibration.loading.decoding import Order
from calibration.loading.minio import LRU, Counts, MinIO
from sim.specs.fields import InputError
from tests.calibration.loading.numbers import Numbers
from tests.calibration.loading.read import Read

N = 120


def epochs(cache, workers, count):
    """Return the counts of every epoch, and check that each held every sample once."""
    made = []
    for epoch in range(count):
        cache.restart()
        order = Order(N, epoch + 1, seed=5).epoch(epoch)
        batches = DataLoader(Read(cache), 10, sampler=order, num_workers=workers)
        assert sorted(int(n) for batch in batches for n in batch) == list(range(N))
        made.append(cache.counts())
    return made


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kept", [0, 30, 77, N])
def test_minio_misses_what_it_has_no_room_for(tmp_path, kept, workers):
    cache = MinIO(Numbers(N), tmp_path, 8 * kept)
    first, *later = epochs(cache, workers, 3)
    assert first == Counts(0, N)
    assert later == [Counts(kept, N - kept)] * 2
    assert len(cache.held()) == kept
    assert cache.used_bytes() == 8 * kept


def test_minio_is_full_when_one_does_not_fit(tmp_path):
    cache = MinIO(Numbers(N, size=20), tmp_path, 50)
    for item in (4, 9, 11, 2, 4, 9, 11):
        assert cache.read(item) == item.to_bytes(20, "big")
    assert cache.held() == [4, 9]
    assert cache.counts() == Counts(2, 5)
    assert cache.source.asked == [4, 9, 11, 2, 11]


def test_lru_gives_up_what_was_used_longest_ago(tmp_path):
    cache = LRU(Numbers(N), tmp_path, 24)
    for item in (1, 2, 3, 1, 4, 2, 1):
        cache.read(item)
    assert cache.source.asked == [1, 2, 3, 4, 2]  # 4 takes the place of 2, 2 that of 3
    assert cache.held() == [1, 2, 4]
    assert cache.counts() == Counts(2, 5)
    assert sorted(path.name for path in tmp_path.glob("*.bytes")) == ["1.bytes", "2.bytes", "4.bytes"]


@pytest.mark.slow
def test_lru_loses_more_than_minio_under_random_order(tmp_path):
    hits = {}
    for kind in (LRU, MinIO):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        _, *later = epochs(kind(Numbers(N), folder, 8 * N // 2), 2, 4)
        hits[kind] = sum(each.hits for each in later) / (3 * N)
    assert hits[MinIO] == 0.5
    assert 0.05 < hits[LRU] < 0.3  # x + (1 - x) ln(1 - x) = 0.153 of so few


def test_a_sample_that_another_process_fetches_is_waited_for(tmp_path):
    class Slow(Numbers):
        def read(self, item):
            time.sleep(0.1)
            return super().read(item)

    cache = MinIO(Slow(N), tmp_path, 8 * N)
    threads = [Thread(target=cache.read, args=(7,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.counts() == Counts(2, 1)


def test_one_that_died_fetching_is_not_waited_for_long(tmp_path, monkeypatch):
    class Dead(Numbers):
        def read(self, item):
            os._exit(1)

    monkeypatch.setattr("calibration.loading.minio.LATE_S", 0.05)
    dead = get_context("fork").Process(target=MinIO(Dead(N), tmp_path, 8 * N).read, args=(3,))
    dead.start()
    dead.join()
    cache = MinIO(Numbers(N), tmp_path, 8 * N)
    assert [cache.read(3), cache.read(3)] == [(3).to_bytes(8, "big")] * 2
    assert cache.counts() == Counts(1, 2)


def test_a_sample_whose_read_failed_is_not_waited_for(tmp_path):
    class Broken(Numbers):
        def read(self, item):
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        MinIO(Broken(N), tmp_path, 8 * N).read(3)
    with within(2):
        assert MinIO(Numbers(N), tmp_path, 8 * N).read(3) == (3).to_bytes(8, "big")


def test_a_cache_is_taken_over(tmp_path):
    MinIO(Numbers(N), tmp_path, 80).read(5)
    later = MinIO(Numbers(N), tmp_path, 80)
    later.read(5)
    assert later.source.asked == []


def test_no_room_on_the_file_system(tmp_path, monkeypatch):
    cache = LRU(Numbers(N), tmp_path, 80)
    monkeypatch.setattr(cache, "_file", lambda item: tmp_path / "none" / str(item))
    assert cache.read(5) == (5).to_bytes(8, "big")
    assert (cache.held(), cache.used_bytes()) == ([], 0)


def test_bad_input(tmp_path):
    with pytest.raises(InputError, match="capacity_bytes"):
        MinIO(Numbers(N), tmp_path, -1)
    with pytest.raises(InputError, match="folder"):
        MinIO(Numbers(N), tmp_path / "none", 1)


def test_a_sample_whose_writing_was_interrupted_is_not_waited_for(tmp_path, monkeypatch):
    cache = MinIO(Numbers(N), tmp_path, 8 * N)

    def interrupted(path, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "write_bytes", interrupted)
        cache.read(3)
    assert (cache.held(), cache.used_bytes()) == ([], 0)
    with within(2):
        assert cache.read(3) == (3).to_bytes(8, "big")
    assert cache.held() == [3]
