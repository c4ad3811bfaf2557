"""The staged loader: the batches of the other one, fetched ahead by threads that end with it."""

import threading

import pytest
import torch
from torch.utils.data import DataLoader

from calibration.loading.decoding import Order, Prepared
from calibration.loading.staged import Decoded, Fetched


def staged(data, places, workers=2, threads=2):
    fetched = Fetched(data, places, batch=8, threads=threads, prefetch=2)
    return DataLoader(Decoded(data), batch_sampler=fetched, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_batches_in_the_same_order(images, workers):
    data, places = Prepared(images, "images", seed=4), Order(len(images), 2, seed=1)
    serial = list(DataLoader(data, 8, sampler=places))
    both = zip(serial, staged(data, places, workers), strict=True)
    assert all(torch.equal(one, other) for one, other in both)


def test_threads_end_when_nobody_asks_any_more(images):
    fetchers = set()  # and no other thread of the process: those of earlier tests may be ending

    class Seen(Prepared):
        def fetch(self, place):
            fetchers.add(threading.current_thread())
            return super().fetch(place)

    batches = iter(Fetched(Seen(images, "images"), Order(len(images), 10), batch=4, threads=3, prefetch=2))
    next(batches)
    assert fetchers and threading.current_thread() not in fetchers
    assert all(fetcher.is_alive() for fetcher in fetchers)
    batches.close()
    assert not any(fetcher.is_alive() for fetcher in fetchers)


def test_files_are_fetched_beside_each_other_and_not_farther_ahead_than_said(images):
    fetched = threading.Semaphore(0)

    class Meeting:
        threads = threading.Barrier(4, timeout=30)  # nothing is read until four ask at once

        def __len__(self):
            return len(images)

        def read(self, item):
            self.threads.wait()
            fetched.release()
            return images.read(item)

    batches = iter(Fetched(Prepared(Meeting(), "images"), range(40), batch=2, threads=4, prefetch=1))
    for _ in range(10):
        next(batches)
    assert all(fetched.acquire(timeout=30) for _ in range(20 + 8))
    assert not fetched.acquire(timeout=0.1)
    batches.close()


def test_what_cannot_be_read_is_told(images):
    class Gone:
        def __len__(self):
            return 4

        def read(self, item):
            raise FileNotFoundError(item)

    with pytest.raises(FileNotFoundError):
        list(Fetched(Prepared(Gone(), "images"), range(4), batch=2, threads=1, prefetch=1))
