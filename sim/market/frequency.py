"""How often to choose again: the same job, chosen at several intervals."""

from collections.abc import Sequence

from sim.market.grid import Grid
from sim.market.jobs import Moves, RentedJob
from sim.market.renting import rent
from sim.market.results import Rental
from sim.market.strategies.base import Strategy
from sim.specs.fields import InputError


def move_frequency(
    job: RentedJob,
    grid: Grid,
    strategy: Strategy,
    moves: Moves | None = None,
    every_s: Sequence[float] = (),
    begin_step: int = 0,
) -> tuple[Rental, ...]:
    """Return what becomes of a job for each time between two choices, in their order.

    Raises:
        InputError: there are none, or one is no whole number of the grid's steps.
    """
    if not every_s:
        raise InputError("every_s", list(every_s), "one time between two choices or more")
    return tuple(rent(job, grid, strategy, moves, every, begin_step) for every in every_s)
