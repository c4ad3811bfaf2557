"""What every solver of the inter-stage problem must satisfy. A newcomer subclasses this and names itself."""

from functools import cache
from itertools import count

import numpy as np
import pytest

from sim.tuner.solvers.chain import USUAL, Cell, Chain, Effort, Solution, legal, value
from sim.tuner.solvers.exact import exact
from sim.tuner.solvers.registry import SOLVERS
from tests.tuner.solvers.chains import small, table

SEEDS = (*range(40), 113)
"""Small spaces; the last one has no solution."""


@cache
def optimum(seed: int) -> float:
    """Return the certified optimum of a small space, which `test_exact` compares with brute force."""
    return exact(small(seed).chain).value


class SolverContract:
    """Laws that hold for any solver. tolerance: relative, by which rounding may put a value below the optimum."""

    name: str
    tolerance = 1e-12

    def solve(self, chain: Chain, effort: Effort = USUAL) -> Solution:
        return SOLVERS[self.name](chain, effort)

    def test_choices_are_legal_and_worth_what_is_said(self):
        for seed in SEEDS:
            chain = small(seed).chain
            found = self.solve(chain)
            assert list(found.values) == sorted(found.values)
            for choice, reached in zip(found.choices, found.values, strict=True):
                assert legal(chain, choice)
                assert value(chain, choice) == reached

    def test_never_below_the_optimum_and_certified_only_there(self):
        for seed in SEEDS:
            found, best = self.solve(small(seed).chain), optimum(seed)
            assert found.value >= best * (1 - self.tolerance)
            assert found.bound <= best * (1 + self.tolerance)
            assert 0 <= found.gap <= 1
            assert not found.certified or found.value == pytest.approx(best, rel=1e-6)

    def test_finds_a_choice_wherever_there_is_one(self):
        found = [(np.isfinite(optimum(seed)), bool(self.solve(small(seed).chain).choices)) for seed in SEEDS]
        assert all(is_one == is_found for is_one, is_found in found)
        assert len(set(found)) == 2

    def test_equal_seeds_give_equal_answers(self):
        for seed in (1, 2, 4):
            chain = table(4, 16, 3, 4, seed)
            one, other = (self.solve(chain, Effort(seed=seed)) for _ in range(2))
            assert one == other

    def test_an_impossible_chain_has_a_clear_result(self):
        cell = Cell(2, (1,), np.ones(1), np.ones(1))
        for layers, devices, offered in ((3, 2, [cell]), (4, 3, [cell]), (4, 2, []), (2, 1, [cell])):
            found = self.solve(Chain(2, layers, (devices,), 4, lambda *place, offered=offered: offered))
            assert (found.choices, found.value, found.bound) == ((), np.inf, np.inf)
            assert found.certified
            assert found.note

    def test_a_value_at_hand_is_beaten_or_nothing_is_returned(self):
        chain = table(4, 16, 3, 4)
        best = exact(chain).value
        none = self.solve(chain, Effort(at_most=best * (1 - 1e-6)))
        assert none.choices == ()
        assert none.note
        assert self.solve(chain, Effort(at_most=best)).value == np.inf
        found = self.solve(chain, Effort(at_most=2 * best))
        assert best * (1 - self.tolerance) <= found.value < 2 * best

    def test_an_interrupt_ends_it_with_the_best_so_far(self):
        chain = table(4, 16, 3, 4)
        for after in (0, 1, 3, 6, 12):
            calls = count()
            found = self.solve(chain, Effort(stop=lambda calls=calls, after=after: next(calls) >= after))
            assert all(legal(chain, choice) for choice in found.choices)
            assert found.bound <= exact(chain).value * (1 + self.tolerance)
            assert not found.certified or found.value == pytest.approx(exact(chain).value, rel=1e-6)
        assert not self.solve(chain, Effort(stop=lambda: True)).certified
