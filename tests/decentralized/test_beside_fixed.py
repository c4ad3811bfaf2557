"""What a controller costs beside the best fixed theta, of the toy whose thetas lose what is known."""

import pytest

from sim.decentralized import Change, Objective, Wan, beside_fixed, law, simulate
from sim.specs.fields import InputError
from tests.decentralized.toys import fitted, small

MODEL = fitted(sigma=1e-4)
RUN = small(controller="hill_climbing", steps=4_000, travel_every=400, skew=1.0)


def test_the_best_theta_is_the_loosest_that_is_borne() -> None:
    found = beside_fixed(RUN, MODEL, (0, 3))
    assert found.best_theta == 10.0  # its neighbour, 20, loses 0.057
    best = law(RUN.with_(controller="fixed", theta=10.0, travel_every=0)).traffic_bytes
    each = [simulate(RUN.with_(seed=seed), MODEL) for seed in (0, 3)]
    assert found.times == tuple(one.traffic_bytes / best for one in each)
    assert found.final_thetas == tuple(one.final_theta for one in each)
    assert found.savings == tuple(one.saving for one in each)
    assert found.bearable == (True, True)


def test_where_no_theta_is_borne_there_is_no_best() -> None:
    strict = RUN.with_(objective=Objective(tolerated=0.0))
    found = beside_fixed(strict, fitted(lose=lambda *_: 0.2), (0,))
    assert (found.best_theta, found.times, found.bearable) == (None, (), (False,))


def test_links_that_change_have_no_closed_form() -> None:
    with pytest.raises(InputError, match="wan"):
        beside_fixed(RUN.with_(wan=Wan(changes=[Change(at_s=1.0, factor=0.5)])), MODEL)
