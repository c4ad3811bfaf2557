"""Every policy of the registry, and what is special of one."""

from typing import get_args

import numpy as np

from sim.loading.caches import CACHES, Partitioned
from sim.specs.loading import Cache
from tests.contracts.cache import CacheContract


class TestUncached(CacheContract):
    name, exact = "none", True


class TestLRU(CacheContract):
    name, exact = "lru", False


class TestMinIO(CacheContract):
    name, exact = "minio", True


class TestPartitioned(CacheContract):
    name, exact = "partitioned", True


def test_every_policy_of_the_spec_is_there():
    assert set(CACHES) == set(get_args(Cache))


def test_partitioned_nodes_read_every_file_from_storage_once_in_all():
    rng, cache, read = np.random.default_rng(1), Partitioned(100, 3), []
    for _ in range(4):
        for place, item in enumerate(rng.permutation(300)):
            if cache.read(int(item), place % 3) == "storage":
                read.append(int(item))
    assert sorted(read) == list(range(300))
