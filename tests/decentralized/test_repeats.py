"""Rounds that are alike are not run again: nothing that is told may differ by it."""

import pytest

from sim.decentralized import KNOBS, Decentralized, Failure, Wan, law, simulate
from sim.decentralized.simulate import _Run
from sim.engine.clock import to_ticks
from tests.decentralized.toys import fitted, small

STEPS = 1_500
WAN = Wan(partitions=3, latency_s=0.07, uplink_bytes_per_s=(2e7, 1e7, 3e7))


def trained(algorithm: str, **more: object) -> Decentralized:
    theta = 7.0 if algorithm in ("fedavg", "diloco") else KNOBS[algorithm].thetas[-1]
    return small(algorithm=algorithm, theta=theta, steps=STEPS, wan=WAN, step_s=(0.1, 0.2, 0.1)).with_(**more)


def both(monkeypatch, setting, model=None):
    """Return a training with rounds that repeat, and with every round run."""
    found = simulate(setting, model)
    with monkeypatch.context() as patched:
        patched.setattr(_Run, "_repeats", False)
        return found, simulate(setting, model)


@pytest.mark.parametrize("algorithm", KNOBS)
@pytest.mark.parametrize("travel_every", [0, 250])
def test_repeated_rounds_are_like_those_that_are_run(monkeypatch, algorithm, travel_every):
    setting = trained(algorithm, travel_every=travel_every, warm_up_steps=100)
    found, run = both(monkeypatch, setting)
    assert found == run
    said = law(setting)
    assert (to_ticks(found.seconds), found.traffic_bytes, found.exchanges) == (
        said.ticks,
        said.traffic_bytes,
        said.exchanges,
    )


def test_also_where_theta_moves(monkeypatch):
    model = fitted("fedavg")
    found, run = both(monkeypatch, small(controller="annealing", steps=8_000, travel_every=130, skew=1.0), model)
    assert found == run
    assert len(found.thetas) > 5


def test_few_rounds_are_run(monkeypatch):
    rounds, original = [], _Run._round
    monkeypatch.setattr(_Run, "_round", lambda run: rounds.append(run.step) or original(run))
    assert simulate(trained("bsp", theta=1.0, steps=100_000)).exchanges == 100_000
    assert len(rounds) < 300


@pytest.mark.parametrize("change", [{"jitter": 0.1}, {"failures": (Failure(partition=1, at_s=300.0),)}])
def test_where_something_happens_every_round_is_run(monkeypatch, change):
    rounds, original = [], _Run._round
    monkeypatch.setattr(_Run, "_round", lambda run: rounds.append(run.step) or original(run))
    assert simulate(trained("bsp", theta=1.0, steps=400, **change)).exchanges == len(rounds) == 400
