"""Strategies that weigh what a move costs."""

import numpy as np

from sim.market.offers import Floats
from sim.market.strategies.base import WAIT, Seen, Strategy, cheapest
from sim.units import HOUR_S


class Dynamic(Strategy):
    """Of all offers the one on which the rest of the job costs least at the prices of now, moving included.

    It moves when that saves more than the move costs: rent while it starts, the owner's time, and transfers.
    """

    name = "dynamic"

    def choose(self, seen: Seen) -> int:
        """Return the offer with the least cost of the rest."""
        return cheapest(rest_usd(seen))


class UniformProgress(Strategy):
    """Keeps up with the line from nothing at the begin to all at the deadline (Wu et al., Can't Be Late, NSDI 2024).

    Ahead of the line it rents the cheapest offer, or waits where only those are left that are never taken away. Behind
    it, it rents the cheapest that is fast enough for the rest, and leaves it for slower ones, or one that is never
    taken away for others, only when it is ahead again by what two moves take. When no more time is left than the
    fastest of those that are never taken away needs, it stays there until the end; before, it rents none after which,
    held to the next choice or taken away, no more time might be left. Where all may be taken away it rents the cheapest
    that is fast enough.
    """

    name = "uniform_progress"

    def choose(self, seen: Seen) -> int:
        """Return the offer to hold, or WAIT."""
        cost, deadline_s = rest_usd(seen), seen.job.deadline_s
        if deadline_s is None or not np.isfinite(cost).any():
            return cheapest(cost)
        left_s = deadline_s - seen.gone_s
        needed_s = seen.move_s + seen.left_steps / np.where(np.isfinite(cost), seen.steps_per_s, 1e-300)
        sure = seen.reliable & np.isfinite(cost)
        among = sure if sure.any() else np.isfinite(cost)
        fastest = int(np.lexsort((cost, np.where(among, needed_s, np.inf)))[0])  # of equals the cheapest
        spare_s = left_s - float(needed_s[fastest])
        again_s = float(seen.away_s[seen.place[fastest], seen.place[fastest]]) if seen.held == fastest else 0.0
        if spare_s <= seen.step_s + again_s:
            return fastest
        enough = needed_s <= left_s
        if not sure.any():
            return cheapest(np.where(enough, cost, np.inf))
        cost = np.where((spare_s > _may_lose_s(seen, fastest)) | (sure & enough), cost, np.inf)
        keeps_up = seen.held != WAIT and bool(enough[seen.held])
        margin = 2 * float(seen.move_s.max()) * float(seen.steps_per_s[seen.held]) if keeps_up else 0.0
        if seen.left_steps + margin <= seen.job.steps * (1 - seen.gone_s / deadline_s):
            best = cheapest(cost)
            return WAIT if not (np.isfinite(cost) & ~sure).any() and seen.job.usd_per_hour == 0 else best
        return cheapest(np.where(enough & (sure if keeps_up and sure[seen.held] else True), cost, np.inf))


def _may_lose_s(seen: Seen, fastest: int) -> Floats:
    """Return the seconds (N,) by which each offer, taken now, may bring its end on the `fastest` one nearer at worst.

    It is taken away in the last step before the next choice, or in the step in which it has started: that step and the
    work since the last checkpoint are lost, the time until then in as far as the fastest one does more in it, and what
    it takes longer to go to the fastest one from there.
    """
    pace = seen.steps_per_s / seen.steps_per_s[fastest]
    until_s = seen.next_s - seen.step_s
    behind_s = until_s - pace * np.maximum(0.0, until_s - seen.move_s)
    back_s = seen.away_s[seen.place, seen.place[fastest]] - seen.move_s[fastest]
    found: Floats = np.maximum(behind_s, np.minimum(seen.move_s, until_s)) + seen.step_s + pace * seen.lost_s + back_s
    return found


def rest_usd(seen: Seen) -> Floats:
    """Return what the rest of the job costs on each offer (N,) at the prices of now, taking it included."""
    per_hour = seen.usd_per_hour + seen.job.usd_per_hour
    with np.errstate(invalid="ignore"):  # inf x 0 where nothing is offered
        found: Floats = seen.usd_per_step * seen.left_steps + per_hour * seen.move_s / HOUR_S + seen.move_usd
    return np.where(np.isfinite(found), found, np.inf)
