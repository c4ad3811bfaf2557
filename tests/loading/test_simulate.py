"""Processes and laws agree; what is simulated keeps its own rules."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx, mark

from sim.loading import Loader, predict, simulate
from sim.loading.reads import FileByFile
from sim.specs import InputError
from sim.specs.dataset import Dataset
from sim.specs.loading import Loading
from sim.specs.storage import Storage
from tests.full import FULL

DATA = Dataset(samples=8_000, sample_bytes=1e5)


def disk(rate, latency=0.0):
    return Storage(read_bytes_per_s=rate, write_bytes_per_s=rate, latency_s=latency)


def pipeline(cached=0.0, policy="minio", **given):
    usual = {"dataset": DATA, "storage": disk(4e8, 1e-3), "prep_s": 0.002, "workers": 4, "cores": 2}
    held = {"cache": policy, "cache_bytes": cached * DATA.size_bytes} if cached else {}
    return Loading(**(usual | held | given))


GRID = [
    *({"cached": x, "workers": w, "cores": c} for x, w, c in product((0.0, 0.6), (1, 3, 8), (1, 4))),
    *({"cached": 0.6, "policy": p} for p in ("lru", "partitioned")),
    *({"storage": s, "workers": 8} for s in (disk(1e8), disk(1e9, 5e-3))),
    *({"trainer_cores": 1, "cores": c, "workers": w} for c, w in ((1, 2), (2, 2), (3, 8))),
    *({"handover_s": h, "workers": w} for h, w in ((0.001, 4), (0.01, 4), (1e-4, 8))),
    *({"handover_s": 0.001, "sharing_loss": loss, "trainer_cores": n, "cores": 4} for loss, n in ((0.2, 0), (0.0, 2))),
    {"handover_s": 0.001, "jobs": 2, "cores": 8},
    *({"jobs": 2, "coordinated": shared, "cached": 0.3, "policy": "lru", "cores": 4} for shared in (False, True)),
]


@pytest.mark.slow
@mark.parametrize(
    ("given", "topology", "most_off"),
    [
        *((one, "serial", 0.05) for one in GRID[:: 1 if FULL else 2]),
        *((one, "staged", 0.03) for one in GRID[:: 1 if FULL else 3]),
    ],
    ids=str,
)
def test_processes_and_laws_agree(given, topology, most_off):
    loading = pipeline(**given, topology=topology)
    for compute in (400.0, 5_000.0):
        law = predict(loading, compute)
        found = simulate(loading, compute, batch=16)
        assert found.samples_per_s == approx(law.samples_per_s, rel=most_off)
        assert found.fetch_stall_fraction == approx(law.fetch_stall_fraction, abs=0.06)
        assert found.prep_stall_fraction == approx(law.prep_stall_fraction, abs=0.06)


@mark.parametrize("given", [{"handover_s": 0.001}, {"sharing_loss": 0.2}, {"handover_s": 0.01, "workers": 1}], ids=str)
def test_what_a_core_is_needed_for_besides_is_in_both(given):
    loading = pipeline(**given)
    law, found = predict(loading, 5_000.0), simulate(loading, 5_000.0, batch=16)
    assert found.samples_per_s == approx(law.samples_per_s, rel=0.03)
    assert law.samples_per_s < 0.9 * predict(replace(loading, handover_s=0.0, sharing_loss=0.0), 5_000.0).samples_per_s


def test_nodes_of_a_partitioned_cache_agree_with_the_law():
    loading = pipeline(0.4, "partitioned", workers=2)
    nodes = {"nodes": 2, "network_bytes_per_s": 5e7}
    assert simulate(loading, 5e3, 16, **nodes).samples_per_s == approx(
        predict(loading, 5e3, **nodes).samples_per_s, 0.05
    )


def test_how_far_it_is_is_told():
    shares = []
    told = simulate(pipeline(), 5e3, 16, epochs=2, progress=shares.append)
    assert told == simulate(pipeline(), 5e3, 16, epochs=2)
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] > 0.97 and 80 < len(shares) < 110
    assert any(0.4 < share < 0.6 for share in shares)


def test_file_by_file_hits_are_counted():
    loading = pipeline(0.5, "minio")
    found = simulate(loading, 1e4, 16, epochs=3, exact=True)
    later = found.counts.hits + found.counts.misses - 8_000  # workers are ahead of the last epoch
    assert found.counts.hits == approx(later / 2, abs=20)
    assert found.counts.read_bytes == approx(found.counts.misses * 1e5)
    expected = simulate(loading, 1e4, 16, epochs=3)
    assert found.samples_per_s == approx(expected.samples_per_s, rel=0.02)
    lru = simulate(pipeline(0.5, "lru"), 1e4, 16, epochs=4, exact=True)
    assert lru.counts.hits / 24_000 == approx(predict(pipeline(0.5, "lru"), 1e4).hit_fraction, abs=0.02)


def test_every_file_is_read_once_an_epoch():
    reads = FileByFile(pipeline(0.5), 1, seed=3)
    for _ in range(8_000 * 2 // 50):
        reads.take(50)
    assert sorted(reads.items[:8_000]) == sorted(reads.items[8_000:]) == list(range(8_000))
    assert reads.items[:8_000] != reads.items[8_000:]


def test_the_first_epoch_is_slower_and_the_same_seed_is_the_same_run():
    loading = pipeline(0.9, storage=disk(5e7), workers=8)
    found = simulate(loading, 5e3, 16)
    assert len(found.epoch_samples_per_s) == 3
    assert found.epoch_samples_per_s[0] < 0.6 * found.epoch_samples_per_s[1]
    assert found == simulate(loading, 5e3, 16)
    assert found != simulate(loading, 5e3, 16, seed=1)


def test_seconds_stand_in_for_epochs():
    found = simulate(pipeline(), 1e4, 16, seconds=2.0)
    assert found.seconds == approx(2.0)
    assert found.samples_per_s == approx(predict(pipeline(), 1e4).samples_per_s, rel=0.05)


def test_spans_are_of_one_worker_at_a_time():
    found = simulate(pipeline(workers=3), 1e4, 16, epochs=1)
    for worker in range(3):
        own = sorted((s for s in found.spans if s.worker == worker), key=lambda s: s.start_ns)
        assert {s.kind for s in own} == {"fetch", "prep"}
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(own))


def test_no_more_batches_are_ahead_than_may_be():
    env = simpy.Environment()
    loader = Loader(env, pipeline(workers=2, prefetch=3), batch=10)
    env.run(until=10**10)
    assert loader.counts.misses == 2 * 3 * 10
    taken = [loader.take() for _ in range(2)]
    env.run(until=2 * 10**10)
    assert all(event.processed for event in taken)
    assert loader.counts.batches == 2
    assert loader.counts.misses == (2 * 3 + 2) * 10


@pytest.mark.slow
@settings(max_examples=12 if FULL else 4, deadline=None)
@given(
    st.sampled_from([0.2, 0.7]), st.integers(1, 6), st.integers(1, 6), st.sampled_from([5e7, 5e8]),
    st.sampled_from(["serial", "staged"]),
)  # fmt: skip
def test_no_bound_is_passed_and_more_is_not_slower(cached, workers, cores, rate, topology):
    loading = pipeline(cached, workers=workers, cores=cores, storage=disk(rate), topology=topology)
    law, found = predict(loading, 2e3), simulate(loading, 2e3, 16)
    assert found.samples_per_s <= 1.03 * min(law.fetch_samples_per_s, law.prep_samples_per_s, 2e3)
    for better in (
        replace(loading, cores=2 * cores),
        replace(loading, cache_bytes=1.3 * loading.cache_bytes),
        replace(loading, storage=disk(2 * rate)),
    ):
        assert simulate(better, 2e3, 16).samples_per_s >= 0.97 * found.samples_per_s
        assert predict(better, 2e3).samples_per_s >= law.samples_per_s * (1 - 1e-9)


@pytest.mark.parametrize(
    "given, path",
    [({"batch": 0}, "batch"), ({"epochs": 0}, "epochs"), ({"seconds": 0.0}, "seconds"), ({"seconds": 1e-6}, "seconds")],
)
def test_bad_input_is_told(given, path):
    with pytest.raises(InputError) as caught:
        simulate(pipeline(), 100.0, **({"batch": 16} | given))
    assert caught.value.path == path
