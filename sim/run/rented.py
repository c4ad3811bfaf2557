"""A whole run that rents its devices where that is cheap."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sim.engine.step import Step
from sim.market.job_prices import market_of, stated
from sim.market.optimum import Optimum
from sim.market.rentable import ASSUMPTIONS, asked_of, chosen, moves_of
from sim.market.results import Rental
from sim.run.losses import Losses, Saving
from sim.run.measures import Interval, spread
from sim.specs import Checkpointing, Loading, Prices
from sim.units import HOUR_S

UNSAVED = (
    "prices: nobody says how state is saved (checkpointing): what moves and preemptions take follows its defaults, "
    "and that saving takes nothing else"
)


@dataclass(frozen=True)
class Rented:
    """What becomes of a run that takes `wall_s` where nothing interrupts it; `ends`: of the ends of its interval.

    `optimum` bounds what any strategy pays that ends by the same time, or by the deadline if that is later; None where
    there are too many prices to tell.
    """

    rental: Rental
    ends: tuple[Rental, Rental]
    wall_s: float
    optimum: Optimum | None
    assumptions: tuple[str, ...]

    def spread(self, value: Callable[[Rental], float]) -> tuple[float, Interval]:
        """Return a number of the run, with the interval that the ends give it."""
        expected, fast, slow = (value(rental) for rental in (self.rental, *self.ends))
        return spread((expected, fast, slow))

    def shares(self, alone: Mapping[str, float]) -> dict[str, float]:
        """Return shares of `wall_s` as shares of the time that passes, beside those that renting takes."""
        total, parts = self.rental.hours * HOUR_S, self.rental.parts_s
        held = {what: share * self.wall_s / total for what, share in alone.items()}
        return held | {
            "moves": parts["moving"] / total,
            "preemptions": parts["lost"] / total,
            "waiting": parts["waiting"] / total,
        }


def rented(
    step: Step, prices: Prices, lost: Losses, loading: Loading | None, steps: int, walls_s: tuple[float, float, float]
) -> Rented:
    """Return what renting makes of a run of `steps` steps like `step`, of its wall time and the ends of its interval.

    Raises:
        InputError: the prices cannot be read, nothing that they offer fits, or the run does not end.
    """
    market = market_of(prices, step.cluster)
    saving = lost.saving or Saving.of(step, loading, Checkpointing(), steps=steps)
    moves = moves_of(saving.times, saving.advice, saving.checkpointing.failures, prices, market)
    asked = [asked_of(prices, market, moves, step.placed.gpus, steps, wall_s) for wall_s in walls_s]
    strategy = chosen(prices, asked[0])
    with stated():
        (rental, grid), (fast, _), (slow, _) = (one.rented(strategy) for one in asked)
        best = asked[0].bounded(grid, max(rental.hours, prices.deadline_hours or 0.0))
    notes = [f"prices: {note}" for note in (*asked[0].notes, *asked[0].beyond(rental), *market.notes)]
    return Rented(
        rental=rental,
        ends=(fast, slow),
        wall_s=walls_s[0],
        optimum=best,
        assumptions=(*prices.assumptions, *ASSUMPTIONS, *(() if lost.saving else (UNSAVED,)), *notes),
    )
