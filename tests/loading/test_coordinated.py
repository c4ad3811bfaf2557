"""Coordinated jobs use every minibatch exactly once each, whoever dies."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx

from sim.loading import predict, simulate_coordinated
from sim.specs import InputError
from sim.specs.dataset import Dataset
from sim.specs.loading import Loading

SHARED = Loading(
    dataset=Dataset(samples=1_000, sample_bytes=1e5), prep_s=0.01, workers=2, cores=4, jobs=3, coordinated=True
)
ALL = set(range(100))


def test_every_job_uses_every_minibatch_once():
    found = simulate_coordinated(SHARED, 300.0, batch=10)
    assert all(len(used) == 100 and set(used) == ALL for used in found.used)
    assert sum(found.prepared) == 100
    assert found.taken_over == 0
    assert found.samples_per_s == approx(predict(SHARED, 300.0).samples_per_s, rel=0.1)


def test_a_dead_jobs_shard_is_taken_over():
    found = simulate_coordinated(SHARED, 300.0, batch=10, deaths={1: 1.0})
    for job in (0, 2):
        assert len(found.used[job]) == 100 and set(found.used[job]) == ALL
    assert len(found.used[1]) < 100
    assert found.taken_over > 0
    assert sum(found.prepared) == 100


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.integers(0, 2), st.floats(0.0, 6.0), max_size=2), st.integers(0, 5), st.floats(0.0, 2.0))
def test_survivors_miss_nothing_whenever_jobs_die(deaths, seed, noticed_s):
    found = simulate_coordinated(SHARED, 250.0, batch=10, deaths=deaths, noticed_s=noticed_s, seed=seed)
    for job in set(range(3)) - set(deaths):
        assert len(found.used[job]) == 100 and set(found.used[job]) == ALL
    assert all(len(set(used)) == len(used) for used in found.used)
    assert found.most_staged <= 3 * SHARED.workers * SHARED.prefetch


def test_bad_input_is_told():
    alone = Loading(dataset=SHARED.dataset)
    for changes, path in (
        ({"loading": alone}, "loading.coordinated"),
        ({"epochs": 0}, "epochs"),
        ({"deaths": {7: 1.0}}, "deaths"),
        ({"deaths": {0.5: 1.0}}, "deaths"),
        ({"deaths": {1: -1.0}}, "deaths.1"),
        ({"deaths": {1: float("nan")}}, "deaths.1"),
        ({"noticed_s": float("inf")}, "noticed_s"),
    ):
        with pytest.raises(InputError) as caught:
            simulate_coordinated(**({"loading": SHARED, "compute_samples_per_s": 1.0, "batch": 10} | changes))
        assert caught.value.path == path


def test_where_all_die_at_once_nothing_is_trained():
    found = simulate_coordinated(SHARED, 300.0, batch=10, deaths=dict.fromkeys(range(3), 0.0))
    assert (found.samples_per_s, found.seconds) == (0.0, 0.0)
