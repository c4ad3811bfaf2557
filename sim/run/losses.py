"""What keeps a run from training all the time: data that is late, checkpoints, failures."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log, log1p, sqrt

from sim.checkpointing import Advice, Fleet, Times, mtbf_s, plan, times
from sim.checkpointing.state import Writers
from sim.costs.fitted import Z80
from sim.engine.step import Step
from sim.loading import Prediction, predict
from sim.run.feed import Feed
from sim.specs import Around, Checkpointing, InputError, Loading, Training

STATED = {
    "iteration_s": ("loading", "a step with what it waits for data takes"),
    "persist_s": ("checkpointing.storage", "writing the state takes"),
    "reload_s": ("checkpointing.storage", "reading the state takes"),
    "mtbf_s": ("checkpointing.failures", "one every"),
}
"""The sections of a job behind times that are out of range, and what they are."""


@contextmanager
def stated() -> Iterator[None]:
    """Name the sections of a job in errors about times that follow from them."""
    try:
        yield
    except InputError as error:
        if error.path == "snapshot":
            raise error.under("checkpointing") from None
        if error.path not in STATED:
            raise
        section, what = STATED[error.path]
        raise InputError(section, f"{what} {error.value:.3g} s", error.allowed) from None


@dataclass(frozen=True)
class Saving:
    """How the state of a run is saved: what it takes, how often, how long from one failure to the next (mean).

    `down_s`: from a failure until training goes on where there is a node for it, reading the last checkpoint included.
    """

    checkpointing: Checkpointing
    times: Times
    advice: Advice
    mtbf_s: float
    down_s: float

    @classmethod
    def of(
        cls,
        step: Step,
        loading: Loading | None,
        checkpointing: Checkpointing,
        writers: Writers = "balanced",
        steps: int | None = None,
    ) -> "Saving":
        """Return how a step's state is saved; `loading`, `steps`: what it waits for data, as `paced_step_time_s`."""
        failures, fleet = checkpointing.failures, Fleet.of(step)
        with stated():
            held = replace(times(step, checkpointing, writers), iteration_s=paced_step_time_s(step, loading, steps))
        every_s = mtbf_s(failures, step.placed.gpus, fleet.nodes)
        advice = plan(held, checkpointing, every_s, fleet)
        return cls(checkpointing, held, advice, every_s, failures.restart_s + held.reload_s)


@dataclass(frozen=True)
class Losses:
    """Shares of the wall time that train nothing that is kept, by cause: data, checkpoints, failures, stated.

    `step_time_s`: of a step with what it waits for data; `fills_caches`: in the mean with those of the first epoch,
    which are slower. `data` is of the busiest of `readers` nodes, `samples_per_s` what all of them hand over with full
    caches.
    """

    step_time_s: float
    shares: Mapping[str, float]
    data: Prediction | None = None
    saving: Saving | None = None
    fills_caches: bool = False
    readers: int = 0
    samples_per_s: float = 0.0

    @property
    def goodput(self) -> float:
        """The share of the wall time that trains what is kept."""
        return 1 - sum(self.shares.values())

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What it rests on."""
        return (*(self.data.assumptions if self.data else ()), *(self.saving.advice.assumptions if self.saving else ()))

    def luck_log(self, wall_s: float) -> float:
        """Return the standard deviation of the log of a wall time by how often, and when, something fails.

        Failures are a Poisson process; each loses up to the time between two checkpoints, equally likely, and the time
        until training goes on. Where few are expected it is less: an 80 % interval does not begin before the end of a
        run in which nothing fails.
        """
        if self.saving is None:
            return 0.0
        advice = self.saving.advice
        without_nodes_s = (1 / advice.available_fraction - 1) * self.saving.mtbf_s
        mean, spread = advice.lost_work_s + self.saving.down_s + without_nodes_s, advice.interval_s / sqrt(12)
        luck = log1p(sqrt(wall_s / self.saving.mtbf_s * (mean**2 + spread**2)) / wall_s)
        return min(luck, -log(max(1e-300, 1 - self.shares["failures"])) / Z80)


def losses(
    step: Step,
    training: Training,
    loading: Loading | None = None,
    checkpointing: Checkpointing | None = None,
    steps: int | None = None,
) -> Losses:
    """Return what a run of steps like `step` loses; `steps`: how many it has, as of `paced_step_time_s`.

    Raises:
        InputError: `training` states a goodput and there are checkpoints, whose goodput is computed.
    """
    if checkpointing and training.goodput_stated:
        raise InputError("training.goodput", training.goodput, "left out beside checkpointing, which says it")
    data = predicted(step, loading) if loading else None
    paced = paced_step_time_s(step, loading, steps)
    saved = Saving.of(step, loading, checkpointing, steps=steps) if checkpointing else None
    left = saved.advice.goodput if saved else training.goodput
    shares = {"data": left * max(0.0, 1 - step.step_time_s / paced)} if data else {}
    if saved:
        shares["checkpoints"] = left * saved.advice.overhead_fraction
        shares["failures"] = 1 - left - shares["checkpoints"]
    elif left < 1:
        shares["stated"] = 1 - left
    if data is None:
        return Losses(paced, shares, saving=saved)
    fills = steps is not None and data.first_epoch_s > data.epoch_s
    steady = step.plan.global_batch / paced_step_time_s(step, loading)
    return Losses(paced, shares, data, saved, fills, Feed.of(step).readers, steady)


def losses_of(step: Step, around: Around) -> Losses | None:
    """Return what a job's steps lose, or None where it says neither how data arrives nor when state is saved."""
    if not (around.loading or around.checkpointing):
        return None
    steps = steps_of(step, around.training) if around.training else None
    return losses(step, around.training or Training(steps=1), around.loading, around.checkpointing, steps)


def steps_of(step: Step, training: Training) -> int:
    """Return the whole steps of a training."""
    return training.steps or ceil((training.tokens or 0.0) / step.tokens_per_step)


def predicted(step: Step, loading: Loading) -> Prediction:
    """Return how fast the busiest node's input pipeline feeds a step."""
    feed = Feed.of(step)
    return _predict(loading, feed.compute_samples_per_s, feed.readers, feed.network_bytes_per_s)


_predict = lru_cache(maxsize=8)(predict)
"""One step is asked again by everything that it loses; workers that share cores take seconds to predict."""


def paced_step_time_s(step: Step, loading: Loading | None, steps: int | None = None) -> float:
    """Return the seconds of a step with what it waits for data.

    steps: of the run, whose first epoch fills the caches, so that it is the mean of all (left out: they are full).
    """
    if not loading:
        return step.step_time_s
    found, samples = predicted(step, loading), Feed.of(step).samples_per_step
    if steps is None:
        return samples / found.samples_per_s
    epochs = steps * samples / (found.epoch_s * found.samples_per_s)
    first = min(1.0, epochs)
    return (first * found.first_epoch_s + (epochs - first) * found.epoch_s) / steps
