"""Who saves beside training, as processes: a trainer, what takes snapshots, and what writes them, one at a time.

The clock counts ticks of 1 ns. While a snapshot is written, training and writing slow each other; while training waits,
nothing slows the writing.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import simpy

from sim.checkpointing.durations import Times
from sim.engine.clock import to_ticks
from sim.engine.shared import Shared

Process = Generator[simpy.Event, None, None]
MORE_STEPS = 2
"""How many steps more lie between two checkpoints after an interval over the budget, as in CheckFreq's code."""


@dataclass(frozen=True)
class Span:
    """A part of saving the state after `step`, in ticks."""

    kind: Literal["snapshot", "persist"]
    step: int
    start_ns: int
    end_ns: int


class Trained(NamedTuple):
    """Ticks of one step: it begins, has its gradients, begins to update the weights, and ends."""

    start: int
    ready: int
    updating: int
    end: int


class Checkpointer:
    """Saves every `steps_between` steps; at most one snapshot is being written.

    adapt_budget: the share of training that saving may take: after an interval that took more, two more steps lie
    between checkpoints. `times` may change while it runs: what begins later takes them.
    """

    def __init__(
        self, env: simpy.Environment, times: Times, steps_between: int, adapt_budget: float | None = None
    ) -> None:
        self.env, self.times, self.steps_between, self.adapt_budget = env, times, steps_between, adapt_budget
        self.disk = Shared(env, 1.0)
        """Gives every second a second of writing, or less beside training."""
        self.persisting = False
        self.last_saved: int | None = None
        self.spans: list[Span] = []
        self.changes = [(int(env.now), steps_between)]
        """Since when how many steps lie between checkpoints: (tick, steps)."""
        self._hooks: list[Callable[[bool], None]] = []
        self._since, self._began = 0, -1
        self._snapshot = self._written = self._at_once()

    def on_persist(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` with True when a snapshot begins to be written, with False when it is."""
        self._hooks.append(callback)

    def before_update(self) -> simpy.Event:
        """Return what the weight update must wait for: a snapshot in progress."""
        return self._snapshot if not self._snapshot.processed else self._at_once()

    def after_step(self, step: int) -> simpy.Event:
        """Return what training must wait for after `step`: nothing, or until the next snapshot can begin."""
        self._since += 1
        return self.env.process(self._due(step)) if self._since >= self.steps_between else self._at_once()

    def begin(self, step: int) -> simpy.Event:
        """Begin to save the state after `step`; return what training must wait for."""
        self._since, self._began = 0, int(self.env.now)
        self._snapshot, self._written = self.env.event(), self.env.event()
        self.env.process(self._save(step))
        return self._written if self.times.kind == "none" else self._at_once()

    def _at_once(self) -> simpy.Event:
        return self.env.event().succeed()

    def _due(self, step: int) -> Process:
        if self.persisting:
            self.disk.resize(1.0)  # training waits and slows nothing
        yield self._written
        self._adapt()
        yield self.begin(step)

    def _adapt(self) -> None:
        if self.adapt_budget is None or self._began < 0:
            return
        allowed = (1 + self.adapt_budget) * self.steps_between * self.times.iteration_s
        if self.env.now - self._began > to_ticks(allowed):
            self.steps_between += MORE_STEPS
            self.changes.append((int(self.env.now), self.steps_between))

    def _save(self, step: int) -> Process:
        times, begun = self.times, int(self.env.now)
        if times.kind == "none":
            self._snapshot.succeed()
        else:
            yield self.env.timeout(to_ticks(times.snapshot_s))
            self.spans.append(Span("snapshot", step, begun, int(self.env.now)))
            self._snapshot.succeed()
        begun = int(self.env.now)
        self._tell(True)
        if times.kind == "none":
            self.disk.resize(1.0)
            yield self.disk.use(times.snapshot_s)
        else:
            self.disk.resize(1 / (1 + times.contention))
            yield self.disk.use(times.written_s)
        self.last_saved = step
        self.spans.append(Span("persist", step, begun, int(self.env.now)))
        self._tell(False)
        self._written.succeed()

    def _tell(self, begun: bool) -> None:
        self.persisting = begun
        for hook in self._hooks:
            hook(begun)


class Trainer:
    """Runs steps: all but the update, the update once no snapshot holds it up, and what its checkpointer asks for."""

    def __init__(self, env: simpy.Environment, checkpointer: Checkpointer) -> None:
        self.env, self.checkpointer = env, checkpointer
        self.speed = Shared(env, 1.0)
        self.ends: list[int] = []
        """The tick at which each step ended."""
        self.trained: list[Trained] = []
        checkpointer.on_persist(self._share)

    def _share(self, begun: bool) -> None:
        self.speed.resize(1 / (1 + self.checkpointer.times.contention) if begun else 1.0)

    def run(self, steps: int, first: int = 1) -> Process:
        """Run `steps` steps, of which the first has the number `first`."""
        for step in range(first, first + steps):
            times, start = self.checkpointer.times, int(self.env.now)
            yield self.speed.use(times.iteration_s - times.update_s)
            ready = int(self.env.now)
            yield self.checkpointer.before_update()
            updating = int(self.env.now)
            yield self.speed.use(times.update_s)
            self.ends.append(int(self.env.now))
            self.trained.append(Trained(start, ready, updating, self.ends[-1]))
            yield self.checkpointer.after_step(step)
