"""Real runs of processes beside their prediction."""

from dataclasses import replace

import pytest

from calibration.federated import compare
from calibration.federated.compare import Pace, compared, plus, predicted
from calibration.federated.setting import Setting
from calibration.federated.train import train
from sim.decentralized import KNOBS, Communication, Objective, controller
from sim.specs.fields import InputError

SETTING = Setting(partitions=2, steps=60, travel_every=10, skew=1.0)
AT_ONCE = Pace(0.0, 0.0, 0.0, 0.0)
BYTES_PER_S, LATENCY_S = 1e6, 0.01


def moves(algorithm, first=-1):
    """Return a new controller of an algorithm."""
    thetas = KNOBS[algorithm].thetas
    return controller("hill_climbing", thetas, Objective(), 3, first % len(thetas))


def test_a_controlled_run_is_simulated_theta_for_theta_and_byte_for_byte():
    found = compared(
        SETTING, Communication(algorithm="fedavg", theta=5.0), BYTES_PER_S, LATENCY_S, AT_ONCE, moves("fedavg")
    )
    assert found.thetas_equal
    assert found.bytes_equal
    assert len(set(found.predicted.thetas)) > 1
    assert found.error_percent < 0  # its links alone


def test_a_controller_weighs_what_dgc_sends_while_it_warms_up():
    setting = replace(SETTING, batch=50, steps=40)
    run = train(setting, Communication(algorithm="dgc", theta=0.999), moves("dgc"))
    said = predicted(setting, run, BYTES_PER_S, LATENCY_S, AT_ONCE, moves("dgc"))
    assert len({travel.sent_bytes for travel in run.travels}) > 2
    assert said.thetas == tuple(travel.theta for travel in run.travels)
    assert said.traffic_bytes == run.traffic_bytes


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", KNOBS)
def test_every_byte_of_every_algorithm_is_predicted(algorithm):
    run = train(replace(SETTING, partitions=3), Communication(algorithm=algorithm, theta=KNOBS[algorithm].thetas[0]))
    said = predicted(replace(SETTING, partitions=3), run, BYTES_PER_S, LATENCY_S, AT_ONCE)
    assert said.traffic_bytes == run.traffic_bytes
    assert said.thetas == (run.thetas[0],) * 6


def test_time_is_that_of_steps_exchanges_travels_and_the_start():
    run = train(SETTING, Communication(algorithm="fedavg", theta=20.0))
    links = predicted(SETTING, run, BYTES_PER_S, LATENCY_S, AT_ONCE).seconds
    each = 4 * run.state_values / BYTES_PER_S + LATENCY_S
    assert links == pytest.approx((3 + 6) * each, rel=1e-6)
    slow = predicted(SETTING, run, BYTES_PER_S, LATENCY_S, Pace(0.1, 0.02, 0.03, 0.5)).seconds
    assert slow - links == pytest.approx(60 * 0.1 + 3 * 0.02 + 6 * 0.03 + 0.5, rel=1e-6)


@pytest.mark.slow
def test_what_gaia_sends_at_another_theta_is_not_known_before():
    run = train(SETTING, Communication(algorithm="gaia", theta=0.1))
    with pytest.raises(InputError, match="controller: got 'hill_climbing'"):
        predicted(SETTING, run, BYTES_PER_S, LATENCY_S, AT_ONCE, moves("gaia"))


@pytest.mark.slow
def test_the_pace_of_a_machine_adds_up(monkeypatch):
    """Processes that take what is said: 2 ms a step, 3 ms an exchange, 5 ms a travel, 70 ms more at first."""

    def trained(setting, communication, **links):
        run = train(replace(setting, steps=setting.steps), communication)
        exchanged, travelled = {one.step for one in run.exchanges}, {one.step for one in run.travels}
        latency = links["latency_s"]
        step_s = tuple(
            0.002
            + 0.07 * (step == 1)
            + (0.003 + latency) * (step in exchanged)
            + (0.005 + latency) * (step in travelled)
            for step in range(1, run.steps + 1)
        )
        return type("Done", (), {"run": replace(run, step_s=step_s, seconds=sum(step_s))})

    monkeypatch.setattr(compare, "train_processes", trained)
    monkeypatch.setattr(compare, "LOCAL_STEPS", 100)
    local = Pace.measured(SETTING, Communication(algorithm="diloco", theta=20.0))
    assert (local.step_s, local.exchange_s, local.travel_s) == pytest.approx((0.002, 0.003, 0.005))
    assert local.start_s == pytest.approx(0.07)
    each = Pace.measured(replace(SETTING, travel_every=100), Communication(algorithm="bsp"))
    assert each.step_s + each.exchange_s == pytest.approx(0.005)
    assert each.travel_s == 0


def test_latencies_grow_in_a_number_and_in_a_matrix():
    assert plus(0.1, 0.2) == pytest.approx(0.3)
    assert plus(((0.0, 1.0), (2.0, 0.0)), 0.5) == ((0.5, 1.5), (2.5, 0.5))
