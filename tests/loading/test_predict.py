"""Predictions: phases sum up, recommendations end the waiting, bad input is told."""

import re
from dataclasses import replace

import pytest
from pytest import approx

from sim.loading import predict
from sim.loading.reads import FileByFile
from sim.specs import InputError
from sim.specs.dataset import Dataset
from sim.specs.loading import Loading
from sim.specs.storage import Storage
from sim.units import digits3

DATA = Dataset(samples=100_000, sample_bytes=1e5)
SLOW = Loading(
    dataset=DATA,
    storage=Storage(read_bytes_per_s=1e8, write_bytes_per_s=1e8),
    prep_s=0.002,
    workers=4,
    cores=4,
    cache="minio",
    cache_bytes=2.5e9,
    memory_bytes_per_s=1e10,
)


def test_one_worker_reads_then_prepares():
    one = predict(replace(SLOW, workers=1), 1e6)
    assert 1 / one.samples_per_s == approx(0.75e-3 + 0.25e-5 + 2e-3)
    staged = predict(replace(SLOW, workers=1, topology="staged"), 1e6)
    assert staged.samples_per_s == approx(500)


def test_phases_sum_to_an_epoch():
    made = predict(SLOW, 1_500.0)
    t1, t2, t3 = 1 / 1_500, 1 / made.samples_per_s, 1 / predict(replace(SLOW, cache_bytes=1e10), 1_500.0).samples_per_s
    assert made.prep_stall_fraction == approx((t3 - t1) / t2)
    assert made.fetch_stall_fraction == approx((t2 - t3) / t2)
    assert made.epoch_s == approx(100_000 * t2)
    assert made.read_bytes_per_epoch == approx(0.75e10)
    assert made.first_epoch_s > made.epoch_s


def test_the_bottleneck_is_what_training_waits_for():
    assert predict(SLOW, 50.0).bottleneck == "compute"
    assert predict(SLOW, 50.0).samples_per_s == approx(50.0)
    assert predict(replace(SLOW, topology="staged"), 1_600.0).bottleneck == "fetch"
    assert predict(replace(SLOW, prep_s=0.1), 1_600.0).bottleneck == "prep"


def test_what_a_serial_worker_waits_for_is_fetching_where_preparing_alone_is_fast_enough():
    one = predict(replace(SLOW, workers=1, cores=1), 500.0)
    assert one.prep_samples_per_s == 500 < one.fetch_samples_per_s
    assert one.fetch_stall_fraction > 0.25 and one.prep_stall_fraction < 0.01
    assert one.bottleneck == "fetch"
    assert f"{one.recommended_workers} workers are best" in one.why


def test_cache_that_serial_workers_need_is_not_said_to_do():
    made = predict(SLOW, 1e5)
    kept = predict(replace(SLOW, cache_bytes=made.recommended_cache_bytes), 1e5)
    assert made.bottleneck == "fetch" and kept.fetch_stall_fraction > 0.25
    assert "would do" not in made.why and f"everything cached training gets {digits3(1_990)} samples/s" in made.why


def test_serial_workers_on_the_cores_that_would_do_are_as_many_as_it_takes():
    far = Storage(read_bytes_per_s=1e9, write_bytes_per_s=1e9, latency_s=0.002)
    few = replace(SLOW, cores=1, workers=1, prep_s=0.004, storage=far)
    made = predict(few, 2_000.0)
    more = predict(replace(few, cores=8, workers=8), 2_000.0)
    assert made.bottleneck == "prep" and made.recommended_cores == 8 and more.samples_per_s < 0.97 * 2_000
    found = re.search(r"8 cores with ([0-9]+) workers would do\.$", made.why)
    assert found and predict(replace(few, cores=8, workers=int(found[1])), 2_000.0).samples_per_s > 0.97 * 2_000


def test_cores_are_not_said_to_do_where_storage_is_next():
    few = replace(SLOW, workers=1, cores=1, topology="staged")
    fast, slow = (replace(few, storage=Storage(read_bytes_per_s=r, write_bytes_per_s=r)) for r in (1e10, 1e8))
    assert predict(fast, 1e4).why.endswith("cores with as many workers would do.")
    made = predict(slow, 1e4)
    told = f"would prepare enough, but files come at {digits3(made.fetch_samples_per_s)} samples/s."
    assert made.why.endswith(told)


def test_what_is_recommended_ends_the_waiting():
    staged = replace(SLOW, topology="staged", workers=32, cores=4)
    made = predict(staged, 1_900.0)
    assert made.recommended_cores == 4
    assert 0 < made.recommended_cache_bytes < 1e10
    assert predict(replace(staged, cache_bytes=made.recommended_cache_bytes), 1_900.0).samples_per_s > 0.97 * 1_900
    assert predict(staged, 900.0).recommended_cache_bytes == 0
    few = predict(replace(SLOW, cores=2), 5_000.0)
    enough = predict(replace(SLOW, cores=2, workers=few.recommended_workers), 5_000.0).samples_per_s
    assert enough == approx(predict(replace(SLOW, cores=2, workers=500), 5_000.0).samples_per_s, rel=0.011)


def test_nodes_that_part_the_files_over_a_slow_network_are_told_to_keep_their_own():
    parted = replace(SLOW, topology="staged", workers=32, cores=8, cache="partitioned", cache_bytes=2.5e9)
    fast, slow = (predict(parted, 1_900.0, 4, network) for network in (1e12, 2e6))
    assert slow.recommended_cache_bytes == approx(4 * fast.recommended_cache_bytes)
    assert "the network brings no more of what other nodes keep" in slow.why
    kept = replace(parted, cache="minio", cache_bytes=slow.recommended_cache_bytes)
    assert predict(kept, 1_900.0, 4, 2e6).samples_per_s > 0.97 * 1_900


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.5])
def test_no_more_workers_are_recommended_than_take_turns_for_nothing(loss):
    fast = replace(SLOW, cache="none", cache_bytes=0.0, storage=Storage(read_bytes_per_s=1e12, write_bytes_per_s=1e8))
    made = predict(replace(fast, prep_s=0.01, cores=8, sharing_loss=loss), 5_000.0)
    assert made.recommended_workers == 8  # fewer leave cores idle, with more each gets less of one


def test_jobs_that_share_prepare_once():
    apart = predict(replace(SLOW, jobs=4, storage=Storage(read_bytes_per_s=1e9, write_bytes_per_s=1e9)), 1e5)
    together = predict(
        replace(SLOW, jobs=4, coordinated=True, storage=Storage(read_bytes_per_s=1e9, write_bytes_per_s=1e9)), 1e5
    )
    assert together.samples_per_s / apart.samples_per_s == approx(4, rel=0.2)
    assert together.read_bytes_per_epoch == approx(apart.read_bytes_per_epoch / 4)


def test_caches_of_several_nodes_fill_over_several_epochs_which_is_told():
    loading = replace(SLOW, dataset=Dataset(samples=4_000, sample_bytes=1e5), cache_bytes=2.8e8)
    made, reads = predict(loading, 1e6, nodes=4), FileByFile(loading, 4, seed=0)
    hits = [reads.take(1_000).local / 1_000 for _ in range(8)]
    assert hits[1] == approx(0.25, abs=0.04) and hits[-1] == approx(made.hit_fraction, abs=0.04)
    assert any("takes several epochs" in line for line in made.assumptions)
    assert not any("several epochs" in line for line in predict(loading, 1e6).assumptions)


def test_partitioned_nodes_read_storage_less():
    nodes = {"nodes": 2, "network_bytes_per_s": 1e9}
    alone, parted = (predict(replace(SLOW, cache=c, cache_bytes=6e9), 1_500.0, **nodes) for c in ("lru", "partitioned"))
    assert parted.read_bytes_per_epoch == approx(0, abs=1)
    assert parted.remote_fraction == approx(0.5)
    assert parted.samples_per_s > alone.samples_per_s


@pytest.mark.parametrize(
    "changes, path",
    [
        ({"compute_samples_per_s": 0.0}, "compute_samples_per_s"),
        ({"nodes": 0}, "nodes"),
        ({"network_bytes_per_s": -1.0}, "network_bytes_per_s"),
        ({"loading": replace(SLOW, cache="partitioned"), "nodes": 2}, "network_bytes_per_s"),
    ],
)
def test_bad_input_is_told(changes, path):
    with pytest.raises(InputError) as caught:
        predict(**({"loading": SLOW, "compute_samples_per_s": 100.0} | changes))
    assert caught.value.path == path
