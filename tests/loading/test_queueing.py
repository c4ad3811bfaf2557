"""The closed network is the exact one of its kind, and never faster than what bounds it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx, mark

from sim.loading.queueing import Network, beside_trainer, throughput


def repairmen(workers, cores, delay_s, core_s):
    """Return samples/s of workers and cores alone, by the balance of births and deaths."""
    p = [1.0]
    for n in range(1, workers + 1):
        p.append(p[-1] * (workers - n + 1) / delay_s * core_s / min(n, cores))
    return sum(min(n, cores) * held for n, held in enumerate(p)) / sum(p) / core_s


@mark.parametrize("workers, cores", [(1, 1), (2, 1), (3, 2), (4, 2), (24, 3), (8, 16)])
def test_workers_and_cores_are_the_repairmen_of_the_textbook(workers, cores):
    for delay in (0.1, 1.0, 5.0):
        assert throughput(Network(delay, (), 2.0, cores), workers) == approx(repairmen(workers, cores, delay, 2.0))


def test_one_worker_takes_the_sum():
    assert throughput(Network(1.0, (2.0, 0.5), 3.0, 4), 1) == approx(1 / 6.5)


def test_thousands_of_workers_take_all_there_is():
    assert throughput(Network(1.0, (0.01,), 1.0, 30.0), 4_096) == approx(30.0)
    assert throughput(Network(1.0, (), 1.0, 3_000.0), 2_048) == approx(1_024.0)


def test_settings_broadcast():
    workers, cores = np.array([1, 4, 9]), np.array([[1.0], [3.0]])
    made = throughput(Network(0.5, (0.1,), 1.0, cores), workers)
    assert made.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        assert made[i, j] == approx(float(throughput(Network(0.5, (0.1,), 1.0, cores[i, 0]), workers[j])))


positive = st.floats(0.01, 10)


@mark.slow
@settings(max_examples=40)
@given(positive, positive, positive, st.integers(1, 8), st.integers(1, 12), st.integers(0, 2), positive)
def test_no_bound_is_passed_and_more_is_never_slower(delay, disk, core, cores, workers, trainer, most):
    def rate(**changes):
        at = {"delay": delay, "disk": disk, "core": core, "cores": cores, "workers": workers, "trainer": trainer}
        at |= changes
        network = Network(at["delay"], (at["disk"],), at["core"], at["cores"], at["trainer"])
        return float(beside_trainer(network, at["workers"], most))

    slack = 1 + 1e-6
    bounds = [most, workers / (delay + disk + core), 1 / disk, cores / (core + trainer / most)]
    assert rate() <= min(bounds) * slack
    for better in ({"delay": delay / 2}, {"disk": disk / 2}, {"core": core / 2}, {"cores": cores + 1}, {"trainer": 0}):
        assert rate(**better) * slack >= rate(), better


def test_one_core_for_worker_and_trainer_is_divided_by_what_both_need():
    for most in (0.5, 1.0, 4.0):
        made = beside_trainer(Network(0.0, (), 1.0, 1.0, 1.0), 1, most)
        assert made == approx(1 / (1 + 1 / most), rel=1e-6)
