"""How often a run fails and has its nodes: by hand, by Erlang's formula, and by a chain solved with linear algebra."""

import numpy as np
import pytest

import sim
from sim.checkpointing import Fleet, availability, mtbf_s
from sim.specs import Cluster, Failures, InputError

HOUR = 3_600.0


def failures(**given):
    return Failures(**{"device_mtbf_s": 1e6, "restart_s": 60.0, "repair_s": 24 * HOUR} | given)


def test_devices_are_in_series_and_nodes_fail_beside_them():
    assert mtbf_s(failures(), 16, 2) == 1e6 / 16
    assert mtbf_s(failures(node_mtbf_s=5e5), 16, 2) == pytest.approx(1 / (16 / 1e6 + 2 / 5e5))
    assert mtbf_s(Failures(), 16_384, 2_048) * 419 == pytest.approx(54 * 86_400)  # the published run


@pytest.mark.parametrize("spares", [0, 1, 3, 20])
def test_without_elasticity_it_stops_as_erlangs_formula_says(spares):
    load = 24 * HOUR / (8 * HOUR)
    blocked = 1.0
    for n in range(1, spares + 2):
        blocked = load * blocked / (n + load * blocked)
    found = availability(failures(spares=spares), 8 * HOUR, Fleet(16, 4))
    assert found.stopped_fraction == pytest.approx(blocked)
    assert found.fraction == pytest.approx(1 - blocked)
    assert found.mean_broken == pytest.approx(load * (1 - blocked))


def test_the_chain_with_elasticity_is_that_of_its_rates():
    """The stationary distribution of births and deaths, from the rates' matrix."""
    given, fleet, mtbf = failures(elastic=True, spares=1), Fleet(4, 4), 30 * HOUR
    shares = np.array([1, 1, 0.75, 0.5, 0.25, 0])
    rates = np.zeros((6, 6))
    for n in range(5):
        rates[n, n + 1] = shares[n] / mtbf
        rates[n + 1, n] = (n + 1) / given.repair_s
    rates -= np.diag(rates.sum(axis=1))
    chain = np.linalg.lstsq(np.vstack([rates.T, np.ones(6)]), np.array([0.0] * 6 + [1.0]), rcond=None)[0]
    found = availability(given, mtbf, fleet)
    assert found.fraction == pytest.approx(chain @ shares)
    assert found.stopped_fraction == pytest.approx(chain[5])
    restarting = availability(given, mtbf, fleet, restart_s=600.0)
    means = [mtbf / share for share in shares[:5]]
    often = {n: (n / given.repair_s) / (1 + (1 + n / given.repair_s * means[n]) * np.expm1(600 / means[n]))
             for n in (2, 3, 4)}  # fmt: skip
    down = {n - 1: chain[n] * often[n] * means[n - 1] * np.expm1(600 / means[n - 1]) for n in often}
    assert restarting.regrown_fraction == pytest.approx(sum(down.values()))
    assert restarting.fraction == pytest.approx(chain @ shares - sum(down[n] * shares[n] for n in down))


@pytest.mark.parametrize("restart_s", [1e3, 1e4, 1e6])
def test_restarts_that_hardly_ever_end_take_no_more_than_all_of_the_time(restart_s):
    found = availability(failures(elastic=True, repair_s=1e7), 100.0, Fleet(8, 8), restart_s)
    assert 0 <= found.fraction < 1
    assert 0 <= found.regrown_fraction <= 1 - found.stopped_fraction


def test_replicas_that_are_left():
    fleet, elastic = Fleet(nodes=8, replicas=4), failures(elastic=True, spares=1)
    assert [fleet.left(broken, elastic) for broken in range(6)] == [4, 4, 3, 3, 2, 2]  # two nodes a replica
    assert [fleet.left(broken, failures(spares=1)) for broken in range(3)] == [4, 4, 0]
    assert Fleet(nodes=2, replicas=8).left(1, failures(elastic=True)) == 4
    assert Fleet(nodes=2, replicas=1).left(1, failures(elastic=True)) == 0


def test_nothing_is_lost_where_nothing_is_repaired():
    assert availability(failures(repair_s=0.0), 1.0).fraction == 1.0


@pytest.mark.parametrize("repair_s", [0.0, 60.0])
def test_nodes_that_are_back_before_training_goes_on_cost_no_second_restart(repair_s):
    given, fleet = failures(elastic=True, repair_s=repair_s), Fleet(8, 8)
    found = availability(given, 10 * HOUR, fleet, restart_s=60.0)
    assert found.regrown_fraction == 0
    assert found.fraction >= availability(failures(repair_s=repair_s), 10 * HOUR, fleet, 60.0).fraction
    assert availability(failures(elastic=True, repair_s=61.0), 10 * HOUR, fleet, 60.0).regrown_fraction > 0


def test_a_fleet_of_a_plan():
    plan = sim.Plan(tp=8, pp=2, global_batch=64)
    step = sim.simulate(sim.models["llama3-70b"], Cluster.of("h100-sxm-80gb", nodes=8), plan)
    assert Fleet.of(step) == Fleet(nodes=8, replicas=4)
    with pytest.raises(InputError, match="replicas: got 0"):
        Fleet(replicas=0)
