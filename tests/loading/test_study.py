"""The study of nine networks: what they compute, and the sweep."""

import numpy as np
from pytest import approx, raises

from sim.loading import hit_shares, study
from sim.loading.networks import FACTOR, GPUS, NETWORKS, ideal_s, samples_per_s
from sim.loading.study import PREP_BYTES_PER_S
from sim.specs import InputError
from sim.specs.catalog import dataset


def test_nine_networks_of_three_tasks():
    assert len(NETWORKS) == 9
    assert {network.task for network in NETWORKS} == set(PREP_BYTES_PER_S)
    assert all(dataset(name).samples for network in NETWORKS for name in network.datasets)


def test_work_is_the_published_one():
    """A training step is three forward passes, but for the gradient of the images."""
    for network in NETWORKS:
        if network.published_macs:
            assert 0.9 < network.flop / (6 * network.published_macs) < 1.0


def test_rates_are_a_stated_share_of_the_peaks():
    for gpu in GPUS.values():
        for network in NETWORKS:
            assert samples_per_s(network, gpu) * network.flop < 0.8 * gpu.flop_per_s
            ideal = ideal_s(network, gpu.flop_per_s, gpu.bytes_per_s, gpu.element_bytes)
            assert samples_per_s(network, gpu) == approx(1 / FACTOR / ideal)


def test_tens_of_thousands_of_settings_are_one_call():
    made = study()
    assert made.settings > 40_000
    stalls = made.stalls("lru")
    assert np.allclose(sum(stalls.values()), 1)
    assert (made.found["minio"].steady >= made.found["lru"].steady * (1 - 1e-9)).all()
    assert (np.diff(made.found["lru"].steady, axis=2) >= -1e-6).all()


def test_tables_are_parts_of_the_sweep():
    made = study(cached=(0.0, 1.0), cores=(24,))
    table = made.table("fetch", "minio", "hdd", 24)
    assert len(table) == len(made.cases)
    assert all(row["0\u00a0%"] > 0.5 and row["100\u00a0%"] < 0.01 for row in table.values())
    for name, value in (("storage", "tape"), ("cores", 7)):
        with raises(InputError, match=f"^{name}"):
            made.table("fetch", "minio", **({"storage": "hdd", "cores": 24} | {name: value}))


def test_hits_of_the_policies():
    alone, shared = hit_shares((0.0, 0.5, 1.0)), hit_shares((0.0, 0.5, 1.0), jobs=8)
    assert alone["minio"] == approx({"0\u00a0%": 0.0, "50\u00a0%": 0.5, "100\u00a0%": 1.0})
    assert alone["lru"]["50\u00a0%"] == approx(0.5 + 0.5 * np.log(0.5))
    assert alone["lru"]["50\u00a0%"] < shared["lru"]["50\u00a0%"] < 0.5
    assert list(hit_shares((0.001, 0.002))["lru"]) == ["0.1\u00a0%", "0.2\u00a0%"]
    assert hit_shares((0.5,), nodes=2)["partitioned"] == approx({"50\u00a0%": 1.0})


def test_rows_are_the_sweep():
    made = study(cached=(0.0, 0.5), cores=(3, 24), policies=("minio",))
    rows = list(made.rows())
    assert len(rows) == made.settings == len(made.cases) * 4 * 2 * 2
    row = rows[-1]
    assert (row.network, row.storage, row.cached, row.cores, row.policy) == ("audio-m5", "nvme", 0.5, 24, "minio")
    assert row.samples_per_s == approx(float(made.found["minio"].steady[-1, -1, -1, -1]))
    assert {r.bottleneck for r in rows} == {"compute", "fetch", "prep"}
