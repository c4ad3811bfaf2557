"""Differential phases, on a clock that loaders and trainers move."""

import pytest

from calibration.loading import phases
from calibration.loading.phases import Phases, differential, pace
from sim.specs.fields import InputError


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(phases, "perf_counter", lambda: now[0])
    return now


class Waiting:
    """So many batches, each after a wait; `begun` counts iterations."""

    def __init__(self, clock, wait_s, batches=100, first_s=0.0):
        self.clock, self.wait_s, self.batches, self.first_s, self.begun = clock, wait_s, batches, first_s, 0

    def __iter__(self):
        self.begun += 1
        self.clock[0] += self.first_s
        for number in range(self.batches):
            self.clock[0] += self.wait_s
            yield number


def trainer(clock, seconds):
    def train(batch):
        clock[0] += seconds

    return train


def test_stalls_are_differences_of_phases(clock):
    cold, cached = Waiting(clock, 0.5, first_s=9.0), Waiting(clock, 0.2)
    found = differential(cold, cached, trainer(clock, 0.3), samples=8, batches=10, warm=2)
    assert found.compute_s == pytest.approx(0.3)
    assert found.cached_s == pytest.approx(0.5)
    assert found.overall_s == pytest.approx(0.8)
    assert found.prep_s == pytest.approx(0.2)
    assert found.samples_per_s == pytest.approx(10)
    assert found.prep_samples_per_s == pytest.approx(40)
    assert found.compute_samples_per_s == pytest.approx(8 / 0.3)
    assert found.prep_stall_fraction == pytest.approx(0.2 / 0.8)
    assert found.fetch_stall_fraction == pytest.approx(0.3 / 0.8)
    assert (cold.begun, cached.begun) == (1, 3)


def test_each_phase_is_told_before_it(clock):
    said = []
    once = trainer(clock, 0.1)
    differential(Waiting(clock, 0.1), Waiting(clock, 0.1), once, samples=8, batches=10, warm=2, told=said.append)
    names = ("1 of 4, the trainer alone", "2 of 4, all files cached", "3 of 4, as it is", "4 of 4, no trainer")
    assert said == [f"phase {name}: 12 batches" for name in names]


def test_noise_is_no_stall():
    found = Phases(samples=1, compute_s=1.0, cached_s=0.99, overall_s=0.98, prep_s=0.5)
    assert (found.prep_stall_fraction, found.fetch_stall_fraction) == (0.0, 0.0)


def test_what_comes_first_is_not_timed(clock):
    assert pace(iter(Waiting(clock, 0.1, first_s=50)), trainer(clock, 0.0), timed=5, warm=1) == pytest.approx(0.1)


@pytest.mark.parametrize(("cold", "cached", "path"), [(3, 100, "cold"), (100, 3, "cached"), (100, 0, "cached")])
def test_iterables_that_end_too_early(clock, cold, cached, path):
    with pytest.raises(InputError) as error:
        differential(Waiting(clock, 0.1, cold), Waiting(clock, 0.1, cached), trainer(clock, 0.1), 1, 4)
    assert error.value.path == path


@pytest.mark.parametrize("name", ["samples", "batches", "warm"])
def test_numbers_below_one(clock, name):
    with pytest.raises(InputError) as error:
        differential([1], [1], trainer(clock, 0.1), **{"samples": 1, "batches": 1, "warm": 1, name: 0})
    assert error.value.path == name
