"""What caches answer, against the laws' own limits."""

import numpy as np
from pytest import approx, mark

from sim.loading.laws import laws, wanted
from sim.loading.reads import FileByFile
from sim.specs.dataset import Dataset
from sim.specs.loading import Loading

AT = {
    "dataset_bytes": 1e9,
    "sample_bytes": 1e5,
    "nodes": 1,
    "sharing_jobs": 1,
    "memory_bytes_per_s": 1e10,
    "read_bytes_per_s": 1e8,
    "network_bytes_per_s": 1e9,
    "latency_s": 0.01,
}
X = np.array([0.0, 0.1, 0.35, 0.65, 0.9, 1.0])


def held(policy, first=False, **changes):
    return laws(policy, first)(AT | {"cache_bytes": X * 1e9} | changes)


def test_lru_under_random_order():
    inner = X[1:-1]
    assert held("lru")["local"][1:-1] == approx(inner + (1 - inner) * np.log(1 - inner))
    assert held("lru")["local"][[0, -1]] == approx([0, 1], abs=1e-9)


@mark.parametrize("nodes", [1, 2, 8])
def test_a_cache_larger_than_the_dataset_misses_nothing_and_no_more(nodes):
    made = laws("lru")(AT | {"cache_bytes": 3e9, "nodes": nodes})
    assert 1 - 1e-9 < made["local"] <= 1
    assert made["storage_s"] >= 0


def test_lru_of_many_nodes_is_the_cached_share():
    assert held("lru", nodes=10_000)["local"] == approx(X, abs=1e-3)
    between = held("lru", nodes=np.array([[1], [2], [4], [16]]))["local"]
    assert (np.diff(between, axis=0) >= -1e-9).all()


def test_minio_keeps_what_it_holds_and_none_nothing():
    assert held("minio")["local"] == approx(X)
    assert held("none")["local"] == 0


def test_partitioned_nodes_hold_different_files():
    made = held("partitioned", nodes=2)
    assert made["local"] + made["remote"] == approx(np.minimum(1, 2 * X))
    assert made["remote"] == approx(made["local"])
    assert held("partitioned")["remote"] == approx(0 * X)


@mark.parametrize("policy", ["none", "lru", "minio", "partitioned"])
def test_the_first_epoch_is_cold_but_for_what_other_jobs_read(policy):
    assert held(policy, first=True)["local"] == approx(0 * X, abs=1e-9)
    if policy != "none":
        assert held(policy, first=True, sharing_jobs=4)["local"][-1] == approx(0.75, abs=1e-6)


def test_what_other_jobs_have_read_first_lies_on_all_nodes():
    made = laws("partitioned", True)(AT | {"cache_bytes": 2e8, "nodes": 4, "sharing_jobs": 2})
    loading = Loading(dataset=Dataset(samples=4_000, sample_bytes=1e3), jobs=2, cache="partitioned", cache_bytes=8e5)
    read = FileByFile(loading, 4, seed=0).take(1_000)
    assert (made["local"], made["remote"]) == (approx(0.1), approx(0.3))
    assert (read.local / 1_000, read.remote / 1_000) == (approx(0.1, abs=0.03), approx(0.3, abs=0.03))


@mark.parametrize("policy", ["lru", "minio"])
@mark.parametrize("share", [0.1, 0.6, 1.0])
def test_a_node_finds_in_the_first_epoch_what_other_jobs_read_on_it(policy, share):
    made = laws(policy, True)(AT | {"cache_bytes": share * 1e9, "nodes": 3, "sharing_jobs": 4})
    data = Dataset(samples=6_000, sample_bytes=1e3)
    read = FileByFile(Loading(dataset=data, jobs=4, cache=policy, cache_bytes=share * 6e6), 3, seed=0).take(2_000)
    assert (made["local"], made["remote"]) == (approx(read.local / 2_000, abs=0.02), 0)


def test_demands_are_of_misses_hits_and_the_network():
    made = held("partitioned", nodes=4)
    local, remote = made["local"], made["remote"]
    assert made["storage_s"] == approx((1 - local - remote) * 1e5 / 1e8)
    assert made["network_s"] == approx(remote * 1e5 / 1e9)
    assert made["delay_s"] == approx((local + remote) * 1e5 / 1e10 + (1 - local - remote) * 0.01)


def test_wanted_share_is_that_of_the_paper():
    rate = 2_000.0
    at = AT | {"latency_s": 0.0, "workers": 1, "wanted_samples_per_s": rate}
    share = float(wanted()(at)["share"])
    assert share == approx((1 - 1e8 / (1e5 * rate)) / (1 - 1e8 / 1e10))
    assert wanted()(at | {"wanted_samples_per_s": 900.0})["share"] == 0
