"""The same job begun at several times: one begin says little about prices that change."""

from collections.abc import Iterable

from sim.market.grid import Grid
from sim.market.jobs import Moves, RentedJob
from sim.market.renting import rent
from sim.market.results import Rental
from sim.market.strategies.base import Strategy


def rent_from(
    job: RentedJob,
    grid: Grid,
    strategy: Strategy,
    moves: Moves | None = None,
    every_s: float | None = None,
    begin_steps: Iterable[int] = (0,),
) -> tuple[Rental, ...]:
    """Return what becomes of a job from each step on, as `sim.market.rent` says; raises InputError as it does."""
    return tuple(rent(job, grid, strategy, moves, every_s, begin) for begin in begin_steps)
