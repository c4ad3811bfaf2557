"""Rows along an axis are predictions, and go the way they should."""

from dataclasses import replace

import pytest
from pytest import approx

from sim.loading import predict, what_if
from sim.specs import InputError
from sim.specs.catalog import storage
from sim.specs.loading import Loading

LOADING = Loading(
    dataset="imagenet-1k", prep_s=0.004, workers=24, cores=24, topology="staged", cache="lru", cache_bytes=40e9
)


@pytest.mark.parametrize("axis", ["cache", "cores", "storage", "gpus"])
def test_shares_sum_to_an_epoch(axis):
    for row in what_if(LOADING, 8_000.0, axis):
        assert row.compute_fraction + row.prep_stall_fraction + row.fetch_stall_fraction == approx(1)
        assert row.axis == axis


def test_rows_are_predictions():
    cores = {row.value: row for row in what_if(LOADING, 8_000.0, "cores")}
    assert cores[24].samples_per_s == approx(predict(LOADING, 8_000.0).samples_per_s)
    disks = {row.value: row for row in what_if(LOADING, 8_000.0, "storage")}
    fast = predict(replace(LOADING, storage=storage("nvme")), 8_000.0)
    assert disks["nvme"].samples_per_s == approx(fast.samples_per_s)
    assert disks["nvme"].bottleneck == fast.bottleneck
    gpus = {row.value: row for row in what_if(LOADING, 1_000.0, "gpus")}
    assert gpus[8.0].samples_per_s == approx(predict(LOADING, 8_000.0).samples_per_s)


def test_more_is_not_slower():
    for axis in ("cache", "cores"):
        rates = [row.samples_per_s for row in what_if(LOADING, 8_000.0, axis)]
        assert rates == sorted(rates)
        assert rates[-1] > rates[0]


def test_an_unknown_axis_is_told():
    with pytest.raises(InputError, match=r"^axis"):
        what_if(LOADING, 100.0, "moons")


def test_cores_go_as_far_as_a_node_may_have():
    slow = replace(LOADING, prep_s=100.0)
    assert predict(slow, 1_000.0).recommended_cores == 100_000
    assert max(row.value for row in what_if(slow, 1_000.0, "cores")) == 4_096
