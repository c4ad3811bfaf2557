"""The contract of every registered solver, and what is particular to the baselines."""

import numpy as np
import pytest

from sim.tuner.solvers.chain import USUAL, Effort
from sim.tuner.solvers.exact import exact
from sim.tuner.solvers.greedy import greedy
from sim.tuner.solvers.nsga import nsga
from sim.tuner.solvers.registry import SOLVERS
from sim.tuner.solvers.sampled import sampled
from tests.contracts.solver import SolverContract
from tests.tuner.solvers.chains import table


class TestExact(SolverContract):
    name = "exact"


class TestMilp(SolverContract):
    name = "milp"
    tolerance = 1e-6


class TestGreedy(SolverContract):
    name = "greedy"


class TestSampled(SolverContract):
    name = "sampled"

    def solve(self, chain, effort=USUAL):
        return sampled(chain, Effort(200, effort.seed, effort.at_most, effort.stop))


class TestNsga(SolverContract):
    name = "nsga"

    def solve(self, chain, effort=USUAL):
        return nsga(chain, Effort(300, effort.seed, effort.at_most, effort.stop))


def test_every_registered_solver_passes_the_contract():
    assert set(SOLVERS) == {contract.name for contract in SolverContract.__subclasses__()}


@pytest.mark.parametrize("name", ["greedy", "sampled", "nsga"])
def test_the_steps_of_a_baseline_are_bounded_and_other_seeds_draw_others(name):
    chain = table(8, 32, 5, 10)
    found = SOLVERS[name](chain, Effort(50))
    assert 0 < found.steps <= 50
    assert not found.certified
    others = {SOLVERS[name](chain, Effort(50, seed)).value for seed in range(5)}
    assert (len(others) == 1) == (name == "greedy")


@pytest.mark.slow
def test_ideas_beat_chance_and_proof_beats_ideas():
    """Median over ten chains of how far above the optimum each ends."""
    above = {name: [] for name in ("greedy", "nsga", "sampled")}
    for seed in range(10):
        chain = table(6, 24, 5, 8, seed)
        best = exact(chain).value
        for name, ratios in above.items():
            ratios.append(SOLVERS[name](chain, Effort(2_000, seed)).value / best - 1)
    median = {name: float(np.median(ratios)) for name, ratios in above.items()}
    assert 0 <= median["greedy"] < 0.05
    assert median["nsga"] < median["sampled"]


def test_greedy_leaves_a_local_optimum_by_hops():
    """More steps never end worse, and the balanced start is improved."""
    chain = table(8, 64, 9, 20)
    values = [greedy(chain, Effort(steps)).value for steps in (0, 50, 200, 1_000, 5_000)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < values[0]
