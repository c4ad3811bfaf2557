"""A run with checkpoints and failures, simulated: what a law says in the mean happens here by chance, seed by seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from statistics import fmean, stdev

import numpy as np

from sim.checkpointing.advice import plan
from sim.checkpointing.durations import Times
from sim.checkpointing.failures import Fleet
from sim.checkpointing.stretch import Jumped, Stepped, Stretch
from sim.engine.clock import TICK_S, to_ticks
from sim.specs import Checkpointing, InputError
from sim.specs.arguments import checked

MOST_SEEDS = 10_000
MOST_FAILURES = 1_000_000
NEVER = 1 << 62
CENTRAL = (0.1, 0.9)
"""Quantiles of the runs between which 80 % of them lie."""

LONGEST_S = 4e9
"""No failure is farther away than a century: so that ticks are whole numbers of 64 bits."""


@dataclass(frozen=True)
class Sample:
    """One run by one seed; `lost_steps`, `lost_s` and `down_s` by failure: what was trained in vain, and how long until
    training went on or the run ended. `steps_between_over_time`: (seconds, k) where k changed."""

    seed: int
    seconds: float
    steps: int
    goodput: float
    overhead_fraction: float
    available_fraction: float
    checkpoints: int
    failures: int
    lost_steps: tuple[int, ...]
    lost_s: tuple[float, ...]
    down_s: tuple[float, ...]
    steps_between_over_time: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Simulated:
    """Runs of the same job by several seeds; means over seeds, the interval holds the central 80 % of runs.

    `overhead_percent` is over training alone, without failures' part; `lost_work_s` and `recovery_s` (that and reading
    the state) are means of a failure, `down_s` the mean until training went on or the run ended; `max_lost_steps` is
    the most that one failure lost.
    """

    steps_between: int
    goodput: float
    goodput_interval: tuple[float, float]
    goodput_standard_error: float
    overhead_percent: float
    available_fraction: float
    checkpoints: float
    failures: float
    lost_work_s: float
    recovery_s: float
    down_s: float
    max_lost_steps: int
    samples: tuple[Sample, ...]
    assumptions: tuple[str, ...]


@checked
def simulate(
    times: Times,
    checkpointing: Checkpointing | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    mtbf_s: float | None = None,
    fleet: Fleet | None = None,
    seed: int = 0,
    seeds: int = 1,
    adapt: bool = False,
    jump: bool = True,
) -> Simulated:
    """Return what becomes of a run: until it has `steps`, or for so many `seconds`.

    mtbf_s: between failures while all replicas train or restart; left out nothing fails. fleet: nodes and replicas,
    where the job's failures say that nodes run out or that fewer replicas go on. adapt: start with CheckFreq's rule and
    lengthen k until the overhead budget holds. jump: over all intervals that are alike; without it every step is run,
    to the same tick.

    Raises:
        InputError: not exactly one of steps and seconds, a number is out of range, or what `plan` refuses.
    """
    given = checkpointing or Checkpointing()
    if (steps is None) == (seconds is None):
        raise InputError("steps", steps, "exactly one of steps and seconds")
    for name, value, least, most in (
        ("steps", steps, 1, 1e12), ("seconds", seconds, TICK_S, 1e9), ("seeds", seeds, 1, MOST_SEEDS)
    ):  # fmt: skip
        if value is not None and not least <= value <= most:
            raise InputError(name, value, f"{least:g} to {most:g}")
    advice = plan(times, given, mtbf_s, fleet)
    if mtbf_s is not None:
        lasts = seconds if steps is None else steps * times.iteration_s / max(advice.goodput, 1e-300)
        if seeds * (lasts or 0.0) / mtbf_s > MOST_FAILURES:
            raise InputError("mtbf_s", mtbf_s, f"a run with at most {MOST_FAILURES} failures in all seeds together")
    k = advice.steps_between
    if adapt:
        k = advice.choice("checkfreq-rule").steps_between
    if given.snapshot != "auto":
        times = replace(times, snapshot=given.snapshot)
    run = _Run(times, given, k, mtbf_s, fleet or Fleet(), given.overhead_budget if adapt else None, jump)
    end = NEVER if seconds is None else to_ticks(seconds)
    return _together(run, [run.sample(seed + i, steps, end) for i in range(seeds)])


@dataclass(frozen=True)
class _Run:
    """What all samples share."""

    times: Times
    given: Checkpointing
    k: int
    mtbf_s: float | None
    fleet: Fleet
    adapt_budget: float | None
    jump: bool

    def stretch(self, slower: float, k: int) -> Stretch:
        """Return training from a saved state on, with steps that take so many times as long."""
        longer = {name: slower * getattr(self.times, name) for name in ("iteration_s", "update_s")}
        make: Callable[[Times, int, float | None], Stretch] = Jumped if self.jump else Stepped
        return make(replace(self.times, **longer), k, self.adapt_budget)

    def sample(self, seed: int, steps: int | None, end: int) -> Sample:
        """Return one run until `steps` or the tick `end`."""
        history = _History(self, np.random.default_rng(seed), steps, end)
        while history.goes_on:
            history.wait_for_nodes()
            history.restart()
            history.train()
        return history.sample(seed)


class _History:
    """One run as it happens: the clock in ticks, steps that are safe, nodes that are away, and what was lost."""

    def __init__(self, run: _Run, random: np.random.Generator, steps: int | None, end: int) -> None:
        self.run, self.random, self.target, self.end = run, random, steps, end
        self.now = self.safe = self.checkpoints = self.failed = 0
        self.back: list[int] = []
        """When nodes that are away return."""
        self.failed_at: int | None = None
        """When the first failure struck since training went on last."""
        self.regrows = False
        """Whether it was stopped for nodes that are back."""
        self.trained = self.alone = self.available = 0.0
        """Ticks up to the ends of steps, those that the steps take alone; ticks with nodes, by the replicas' share."""
        self.lost_steps: list[int] = []
        self.lost: list[int] = []
        self.down: list[int] = []
        self.ks = [(0, run.k)]

    @property
    def goes_on(self) -> bool:
        """Whether neither the target nor the end is reached."""
        return self.now < self.end and (self.target is None or self.safe < self.target)

    @property
    def replicas(self) -> int:
        """Replicas that can train now."""
        while self.back and self.back[0] <= self.now:
            heappop(self.back)
        return self.run.fleet.left(len(self.back), self.run.given.failures)

    def wait_for_nodes(self) -> None:
        """Stand still until any replica can train."""
        while self.replicas == 0 and self.now < self.end:
            self.now = min(self.end, self.back[0])

    def restart(self) -> None:
        """Start all processes again and read the last checkpoint; what fails meanwhile begins it anew."""
        if self.failed_at is None and not self.regrows:
            return
        replicas = self.replicas
        if not replicas or self.now >= self.end:
            return
        done = self.now + to_ticks(self.run.given.failures.restart_s + self.run.times.reload_s)
        strikes = self._next_failure(replicas)
        until = min(done, strikes, self.end)
        if not self.regrows:
            self.available += (until - self.now) * replicas / self.run.fleet.replicas
        self.now = until
        if until == strikes:
            self._fail()
        elif until == done:
            if self.failed_at is not None:
                self.down.append(self.now - self.failed_at)
            self.failed_at, self.regrows = None, False

    def train(self) -> None:
        """Train until a failure, the target, the end, or nodes are back with which more replicas train."""
        replicas = self.replicas
        if self.failed_at is not None or self.regrows or not replicas or not self.goes_on:
            return
        slower, k = self.run.fleet.replicas / replicas, self.ks[-1][1]
        stretch = self.run.stretch(slower, k)
        strikes, until, grows = self._next_failure(replicas), self.end, self._grows(replicas)
        if self.target is not None:
            until = min(until, self.now + stretch.end_of(self.target - self.safe))
        begun, stop = self.now, min(strikes, until, grows)
        # a step that ends at the very end counts
        reached = stretch.at(stop - begun + (stop == until))
        self.trained += reached.ended
        self.alone += reached.steps * slower * self.run.times.iteration_s / TICK_S
        self.available += (stop - begun) / slower
        self.checkpoints += reached.checkpoints
        self.ks += [(begun + at, changed) for at, changed in reached.changes[1:]]
        self.now = stop
        if stop in (until, grows):  # nothing is lost where it stops by itself
            self.safe += reached.steps
            self.regrows = stop != until
        else:
            self.safe += reached.saved
            self.lost_steps.append(reached.steps - reached.saved)
            self.lost.append(stop - begun - reached.saved_at)
            self._fail()

    def _next_failure(self, replicas: int) -> int:
        """Return when the next failure strikes where so many replicas go on from now."""
        if self.run.mtbf_s is None:
            return NEVER
        mean = self.run.mtbf_s * self.run.fleet.replicas / replicas
        return self.now + max(1, to_ticks(min(self.random.exponential(mean), LONGEST_S)))

    def _grows(self, replicas: int) -> int:
        """Return when so many nodes are back that more replicas can train."""
        if replicas < self.run.fleet.replicas:
            for n, at in enumerate(sorted(self.back), 1):
                if self.run.fleet.left(len(self.back) - n, self.run.given.failures) > replicas:
                    return at
        return NEVER

    def _fail(self) -> None:
        self.failed += 1
        heappush(self.back, self.now + to_ticks(self.run.given.failures.repair_s))
        if self.failed_at is None:
            self.failed_at = self.now

    def sample(self, seed: int) -> Sample:
        """Return the run as plain data."""
        took = self.now * TICK_S
        down = self.down if self.failed_at is None else [*self.down, self.now - self.failed_at]
        return Sample(
            seed=seed,
            seconds=took,
            steps=self.safe,
            goodput=self.safe * self.run.times.iteration_s / took,
            overhead_fraction=self.trained / self.alone - 1 if self.alone else 0.0,
            available_fraction=self.available / self.now,
            checkpoints=self.checkpoints,
            failures=self.failed,
            lost_steps=tuple(self.lost_steps),
            lost_s=tuple(t * TICK_S for t in self.lost),
            down_s=tuple(t * TICK_S for t in down),
            steps_between_over_time=tuple((at * TICK_S, k) for at, k in self.ks),
        )


def _together(run: _Run, samples: list[Sample]) -> Simulated:
    """Return the samples' means and spread."""
    goodputs = [sample.goodput for sample in samples]
    low, high = np.quantile(goodputs, CENTRAL)  # few failures are far from normally distributed
    mean, deviation = fmean(goodputs), stdev(goodputs) if len(samples) > 1 else 0.0
    lost = [s for sample in samples for s in sample.lost_s]
    lost_mean = fmean(lost) if lost else 0.0
    down = [s for sample in samples for s in sample.down_s]
    return Simulated(
        steps_between=samples[-1].steps_between_over_time[-1][1],
        goodput=mean,
        goodput_interval=(float(low), float(high)),
        goodput_standard_error=deviation / len(samples) ** 0.5,
        overhead_percent=100 * fmean(sample.overhead_fraction for sample in samples),
        available_fraction=fmean(sample.available_fraction for sample in samples),
        checkpoints=fmean(sample.checkpoints for sample in samples),
        failures=fmean(sample.failures for sample in samples),
        lost_work_s=lost_mean,
        recovery_s=lost_mean + run.times.reload_s if lost else 0.0,
        down_s=fmean(down) if down else 0.0,
        max_lost_steps=max((n for sample in samples for n in sample.lost_steps), default=0),
        samples=tuple(samples),
        assumptions=(*run.given.assumptions, *ASSUMPTIONS),
    )


ASSUMPTIONS = (
    "failures strike at random (a Poisson process) while training or restarting, and each takes one node away",
    "with fewer replicas the same global batch takes as much longer; saving takes what it did",
)
