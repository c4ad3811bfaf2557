"""What every controller of theta must satisfy. A newcomer subclasses this and names itself."""

import numpy as np
import pytest

from sim.decentralized import KNOBS, Objective, Observation, controller
from sim.specs.fields import InputError

THETAS = KNOBS["fedavg"].thetas
SEEDS = range(5)
ENOUGH = 40
"""Observations after which a controller has found its theta."""
NOISE = 0.003
OBJECTIVE = Objective()


def seen(theta, lost, random=None):
    """Return what a stretch with a period of theta shows: its traffic, and an accuracy loss with or without noise."""
    noise = NOISE * random.standard_normal() if random else 0.0
    return Observation(theta, lost(theta) + noise, 1e6 / theta, 1e6)


def steps_up(edge):
    """Return losses that are borne up to a theta, with a margin over noise, and beyond it never."""
    return lambda theta: 0.03 if theta <= edge else 0.09 + 0.0002 * theta


class ControllerContract:
    """Laws of any controller."""

    name: str
    moves = True

    def make(self, seed=0, first=None, objective=OBJECTIVE):
        return controller(self.name, THETAS, objective, seed, first)

    def walk(self, lost, seed=0, first=None, noisy=True, count=ENOUGH):
        """Return the controller after so many observations, and the thetas it trained with."""
        held, random, gone = self.make(seed, first), np.random.default_rng(seed + 100), []
        for _ in range(count):
            gone.append(held.theta)
            assert held.observe(seen(held.theta, lost, random if noisy else None)) == held.theta
        return held, gone

    def test_it_stays_on_the_list(self):
        for seed in SEEDS:
            random = np.random.default_rng(seed)
            _, gone = self.walk(lambda _, r=random: 0.1 * r.random(), seed, count=200)
            assert set(gone) <= set(THETAS)

    def test_the_same_seed_gives_the_same_way(self):
        for seed in SEEDS:
            assert self.walk(steps_up(20), seed)[1] == self.walk(steps_up(20), seed)[1]

    def test_it_begins_where_it_is_told(self):
        assert [self.make(first=n).theta for n in range(len(THETAS))] == list(THETAS)
        assert self.make().theta == THETAS[-1]
        with pytest.raises(InputError, match=r"first: got 6.*from 0 to 5"):
            self.make(first=6)

    def test_it_ends_at_the_best_theta_of_a_convex_objective(self):
        for first in range(len(THETAS)):
            for edge in THETAS if self.moves else [THETAS[first]]:
                held, _ = self.walk(steps_up(edge), first=first, noisy=False)
                values = {theta: OBJECTIVE.value(seen(theta, steps_up(edge))) for theta in THETAS}
                assert held.settled == min(values, key=values.get) == edge

    def test_it_never_ends_above_what_is_borne_where_some_theta_meets_it(self):
        for seed in SEEDS:
            for edge in THETAS if self.moves else THETAS[-1:]:
                for count in range(ENOUGH, ENOUGH + 8):
                    held, _ = self.walk(steps_up(edge), seed, count=count)
                    assert steps_up(edge)(held.settled) <= OBJECTIVE.tolerated

    def test_it_follows_a_loss_that_grows(self):
        held, _ = self.walk(steps_up(200))
        for _ in range(ENOUGH):
            held.observe(seen(held.theta, steps_up(10)))
        assert held.settled <= 10 or not self.moves

    def test_one_theta_is_enough(self):
        held = controller(self.name, (20.0,), OBJECTIVE)
        assert {held.observe(Observation(20.0, lost, 5e4, 1e6)) for lost in (0.0, 0.5, 0.01, 0.9)} == {20.0}
