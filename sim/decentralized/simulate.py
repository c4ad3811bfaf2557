"""A decentralised training, simulated: partitions that compute, exchange, let models travel, and change theta."""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import simpy

from sim.decentralized.accuracy import AccuracyModel, Estimate
from sim.decentralized.controllers import controller
from sim.decentralized.laws import bsp_law, travels_to
from sim.decentralized.objective import Observation
from sim.decentralized.processes import PARTS, SHOWN, Links, Partition, Process, traveller
from sim.decentralized.results import Simulated, Since, SlowLink, Travel
from sim.decentralized.setting import Decentralized, Failure
from sim.decentralized.traffic import Messages
from sim.engine.clock import TICK_S, to_ticks
from sim.specs.arguments import checked
from sim.specs.fields import InputError

SLOW = 2.0
"""Assumption: a link is named whose messages take more than so many times as long as those of the middle one."""
DRAWS = 1
"""Beside the seed: what draws accuracy losses, so that jitter draws others."""


@checked
def simulate(
    setting: Decentralized, model: AccuracyModel | None = None, observed: Sequence[float] | None = None
) -> Simulated:
    """Return time, traffic, theta and accuracy of a training.

    model: what accuracy a theta leaves, for the setting's algorithm (`sim.decentralized.fit_accuracy`); without it
    accuracies are None, and theta cannot be controlled but by what was observed. observed: the accuracy loss of every
    travel, as a real run of the setting saw it; left out: those of the model.

    Raises:
        InputError: a controller has neither, there are too few, or the model is of another algorithm.
    """
    if observed is None or model is not None:
        checked_model(setting, model)
    if observed is not None and setting.travel_every and len(observed) < setting.steps // setting.travel_every:
        raise InputError(
            "observed", f"{len(observed)} losses", f"{setting.steps // setting.travel_every}, of each travel"
        )
    env = simpy.Environment()
    run = _Run(env, setting, model, observed)
    env.run(until=env.process(run.run()))
    return run.result()


def checked_model(setting: Decentralized, model: AccuracyModel | None) -> None:
    """Refuse a controller without short runs, and short runs of another algorithm."""
    if setting.adapts and model is None:
        raise InputError("accuracy", None, f"required with controller {setting.controller}: a table of short runs")
    if model and model.algorithm != setting.algorithm:
        raise InputError("accuracy", model.algorithm, f"short runs of {setting.algorithm}")


class _Run:
    """One training: rounds from one meeting of all partitions to the next, an exchange or a travel."""

    def __init__(
        self,
        env: simpy.Environment,
        setting: Decentralized,
        model: AccuracyModel | None,
        observed: Sequence[float] | None,
    ) -> None:
        self.env, self.setting, self.model, self.observed = env, setting, model, observed
        self.partitions = [Partition(env, n) for n in range(setting.partitions)]
        self.links = Links(env, setting.wan, self.partitions)
        first = setting.thetas.index(setting.begin) if setting.adapts else 0
        thetas = setting.thetas if setting.adapts else (setting.begin,)
        self.controller = controller(setting.controller, thetas, setting.objective, setting.seed, first)
        self.random = np.random.default_rng([setting.seed, DRAWS])
        self.step = self.since_exchange = self.exchanges = self.travel_bytes = 0
        self.theta = self.controller.theta
        self.thetas = [Since(0, 0.0, self.theta)]
        self.travels: list[Travel] = []
        self.known: set[int] = set()
        """Partitions that are known to have failed."""
        self.reports: list[str] = []
        self.seen: dict[tuple[tuple[int, ...], int], _Alike] = {}
        """Rounds by the ticks of each partition and the bytes of a message."""
        for failure in setting.failures:
            env.process(self._fail(failure))

    @property
    def living(self) -> list[Partition]:
        """Partitions that nobody knows to have failed."""
        return [p for p in self.partitions if p.number not in self.known]

    @property
    def now_s(self) -> float:
        """Seconds from the begin."""
        return int(self.env.now) * TICK_S

    def run(self) -> Process:
        """Train until all steps are done, or one partition is left."""
        while self.step < self.setting.steps:
            if len(self.living) < 2:
                left = "one partition is left: there is nobody to train with" if self.living else "no partition is left"
                self.reports.append(f"after {self.step} minibatches {left}")
                return
            yield from self._round()
            every = self.setting.travel_every
            if every and self.step % every == 0 and len(self.living) > 1:
                yield from self._travel()

    def _round(self) -> Process:
        """Compute until the next meeting, and exchange if it is time."""
        period = self.messages.communication.period
        ends = [self.step + max(1, period - self.since_exchange), self.setting.steps]
        if every := self.setting.travel_every:
            ends.append((self.step // every + 1) * every)
        end = min(ends)
        exchange = self.since_exchange + end - self.step >= period
        size = self.messages.bytes_at(end) if exchange else 0
        ticks = np.diff(self.setting.computed([self.step, end]), axis=1)[:, 0].tolist()
        key = (tuple(ticks), size)
        if seen := self.seen.get(key):
            times = self._times(end) if exchange and not self.since_exchange else 1
            end += (times - 1) * (end - self.step)
            yield self.env.timeout(times * seen.ticks)
            seen.repeat(times)
        else:
            here, times = self.living, 1
            alike = _Alike(self.partitions, self.links) if self._repeats else None
            yield self.env.all_of([self.env.process(p.round(ticks[p.number], self.links, size)) for p in here])
            for partition in here:
                if not partition.failed:
                    partition.tell("waiting", partition.ready, int(self.env.now))
            if alike:
                self.seen[key] = alike.ended()
        if any(not p.failed for p in self.living):  # else nobody has ended the round
            self.since_exchange = 0 if exchange else self.since_exchange + end - self.step
            self.exchanges += exchange * times
            self.step = end
        yield from self._notice()

    @property
    def _repeats(self) -> bool:
        """Whether a round goes like any other of its length and size: nothing fails or changes, all is shown."""
        setting = self.setting
        changing = setting.failures or setting.wan.changes or setting.jitter
        return not changing and all(len(p.spans) >= SHOWN for p in self.partitions)

    def _times(self, end: int) -> int:
        """Return how many rounds like the one to `end` follow each other until models travel or messages change."""
        length, last = end - self.step, self.setting.steps
        if every := self.setting.travel_every:
            last = min(last, (self.step // every + 1) * every)
        last = min([last, *(stage - 1 for stage in self.messages.stages if stage > end)])
        return (last - self.step) // length

    def _travel(self) -> Process:
        """Let every model travel to one other partition, and the controller decide by what it shows there."""
        here, begun, before = self.living, int(self.env.now), self.links.arrived_bytes
        size, evaluate = self.setting.sizes.model_bytes, self.setting.evaluate_s
        found = yield self.env.all_of(
            [
                self.env.process(traveller(self.env, self.links, p.number, target.number, size, evaluate))
                for n, p in enumerate(here)
                for target in [here[travels_to(n, len(here), len(self.travels))]]
            ]
        )
        self.travel_bytes += self.links.arrived_bytes - before
        for partition in here:
            if not partition.failed:
                partition.tell("travel", begun, int(self.env.now))
        yield from self._notice()
        self._decide(sum(found.values()))

    def _decide(self, models: int) -> None:
        theta, begin = self.theta, self.travels[-1].step if self.travels else 0
        sent = self.messages.bytes_per_step(begin, self.step)
        lost, objective = self._lost() if models else None, None
        if lost is not None:
            seen = Observation(theta, lost, sent, self.setting.sizes.model_bytes)
            objective = self.setting.objective.value(seen)
            self.theta = self.controller.observe(seen)
        self.travels.append(Travel(self.step, self.now_s, theta, lost, sent, objective, self.theta, models))
        if self.theta != theta:
            self.thetas.append(Since(self.step, self.now_s, self.theta))

    def _lost(self) -> float | None:
        """Return the accuracy that travelling models lose now; None where nothing says it."""
        if self.observed is not None:
            return self.observed[len(self.travels)]
        if self.model is None:
            return None
        estimate = self.model.accuracy_loss(self.theta, self.setting.skew)
        drawn = float(self.random.standard_normal()) if self.setting.noise else 0.0
        return estimate.value + drawn * estimate.sigma

    @property
    def messages(self) -> Messages:
        """What is sent with the theta of now."""
        fraction = self.model.sent_fraction(self.theta, self.setting.skew) if self.model else 1.0
        return self.setting.messages(self.theta, fraction)

    def _fail(self, failure: Failure) -> Process:
        yield self.env.timeout(to_ticks(failure.at_s))
        if not self.partitions[failure.partition].failed:
            self.partitions[failure.partition].fail()
            self.links.cut(failure.partition)

    def _notice(self) -> Generator[simpy.Event, Any, None]:
        """Wait for partitions that failed, until they are known to have; where all failed nobody waits."""
        while new := [p.number for p in self.living if p.failed]:
            if len(new) == len(self.living):
                self.known.update(new)
                return
            begun = int(self.env.now)
            yield self.env.timeout(to_ticks(self.setting.timeout_s))
            self.known.update(new)
            for partition in self.living:
                if not partition.failed:
                    partition.tell("timeout", begun, int(self.env.now))
            names = ", ".join(map(str, new))
            word = "partition" if len(new) == 1 else "partitions"
            self.reports.append(
                f"{word} {names} failed; after minibatch {self.step}, {self.now_s:.4g} s from the begin, the others "
                f"noticed and went on with {len(self.living)}"
            )

    def result(self) -> Simulated:
        """Return what the training came to."""
        setting = self.setting
        slow = tuple(slow_links(self.links))
        told = tuple(
            f"link {s.source} -> {s.target} is slow: {s.seconds:.4g} s a message, {s.times:.3g} times the middle link's"
            for s in slow
        )
        bsp = bsp_law(setting)
        model, final = self.model, self.controller.settled
        return Simulated(
            setting=setting,
            seconds=self.now_s,
            steps=self.step,
            exchanges=self.exchanges,
            update_bytes=self.links.arrived_bytes - self.travel_bytes,
            travel_bytes=self.travel_bytes,
            thetas=tuple(self.thetas),
            travels=tuple(self.travels),
            final_theta=final,
            accuracy=self._accuracy(),
            accuracy_loss=model.accuracy_loss(final, setting.skew) if model else None,
            parts_s=tuple({part: ticks * TICK_S for part, ticks in p.ticks.items()} for p in self.partitions),
            spans=tuple(span for p in self.partitions for span in p.spans),
            slow_links=slow,
            failed=tuple(sorted(p.number for p in self.partitions if p.failed)),
            reports=(*self.reports, *told),
            bsp_seconds=bsp.seconds,
            bsp_traffic_bytes=bsp.traffic_bytes,
            assumptions=(*setting.assumptions, *self._assumptions()),
        )

    def _accuracy(self) -> Estimate | None:
        """Return the accuracy of the run's end: the mean over thetas by the steps that each was trained with."""
        if self.model is None or not self.step:
            return None
        ends = [since.step for since in self.thetas[1:]] + [self.step]
        weights = [end - since.step for since, end in zip(self.thetas, ends, strict=True)]
        each = [self.model.accuracy(since.theta, self.setting.skew) for since in self.thetas]
        rows = [[e.value, e.low, e.high, e.sigma] for e in each]
        return Estimate(*(float(x) for x in np.average(rows, axis=0, weights=weights)))

    def _assumptions(self) -> Iterator[str]:
        yield "an exchange ends when every message has arrived everywhere; training waits while models are evaluated"
        if self.model is None:
            yield "accuracy: not predicted, no short runs are given"
            if self.setting.algorithm == "gaia":
                yield "sent_fraction = 1: Gaia sends what the data make significant, and no short runs say how much"
            return
        run = self.model.runs[0]
        yield (
            f"accuracy: that of short runs of {run.steps} minibatches ({run.data}, norm {run.norm}), in the mean over "
            "the thetas by the minibatches that each was trained with"
        )
        if any(self.model.beyond(since.theta, self.setting.skew) for since in self.thetas):
            yield "accuracy: theta or skew lie beyond what was measured; it is that of the edge"


class _Alike:
    """What a round adds to all that is counted, so that those like it need not be run again."""

    def __init__(self, partitions: Sequence[Partition], links: Links) -> None:
        self.partitions, self.links, self._begun = partitions, links, int(links.env.now)
        self._before = self._counts()

    def _counts(self) -> Counter[Any]:
        found: Counter[Any] = Counter({None: self.links.arrived_bytes})
        for partition in self.partitions:
            found.update({(partition, part): ticks for part, ticks in partition.ticks.items()})
        for link, counts in self.links.carried.items():
            found.update({(link, n): count for n, count in enumerate(counts)})
        return found

    def ended(self) -> "_Alike":
        """Keep what was added since this was made, and how many ticks it took."""
        self.added, self.ticks = self._counts(), int(self.links.env.now) - self._begun
        self.added.subtract(self._before)
        return self

    def repeat(self, times: int) -> None:
        """Add it so many times more."""
        self.links.arrived_bytes += times * self.added[None]
        for partition in self.partitions:
            for part in PARTS:
                partition.ticks[part] += times * self.added[partition, part]
        for link, (count, ticks) in self.links.carried.items():
            self.links.carried[link] = count + times * self.added[link, 0], ticks + times * self.added[link, 1]


def slow_links(links: Links) -> Iterator[SlowLink]:
    """Yield links whose messages take much longer than those of the middle one, the slowest first."""
    means = {link: ticks / count for link, (count, ticks) in links.carried.items()}
    middle = median(means.values()) if means else 0.0
    for (source, target), mean in sorted(means.items(), key=lambda one: -one[1]):
        if mean > SLOW * middle:
            yield SlowLink(source, target, mean * TICK_S, mean / middle)
