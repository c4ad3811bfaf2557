"""HiGHS beside who asks for it: Ctrl-C and a stop end the waiting, and errors are told."""

import _thread
import sys
from threading import Timer
from time import perf_counter

import numpy as np
import pytest
import scipy
from scipy import optimize
from scipy.optimize import Bounds, LinearConstraint

from sim.engine import highs

LONG_S = 5.0


def long_problem() -> dict:
    """Return forty things to pack under 120 limits: HiGHS uses up its time."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 60, (120, 40)).astype(float)
    limits = LinearConstraint(sizes, ub=sizes.sum(axis=1) // 2)
    worth = rng.integers(1, 100, 40).astype(float)
    return {
        "c": -worth, "integrality": np.ones(40), "bounds": Bounds(0, 1), "constraints": limits,
        "options": {"time_limit": LONG_S},
    }  # fmt: skip


def test_ctrl_c_is_not_kept_waiting() -> None:
    begin = perf_counter()
    timer = Timer(0.3, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        highs.milp(**long_problem())
    assert perf_counter() - begin < LONG_S / 2


def test_a_stop_ends_it_without_an_answer() -> None:
    begin = perf_counter()
    assert highs.milp(lambda: perf_counter() > begin + 0.2, **long_problem()) is None
    assert perf_counter() - begin < LONG_S / 2


def test_answers_and_errors_are_those_of_scipy() -> None:
    assert highs.milp(c=np.ones(2), bounds=Bounds(2, 3)).fun == 4
    with pytest.raises(ValueError, match="must be a one-dimensional"):
        highs.milp(c=np.ones((2, 2)))


@pytest.mark.parametrize("error", [TimeoutError, SystemExit])
def test_no_error_is_waited_for_without_end(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        raise error("of the solver")

    monkeypatch.setattr(optimize, "milp", fails)
    asked = iter([False] * 3)
    with pytest.raises(error, match="of the solver"):
        highs.milp(lambda: next(asked), c=np.ones(2))


def test_without_scipys_solvers_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    monkeypatch.delattr(scipy, "optimize")
    begin = perf_counter()
    with pytest.raises(ImportError):
        highs.milp(lambda: perf_counter() > begin + 2, c=np.ones(2))
