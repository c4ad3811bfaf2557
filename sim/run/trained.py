"""A stretch of training as one simulation: steps, the data they wait for, snapshots, writing to storage, failures."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Annotated

import numpy as np
import simpy

from sim.checkpointing import Checkpointer, Fleet, Times
from sim.checkpointing import Span as SaveSpan
from sim.engine.clock import TICK_S, to_ticks
from sim.engine.contended import sharing_on
from sim.engine.program import Sharing, Stream
from sim.engine.step import Step
from sim.engine.training import Failure, Repeated, StepSpan, Training, Waiting
from sim.loading.processes import Loader
from sim.loading.processes import Span as LoadSpan
from sim.run.feed import Feed
from sim.run.losses import Saving
from sim.schedules import SCHEDULES
from sim.specs import Around, Checkpointing, InputError, Loading
from sim.specs.arguments import checked
from sim.specs.fields import real
from sim.units import HOUR_S

MOST_STEPS = 1_000_000


@dataclass(frozen=True, eq=False)
class Trained:
    """What a stretch of training was: plain data; ticks of 1 ns from its begin.

    `spans`: its steps; `data_spans` and `save_spans`: what loader and checkpointer did (of the loader the first
    50,000); `pauses`: from failures until training goes on. `parts_s`: where the time went, which sums to `seconds`.
    """

    step: Step
    around: Around
    repeated: Repeated
    seconds: float
    spans: tuple[StepSpan, ...]
    data_spans: tuple[LoadSpan, ...]
    save_spans: tuple[SaveSpan, ...]
    pauses: tuple[tuple[int, int], ...]
    parts_s: Mapping[str, float]
    steps_between_checkpoints: int | None
    assumptions: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Steps whose result is kept."""
        return sum(not span.lost for span in self.spans)

    @property
    def checkpoints(self) -> int:
        """Checkpoints that were written to their end."""
        return sum(span.kind == "persist" for span in self.save_spans)

    @property
    def failures(self) -> int:
        """Failures that stopped training."""
        return len(self.pauses)

    @property
    def held_up(self) -> int:
        """Steps that took longer than one alone."""
        return sum(not span.lost and span.end - span.begin > self.repeated.ticks for span in self.spans)

    @property
    def goodput(self) -> float:
        """The share of the time that trains what is kept."""
        return self.parts_s["training"] / self.seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens that were trained on for good, a second."""
        return self.steps * self.step.tokens_per_step / self.seconds


@checked
def train(
    step: Step,
    loading: Loading | None = None,
    checkpointing: Checkpointing | None = None,
    seconds: Annotated[float, real(1e-6, 1e8, "s")] = HOUR_S,
    seed: int = 0,
    failures: bool = True,
    progress: Callable[[float], object] = lambda seconds: None,
) -> Trained:
    """Return `seconds` of steps like `step`, one after the other on one clock with their data and checkpoints.

    The step's operations run one by one where data is late, while a snapshot is taken and while it is written, in the
    engine and with the contention of `step`; all other steps are as `step`. `failures`: whether devices fail, at random
    by `seed`, as `checkpointing.failures` says. `progress` is called with the seconds at which every step begins.

    Raises:
        InputError: the schedule's steps have no common end, or there are more than a million steps.
    """
    if SCHEDULES[step.plan.order].asynchronous:
        raise InputError("plan.schedule", step.plan.order, "a schedule that flushes, so that steps end")
    if seconds > MOST_STEPS * step.step_time_s:
        raise InputError("seconds", seconds, f"at most {MOST_STEPS} steps of {step.step_time_s:.3g} s")
    saving = Saving.of(step, loading, checkpointing) if checkpointing else None
    world = _World(step, loading, saving, seconds, seed)
    if failures and saving and saving.mtbf_s is not None:
        world.env.process(world.fail(np.random.default_rng(seed), saving.mtbf_s))
    world.training.progress = lambda tick: progress(tick * TICK_S)
    world.env.run(until=world.running)
    return world.result()


@dataclass(eq=False)
class _World:
    """The clock and everything on it."""

    step: Step
    loading: Loading | None
    saving: Saving | None
    seconds: float
    seed: int
    savers: list[Checkpointer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.env, feed = simpy.Environment(), Feed.of(self.step)
        self.loader = (
            Loader(
                self.env,
                self.loading,
                feed.batch,
                self.seed,
                nodes=feed.readers,
                network_bytes_per_s=feed.network_bytes_per_s,
            )
            if self.loading
            else None
        )
        held = self.step.timeline
        times = self.saving.times if self.saving else None
        self.training = Training(
            self.env,
            Repeated(held.schedule, held.run, to_ticks(self.step.step_time_s)),
            _sharing(self.step, times),
            to_ticks(self.seconds),
            self.loader,
            self._saver(),
            copies=times is not None and times.kind == "host",
        )
        self.running = self.env.process(self.training.run())

    def _saver(self) -> Checkpointer | None:
        if self.saving is None:
            return None
        self.savers.append(Checkpointer(self.env, self.saving.times, self.saving.advice.steps_between))
        return self.savers[-1]

    def fail(self, random: np.random.Generator, mtbf_s: float) -> Waiting:
        """Interrupt training at random, every `mtbf_s` in the mean, until there are nodes and all has restarted."""
        assert self.saving
        terms, fleet, back = self.saving.checkpointing.failures, Fleet.of(self.step), list[int]()
        while True:
            yield self.env.timeout(to_ticks(random.exponential(mtbf_s)))
            now = int(self.env.now)
            back = sorted([*(t for t in back if t > now), now + to_ticks(terms.repair_s)])
            missing = next(n for n in count() if fleet.left(len(back) - n, terms))
            wait = back[missing - 1] - now if missing else 0
            self.running.interrupt(Failure(wait + to_ticks(self.saving.down_s), self._saver()))
            yield self.env.timeout(wait)  # what stands still does not fail

    def _saved(self) -> Iterator[SaveSpan]:
        """Yield what was copied and written to its end: a failure stops both."""
        ends = [begin for begin, _ in self.training.pauses]
        for n, saver in enumerate(self.savers):
            yield from (span for span in saver.spans if n == len(ends) or span.end_ns <= ends[n])

    def result(self) -> Trained:
        """Return what happened."""
        made, one = self.training, self.training.step
        end = max([made.begin, *(span.end for span in made.spans)])
        kept = [span for span in made.spans if not span.lost]
        late = sum(min(span.data_ticks, span.end - span.begin - one.ticks) for span in kept)
        lost = sum(span.end - span.begin for span in made.spans if span.lost) + sum(b - a for a, b in made.pauses)
        parts = {"training": len(kept) * one.ticks, "data": late, "failures": lost}
        parts["checkpoints"] = end - sum(parts.values())
        return Trained(
            step=self.step,
            around=Around(loading=self.loading, checkpointing=self.saving.checkpointing if self.saving else None),
            repeated=one,
            seconds=end * TICK_S,
            spans=tuple(made.spans),
            data_spans=tuple(self.loader.spans) if self.loader else (),
            save_spans=tuple(self._saved()),
            pauses=tuple(made.pauses),
            parts_s={name: ticks * TICK_S for name, ticks in parts.items()},
            steps_between_checkpoints=self.saving.advice.steps_between if self.saving else None,
            assumptions=(
                *(self.loading.assumptions if self.loading else ()),
                *(self.saving.advice.assumptions if self.saving else ()),
                *ASSUMPTIONS,
                *([HANDED] if self.loading and self.loading.handover_s else []),
                *([ELASTIC] if self.saving and self.saving.checkpointing.failures.elastic else []),
            ),
        )


ASSUMPTIONS = (
    "all replicas are alike, and the node with the most of them feeds the pace",
    "after a failure data goes on with the samples that come next, and what was prepared is still there",
)
HANDED = "samples are handed over while devices compute the microbatch before (by the law of loading, after it)"
ELASTIC = "fewer replicas after a failure are as fast here as all of them (trainsim checkpointing simulate counts them)"


def _sharing(step: Step, times: Times | None) -> Sharing:
    """Return how streams slow each other in `step`, and how copying and writing snapshots slow them."""
    held = sharing_on(step.model, step.cluster, step.placed, step.level, True)
    kappa = times.contention if times else 0.0
    return replace(held, slowdown={**held.slowdown, (Stream.COMPUTE, Stream.HOST): kappa})
