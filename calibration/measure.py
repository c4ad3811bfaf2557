"""The sampler: cases of all families in seeded random order, checked, timed in batches between sentinels, stored."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from json import dumps
from math import isnan
from typing import Any
from zlib import crc32

from calibration.guards import MOST_OTHERS, drift, moved
from calibration.instruments import Instruments
from calibration.kernels.family import Case, Family, Machine, Suite
from calibration.store import Skip, Store
from calibration.timing import Method, Timing, TooLongError, timed
from sim.costs.algebra import Interpreted

BATCH_S = 2.0
"""Seconds of cases between two readings of the sentinel."""

MOST_FAILURES = 10
"""Cases that may fail one after another: then it is the device, not the case."""

Progress = Callable[[int, int, str], None]
"""Called with (cases done, cases in all, what is measured now)."""


@dataclass(frozen=True)
class Task:
    """A case with the family that prepares it."""

    family: Family
    case: Case


def order(families: Iterable[Family], machine: Machine, suite: Suite, seed: int) -> list[Task]:
    """Return all cases so that a short budget reaches every family and direction: shuffled lanes, one of each in turn.

    A lane is one (family, op, direction); the same seed gives the same order.
    """
    rng = random.Random(seed)
    lanes: dict[tuple[str, str, str], dict[str, Task]] = {}
    for family in families:
        for case in family.cases(machine, suite):
            lanes.setdefault((family.name, case.op, case.direction), {})[case.id] = Task(family, case)
    rows = [list(lane.values()) for lane in lanes.values()]
    for row in rows:
        rng.shuffle(row)
    rng.shuffle(rows)
    return [task for turn in zip_longest(*rows) for task in turn if task is not None]


class WrongError(Exception):
    """A kernel whose result is not the reference's: it must not be timed."""


class LostError(Exception):
    """So many cases failed one after another that the device itself must be in trouble."""


@dataclass(frozen=True)
class Outcome:
    """What a session came to: cases not measured with the reason, and how many the budget left."""

    skipped: tuple[Skip, ...]
    left: int


@dataclass
class Sampler:
    """Measures tasks into `store` until all are done or `budget_s` is used up.

    `stamp` (session, commit) is put into every row; `reference_s` is what the sentinel takes on the machine as it
    should be; with `flag_all` the machine is known to be busy. A batch that
    drifted or was disturbed is measured once more, after everything else, where the budget allows.
    """

    machine: Machine
    method: Method
    tools: Instruments
    store: Store
    stamp: Mapping[str, str]
    budget_s: float
    reference_s: float
    seed: int = 0
    flag_all: bool = False
    progress: Progress = lambda done, total, text: None
    _failures: int = 0
    _skipped: dict[str, Skip] = field(default_factory=dict)

    def run(self, tasks: Sequence[Task]) -> Outcome:
        """Measure what the store does not hold yet; what it holds is written whatever happens.

        Raises:
            LostError: ten cases failed in a row.
        """
        self._end_s = self.tools.now() + self.budget_s
        queue = deque(task for task in tasks if task.case.id not in self.store.rows)
        again: set[str] = set()
        try:
            before_s = self.tools.sentinel()
            self.tools.load.others()
            while queue and self.tools.now() < self._end_s:
                batch = list(self._batch(queue, len(tasks)))
                before_s, flagged = self._close(batch, before_s)
                if flagged and not self.flag_all:
                    queue.extend(task for task, _ in batch if task.case.id not in again)
                    again.update(task.case.id for task, _ in batch)
        finally:
            self.store.write()
        wanted = {task.case.id for task in tasks}
        return Outcome(tuple(self._skipped.values()), len(wanted - self.store.rows.keys() - self._skipped.keys()))

    def _batch(self, queue: deque[Task], total: int) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Yield the measured rows of the next cases, about two seconds of them."""
        begin = self.tools.now()
        while queue and self.tools.now() < min(begin + BATCH_S, self._end_s):
            task = queue.popleft()
            self.progress(total - len(queue) - 1, total, f"{task.case.op} {task.case.direction}")
            row = self._attempt(task)
            if row is not None:
                yield task, row

    def _attempt(self, task: Task) -> dict[str, Any] | None:
        """Return the row of a case, None where it cannot be measured (the reason is kept)."""
        try:
            row = self._measure(task)
        except TooLongError:
            return None  # what is left may still hold a shorter one
        except WrongError as error:
            self._skip(task, str(error))
        except Exception as error:  # one kernel that a device lacks must not end the session
            self._failed(task, error)
        else:
            self._failures = 0
            return row
        return None

    def _failed(self, task: Task, error: Exception) -> None:
        if out_of_memory(error):
            error.__traceback__ = None  # its frames still hold the tensors of the case
            self.tools.stopwatch.release()
            self._skip(task, "out of memory")
            return
        self._skip(task, f"failed: {type(error).__name__}: {error}")
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise LostError(f"{self._failures} cases failed in a row, the last with {error}") from error

    def _skip(self, task: Task, reason: str) -> None:
        self._skipped[task.case.id] = Skip(id=task.case.id, reason=" ".join(reason.split())[:300])

    def _measure(self, task: Task) -> dict[str, Any]:
        case = task.case
        work = task.family.prepare(case, self.machine, self.seed ^ crc32(case.id.encode()))
        error = float(work.error())
        if error > work.tolerance:
            raise WrongError(f"wrong: relative error {error:.3g} above {work.tolerance:g}, not timed")
        timing = timed(work, self.method, self.tools.stopwatch, self._end_s - self.tools.now())
        return _row(task, timing, work.calls, error) | dict(self.stamp)

    def _close(self, batch: list[tuple[Task, dict[str, Any]]], before_s: float) -> tuple[float, bool]:
        """Store a batch with the sentinel's ratio and the sensors' readings; return the sentinel's time and flag."""
        after_s = self.tools.sentinel()
        ratio = drift(self.reference_s, before_s, after_s)
        disturbed = self.tools.load.others() > MOST_OTHERS
        flagged = self.flag_all or disturbed or moved(ratio)
        readings = asdict(self.tools.sensors.read())
        for _, row in batch:
            self.store.add(row | readings | {"sentinel_ratio": ratio, "flagged": flagged})
        self.store.write_if_due()
        return after_s, flagged


def _row(task: Task, timing: Timing, calls: int, error: float) -> dict[str, Any]:
    case = task.case
    formulas = Interpreted({"flop": task.family.flop, "bytes": task.family.bytes})
    return {
        **{name: getattr(case, name) for name in ("op", "direction", "dtype", "layout", "implementation")},
        "group": case.group,
        "use": case.use,
        "id": case.id,
        "calls": calls,
        **asdict(timing),
        **{name: float(value) for name, value in formulas(case.shape).items()},
        "shape": dumps(dict(case.shape)),
        "error": None if isnan(error) else error,
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }


def out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory ran out, on the device or on the host."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
    )
