"""What every scheduling policy must satisfy. A newcomer subclasses this and names itself."""

from dataclasses import replace

import numpy as np

from sim.cluster.policies import policy
from sim.cluster.policies.optimising import Optimising
from sim.cluster.programs import runnable
from sim.cluster.state import NO_PAIRS, State
from tests.cluster.states import a_state, assert_within, permuted, random_state

SEEDS = tuple(range(12))


class PolicyContract:
    """Laws of any policy. single: it divides jobs of one device only. ordered: who came first matters."""

    name: str
    single = False
    ordered = False

    def make(self, seed: int = 0):
        return policy(self.name, seed)

    def state(self, seed: int) -> State:
        made = random_state(seed, scale=not self.single)
        return made if self.make().packs else replace(made, pairs=NO_PAIRS)

    def test_shares_are_within_every_limit(self):
        for seed in SEEDS:
            assert_within(self.state(seed), self.make().allocate(self.state(seed)))

    def test_equal_seeds_and_states_give_equal_shares(self):
        for seed in SEEDS[:4]:
            one, other = self.make(5), self.make(5)
            for at in (seed, seed + 1, seed):
                assert (one.allocate(self.state(at)) == other.allocate(self.state(at))).all()

    def test_what_cannot_run_gets_nothing_and_stops_nobody(self):
        for seed in SEEDS:
            state = self.state(seed)
            if not self.single:
                state = replace(state, scale=np.where(np.arange(state.jobs) == 1, 100, state.scale))
                state = replace(state, pairs=NO_PAIRS)
            state = replace(state, steps_per_s=state.steps_per_s * (np.arange(state.jobs) > 0)[:, None])
            shares = self.make().allocate(state)
            runs = runnable(state)
            assert not shares[: state.jobs][~runs].any()
            assert shares.sum() > 0 or not runs.any()

    def test_pairs_that_cannot_run_get_nothing(self):
        for seed in SEEDS:
            state = self.state(seed)
            shares = self.make().allocate(state)[state.jobs :]
            assert not shares[~(state.pairs.steps_per_s > 0).all(axis=2)].any()

    def test_order_of_jobs_does_not_matter(self):
        for seed in () if self.ordered else SEEDS[:6]:
            state = self.state(seed)
            order = np.random.default_rng(seed).permutation(state.jobs)
            kind = self.make()
            there, here = kind.allocate(permuted(state, order)), kind.allocate(state)
            if isinstance(kind, Optimising):
                back = np.concatenate([there[: state.jobs][np.argsort(order)], there[state.jobs :]])
                assert np.isclose(kind.objective(state, back), kind.objective(state, here), rtol=1e-6)
            else:
                assert np.allclose(there[: state.jobs][np.argsort(order)], here[: state.jobs])

    def test_no_jobs_no_shares(self):
        state = a_state(np.zeros((0, 3)), (1, 1, 1))
        assert self.make().allocate(state).shape == (0, 3)

    def test_one_job_has_a_device(self):
        shares = self.make().allocate(a_state([[3.0, 2.0, 1.0]], (1, 0, 0)))
        assert np.allclose(shares, [[1.0, 0.0, 0.0]], atol=1e-6)

    def test_jobs_come_and_go(self):
        kind, state = self.make(), self.state(3)
        for rows in ([0, 1, 2, 3], [2, 3, 4, 5, 6], [8], [0, 8]):
            some = replace(
                state,
                ids=state.ids[rows],
                steps_per_s=state.steps_per_s[rows],
                scale=state.scale[rows],
                steps_left=state.steps_left[rows] / (1 + rows[0]),
                waited_s=state.waited_s[rows],
                weights=state.weights[rows],
                slack_s=None,
                entity=state.entity[rows],
                pairs=NO_PAIRS,
            )
            assert_within(some, kind.allocate(some))
