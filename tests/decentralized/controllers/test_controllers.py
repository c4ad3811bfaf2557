from itertools import pairwise

import numpy as np
import pytest

from sim.decentralized import CONTROLLERS, Objective, Observation, controller
from sim.specs.fields import InputError
from tests.contracts.controller import THETAS, ControllerContract

for _name in CONTROLLERS:
    _laws = {"name": _name, "moves": _name != "fixed"}
    _made = type("Test" + _name.title().replace("_", ""), (ControllerContract,), _laws)
    globals()[_made.__name__] = _made


def test_an_unknown_controller_is_refused():
    with pytest.raises(InputError, match=r"controller: got 'hil_climbing'; allowed: one of fixed, hill_climbing"):
        controller("hil_climbing", THETAS, Objective())
    with pytest.raises(InputError, match="thetas"):
        controller("fixed", (), Objective())


def way(name, losses, first, seed=0, count=6):
    """Return the thetas that a controller trains with where each theta loses what is said."""
    held = controller(name, THETAS, Objective(), seed, first)
    gone = []
    for _ in range(count):
        gone.append(held.theta)
        held.observe(Observation(held.theta, losses[held.theta], 1e6 / held.theta, 1e6))
    return gone


def losing_from(edge):
    return {theta: 0.2 if theta > edge else 0.0 for theta in THETAS}


def test_hill_climbing_goes_on_until_it_gets_worse_and_remembers():
    gone = way("hill_climbing", losing_from(50), first=1, count=8)
    assert gone == [10, 20, 50, 100, 50, 100, 50, 50]


def test_hill_climbing_turns_where_a_looser_theta_is_worse():
    assert way("hill_climbing", losing_from(20), first=2, count=8) == [20, 50, 20, 50, 20, 10, 50, 20]


def test_what_loses_too_much_leads_to_more_traffic():
    for name in ("hill_climbing", "stochastic_hill_climbing", "annealing"):
        assert way(name, losing_from(10), first=5, count=9) == [200, 200, 100, 100, 50, 50, 20, 20, 10]


def test_what_loses_too_much_but_ever_less_is_kept():
    for name in ("hill_climbing", "stochastic_hill_climbing", "annealing"):
        held = controller(name, THETAS, Objective(), first=3)
        for n in range(12):
            held.observe(Observation(held.theta, 0.5 * 0.8**n, 2e4, 1e6))
            assert held.theta == 50 or 0.5 * 0.8**n < 0.05


def test_a_looser_theta_is_tried_again_ever_less_often():
    gone = way("hill_climbing", losing_from(100), first=4, count=60)
    tries = [n for n, theta in enumerate(gone) if theta == 200]
    between = [b - a for a, b in pairwise(tries)]
    assert between == sorted(set(between))
    assert tries == [1, 3, 6, 11, 20, 37]


def test_chance_decides_of_stochastic_hill_climbing_and_annealing():
    for name in ("stochastic_hill_climbing", "annealing"):
        assert len({tuple(way(name, losing_from(50), 2, seed)) for seed in range(8)}) > 1
    assert len({tuple(way("hill_climbing", losing_from(50), 2, seed)) for seed in range(8)}) == 1


def test_one_bad_draw_is_not_a_loss_but_many_are():
    held = controller("hill_climbing", THETAS, Objective(), first=5)
    for lost in (0.045, 0.03, 0.045, 0.045, 0.055):  # the second one of theta 100
        last = held.observe(Observation(held.theta, lost, 1e6 / held.theta, 1e6))
    assert last == 200
    assert held.observe(Observation(200.0, 0.08, 5e3, 1e6)) == 100


def test_it_ends_with_a_looser_theta_only_when_that_is_sure_to_be_borne():
    held, ends, random = controller("hill_climbing", THETAS, Objective(), first=3), [], np.random.default_rng(0)
    for _ in range(12):
        lost = {50.0: 0.02, 100.0: 0.04}.get(held.theta, 0.09) + 0.004 * random.standard_normal()
        held.observe(Observation(held.theta, lost, 1e6 / held.theta, 1e6))
        ends.append((THETAS[held.home], held.settled))
    assert ends[1:4] == [(100, 50)] * 3
    assert ends[-1] == (100, 100)
