"""A job that rents its devices step by step: what it pays, when it moves, when it ends.

Sources: D. Narayanan et al., Analysis and Exploitation of Dynamic Pricing in the Public Cloud for ML Training, DISPA
2020; added here: what starting, moving and being preempted takes, transfers, deadlines.
"""

import numpy as np

from sim.market.grid import Grid
from sim.market.jobs import Moves, RentedJob, hourly
from sim.market.offers import Floats
from sim.market.results import Rental, Stay
from sim.market.strategies.base import WAIT, Bools, Seen, Strategy
from sim.specs.fields import InputError
from sim.units import HOUR_S

NOWHERE = -1
"""No place yet: nothing was trained, nothing is to be transferred."""
ENOUGH = 1e-12
"""Share of all steps that rounding may leave."""


def rent(
    job: RentedJob,
    grid: Grid,
    strategy: Strategy,
    moves: Moves | None = None,
    every_s: float | None = None,
    begin_step: int = 0,
) -> Rental:
    """Return what becomes of `job` from step `begin_step` of the prices on.

    `every_s`: how often a strategy that chooses again does so (left out: at every step of the grid). Who is preempted,
    or waits, chooses at the next step. Instances are paid by the second, from when they are asked for.

    Raises:
        InputError: no offer that the strategy may rent has a device that the job runs on, or `every_s` is no whole
            number of steps.
    """
    every = every_steps(every_s, grid.step_s)
    run = Renting(job, grid, strategy, moves or Moves(), begin_step)
    for step in range(begin_step, grid.steps):
        since = (step - begin_step) % every
        if run.held == WAIT or (strategy.again and run.pending_s == 0 and since == 0):
            run.take(strategy.choose(run.seen(step, every)), step)
        if run.hold(step):
            break
    return run.result()


def every_steps(every_s: float | None, step_s: float) -> int:
    """Return a time between two choices in steps; raises InputError where it is no whole number of them."""
    found = 1 if every_s is None else round(every_s / step_s)
    if found < 1 or (every_s is not None and abs(found * step_s - every_s) > 1e-6 * step_s):
        raise InputError("every_s", every_s, f"a multiple of the step of {step_s:g} s")
    return found


class Renting:
    """One job under way."""

    def __init__(self, job: RentedJob, grid: Grid, strategy: Strategy, moves: Moves, begin_step: int) -> None:
        self.job, self.grid, self.moves, self.name, self.first = job, grid, moves, strategy.name, begin_step
        self.terms = Terms(job, grid, moves)
        may = strategy.allowed(grid.offers, job)
        self.allowed = may & (self.terms.rates > 0) & (self.terms.believed > 0)
        if not self.allowed.any():
            devices = sorted({offer.device for offer, one in zip(grid.offers, may.tolist(), strict=True) if one})
            told = f"a device that {strategy.name} may rent: {', '.join(devices) or 'none of what is offered'}"
            raise InputError("steps_per_s", dict(job.steps_per_s), told)
        self.held, self.price, self.place = WAIT, 0.0, self.terms.home
        self.pending_s = self.done = 0.0
        self.started = self.written = self.again = False
        self.stay = _Stay(WAIT, 0.0)
        self.path: list[Stay] = []
        self.parts = dict.fromkeys(("training", "moving", "lost", "waiting"), 0.0)
        self.transfer_usd, self.now_s, self.preemptions, self.finished = 0.0, self._begin(begin_step), 0, False

    def _begin(self, step: int) -> float:
        return self.grid.begin_s + step * self.grid.step_s

    @property
    def left(self) -> float:
        """Steps that are left to do."""
        return self.job.steps - self.done

    def seen(self, step: int, every: int = 1) -> Seen:
        """Return what a strategy may know that chooses again every so many steps."""
        lost, usd = self.terms.moving(self.place, self.started, self.held != WAIT or self.written)
        if self.held != WAIT:
            lost[self.held] = usd[self.held] = 0.0
        ahead = every - (step - self.first) % every
        later = np.ceil(np.maximum(0.0, np.ceil(lost / self.grid.step_s) - ahead) / every)  # while it starts, none does
        return Seen(
            job=self.job,
            step=step,
            step_s=self.grid.step_s,
            next_s=(ahead + every * later) * self.grid.step_s,
            gone_s=(step - self.first) * self.grid.step_s,
            left_steps=self.left,
            held=self.held,
            usd_per_hour=self.grid.seen[step] * self.terms.paid,
            steps_per_s=self.terms.believed,
            move_s=lost,
            move_usd=usd,
            lost_s=self.moves.lost_work_s,
            place=self.terms.place,
            away_s=self.terms.away_s,
            reliable=self.terms.reliable,
            allowed=self.allowed & np.isfinite(self.grid.seen[step]),
        )

    def take(self, offer: int, step: int) -> None:
        """Hold an offer from the begin of a step on, or nothing."""
        self.again = offer == self.held and self.held != WAIT
        if offer == self.held:
            return
        if self.held != WAIT:
            self._leave("moved", self._begin(step))
            self.written = True
        if offer != WAIT:
            lost, usd = self.terms.moving(self.place, self.started, self.written)
            self.pending_s, self.place = float(lost[offer]), int(self.terms.place[offer])
            self.transfer_usd += float(usd[offer])
            self.stay = _Stay(offer, self._begin(step))
            self.started, self.written = True, False
        self.held = offer

    def hold(self, step: int) -> bool:
        """Go on to the end of a step; return whether the job has ended."""
        length, begin = self.grid.step_s, self._begin(step)
        self.now_s = begin + length
        if self.held == WAIT:
            self.parts["waiting"] += length
            return False
        fresh = self.stay.begin_s == begin or self.again
        self.again = False
        known = (self.grid.taken if fresh else self.grid.kept)[step, self.held]
        up_s, rate = float(self.grid.up_s[step, self.held]), float(self.terms.rates[self.held])
        needed_s = self.pending_s + self.left / rate
        self.finished = needed_s <= up_s * (1 + ENOUGH)
        held_s = min(needed_s, up_s)
        moving = min(self.pending_s, held_s)
        self.pending_s -= moving
        self.parts["moving"] += moving
        self.parts["training"] += held_s - moving
        self.done += (held_s - moving) * rate
        self.stay.steps += (held_s - moving) * rate
        self.stay.usd += hourly(float(known * self.terms.paid[self.held]), held_s)
        if self.finished:
            self.now_s = begin + held_s
            self._leave("finished", self.now_s)
        elif up_s < length:
            self.pending_s = 0.0
            self._lose(rate)
            self.parts["waiting"] += length - up_s
            self._leave("preempted", begin + up_s)
        return self.finished

    def _lose(self, rate: float) -> None:
        """Lose the work since the last checkpoint."""
        lost = min(self.moves.lost_work_s * rate, self.stay.steps)
        self.stay.steps -= lost
        self.done -= lost
        self.parts["training"] -= lost / rate
        self.parts["lost"] += lost / rate
        self.preemptions += 1

    def _leave(self, why: str, at_s: float) -> None:
        stay, self.held = self.stay, WAIT
        self.path.append(Stay(self.grid.offers[stay.offer], stay.begin_s, at_s, stay.usd, stay.steps, why))

    def result(self) -> Rental:
        """Return what happened."""
        if self.held != WAIT:
            self._leave("cut", self.now_s)
        begin = self._begin(self.first)
        pairs = zip(self.path, self.path[1:], strict=False)
        return Rental(
            job=self.job,
            strategy=self.name,
            begin_s=begin,
            cost_usd=sum(stay.usd for stay in self.path) + self.transfer_usd + self.moves.usd,
            transfer_usd=self.transfer_usd + self.moves.usd,
            hours=(self.now_s - begin) / HOUR_S,
            migrations=sum(a.offer != b.offer for a, b in pairs),
            preemptions=self.preemptions,
            finished=self.finished,
            path=tuple(self.path),
            parts_s=self.parts,
        )


class _Stay:
    """The stay that goes on."""

    def __init__(self, offer: int, begin_s: float) -> None:
        self.offer, self.begin_s = offer, begin_s
        self.usd = self.steps = 0.0


class Terms:
    """What the offers of a grid (N) and the places they are in (L) mean for a job.

    `rates`, `believed` (N,): steps/s with saving, as they are and as strategies take them to be; `paid` (N,): devices
    that are paid; `place` (N,): of each offer, `home` the job's own or NOWHERE; `transfer_s`, `transfer_usd` (L, L)
    between places, `away_s` (L, L) what a move that leaves by itself takes in all.
    """

    def __init__(self, job: RentedJob, grid: Grid, moves: Moves) -> None:
        self.moves = moves
        self.rates: Floats = job.rates(grid.offers) / (1 + moves.overhead)
        self.believed: Floats = job.rates(grid.offers, believed=True) / (1 + moves.overhead)
        self.paid: Floats = np.array([float(job.paid(offer)) for offer in grid.offers])
        self.reliable: Bools = np.array([offer.billing == "on-demand" for offer in grid.offers])
        places = list(grid.places)
        self.home = NOWHERE
        if job.home:
            named = [" ".join(place) for place in places]
            if job.home not in named:
                raise InputError("home", job.home, f"one of {', '.join(sorted(named))}")
            self.home = named.index(job.home)
        self.place = np.array([places.index(offer.place) for offer in grid.offers])
        self.transfer_s, self.transfer_usd = moves.transfer_s(places), moves.transfer_usd(places)
        self.away_s: Floats = moves.again_s + moves.write_s + self.transfer_s

    def moving(self, place: int, started: bool, writes: bool) -> tuple[Floats, Floats]:
        """Return the seconds and USD (N,) that taking each offer costs, coming from a place.

        started: there is a checkpoint to read; writes: it is written before.
        """
        base = self.moves.start_s if not started else self.moves.again_s + (self.moves.write_s if writes else 0.0)
        if place == NOWHERE:
            return np.full(len(self.place), base), np.zeros(len(self.place))
        return base + self.transfer_s[place, self.place], self.transfer_usd[place, self.place]
