"""What every cache policy must satisfy. A newcomer is a line in the registry and passes these."""

from collections import Counter

import numpy as np
import pytest

from sim.loading.caches import CACHES
from sim.loading.laws import laws


class CacheContract:
    """Laws of one policy; exact: whether the expected hits are those of every single run."""

    name: str
    exact: bool

    def epochs(self, files, capacity, nodes=1, epochs=4, seed=0):
        """Return per epoch where node 0 had its files from, and the policy after it."""
        rng = np.random.default_rng(seed)
        cache = CACHES[self.name](capacity, nodes)
        found = []
        for _ in range(epochs):
            order = rng.permutation(files)
            counts = Counter()
            for place, item in enumerate(order):
                source = cache.read(int(item), place % nodes)
                counts[source] += place % nodes == 0
            found.append(counts)
        return found, cache

    def expected(self, share, nodes=1):
        at = {"cache_bytes": share, "dataset_bytes": 1.0, "nodes": nodes, "sharing_jobs": 1, "sample_bytes": 1.0}
        at |= {"memory_bytes_per_s": 1.0, "read_bytes_per_s": 1.0, "network_bytes_per_s": 1.0, "latency_s": 0.0}
        made = laws(self.name)(at)
        return float(made["local"]), float(made["remote"])

    def test_it_never_holds_more_than_it_may(self):
        for nodes in (1, 3):
            _, cache = self.epochs(300, 40, nodes)
            assert all(cache.held(node) <= 40 for node in range(nodes))

    def test_the_first_epoch_is_read_from_storage(self):
        for nodes in (1, 2):
            found, _ = self.epochs(200, 50, nodes)
            assert found[0]["storage"] == 200 // nodes

    @pytest.mark.parametrize("nodes", [1, 2])
    @pytest.mark.parametrize("share", [0.1, 0.35, 0.65, 0.9])
    def test_hits_are_those_of_the_law(self, share, nodes):
        files = 20_000 if nodes == 1 else 40_000
        epochs = 3 if nodes == 1 else 8
        found, _ = self.epochs(files, round(share * files), nodes, epochs)
        reads = files // nodes
        local, remote = self.expected(share, nodes)
        if self.exact and nodes == 1:
            assert all(counts["storage"] == files - round((local + remote) * files) for counts in found[1:])
        assert found[-1]["local"] / reads == pytest.approx(local, abs=0.01)
        assert found[-1]["remote"] / reads == pytest.approx(remote, abs=0.01)
