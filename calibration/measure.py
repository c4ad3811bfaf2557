"""The sampler: cases of all families in seeded random order, checked, timed in batches between sentinels, stored."""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain, zip_longest
from json import dumps
from math import isnan
from statistics import median
from typing import Any
from zlib import crc32

from calibration.guards import MOST_OTHERS, drift, moved
from calibration.instruments import Instruments
from calibration.kernels.family import Case, Family, Machine, Suite, Work
from calibration.samples import FAIR, LEAST, fitted_as, preference
from calibration.stand_ins import STAND_INS
from calibration.store import Skip, Store
from calibration.timing import Method, Timing, TooLongError, timed
from sim.costs.algebra import Interpreted
from sim.costs.kernels import KERNELS

MOST_FAILURES = 10
"""Cases that may fail one after another until the device is looked at."""

BESIDE = ("collective", "beside")
"""Operations of processes beside each other, for which the sentinel is not asked."""

Progress = Callable[[int, int, str], None]
"""Called with (cases done, cases in all, what is measured now)."""


@dataclass(frozen=True)
class Task:
    """A case with the family that prepares it."""

    family: Family
    case: Case

    def prepared(self, machine: Machine, seed: int) -> Work:
        """Return the case ready to run, its inputs drawn from the session's seed and its own name."""
        return self.family.prepare(self.case, machine, seed ^ crc32(self.case.id.encode()))


def order(families: Iterable[Family], machine: Machine, suite: Suite, seed: int) -> list[Task]:
    """Return all cases in seeded random order, arranged so that a budget that ends early has left every lane its share.

    First come `LEAST` fitted cases of what a profile must hold, of kernels that nothing stands in for before others.
    A lane is one (family, op, direction). The first `FAIR` cases of all lanes come in turn; then longer lanes come
    more often, so that all end together. In a lane `LEAST` fitted cases come before hold-outs, evenly mixed, join them.
    """
    rng = random.Random(seed)
    lanes: dict[tuple[str, str, str], dict[str, Task]] = {}
    for family in families:
        for case in family.cases(machine, suite):
            lanes.setdefault((family.name, case.op, case.direction), {})[case.id] = Task(family, case)
    rows = [_mixed(list(lane.values()), rng) for lane in lanes.values()]
    rng.shuffle(rows)
    required = _required(list(chain(*rows)))
    names = {task.case.id for task in required}
    everything = _in_turn([row[:FAIR] for row in rows]) + _proportional([row[FAIR:] for row in rows])
    return required + [task for task in everything if task.case.id not in names]


def _required(tasks: Sequence[Task]) -> list[Task]:
    """Return the fitted cases without which a budget that ends early leaves no profile, or one of stand-ins.

    Of a kernel with several implementations, those of the one that the simulator reads first.
    """
    held: dict[tuple[str, str], dict[str, list[Task]]] = {key: defaultdict(list) for key in KERNELS}
    for case, task in ((task.case, task) for task in tasks if task.case.use == "fit"):
        if (key := (case.op, case.direction)) in held:
            held[key][fitted_as(case.op, case.implementation)].append(task)
    rows: dict[bool, list[list[Task]]] = {False: [], True: []}
    for key, found in held.items():
        if found:
            name = min(found, key=lambda name: (len(found[name]) < LEAST, preference(name)))
            rows[key in STAND_INS].append(found[name][:LEAST])
    return _in_turn(rows[False]) + _in_turn(rows[True])


def _in_turn(rows: Sequence[Sequence[Task]]) -> list[Task]:
    return [task for turn in zip_longest(*rows) for task in turn if task is not None]


def _mixed(lane: list[Task], rng: random.Random) -> list[Task]:
    rng.shuffle(lane)
    first = [task for task in lane if task.case.use == "fit"][:LEAST]
    others = [task for task in lane if task not in first]
    uses = dict.fromkeys(task.case.use for task in others)
    return first + _proportional([[task for task in others if task.case.use == use] for use in uses])


def _proportional(rows: Sequence[Sequence[Task]]) -> list[Task]:
    """Return the rows merged, each spread evenly over the whole."""
    places = [((n + 0.5) / len(row), which, n) for which, row in enumerate(rows) for n in range(len(row))]
    return [rows[which][n] for _, which, n in sorted(places)]


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
    """Measures tasks into `store` until all are done or `budget_s` is used up, then flagged ones once more.

    `stamp` (session, commit) is put into every row. `reference_s` is what the sentinel takes on the machine as it
    should be: at first what the caller saw, in the end the session's `usual` (processors slow down when they get warm,
    and the state that most samples were taken in is the one to compare with) unless `fixed`. With `flag_all`
    the machine is known to be busy. `settled` hears of that state before samples relative to it are written.
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
    fixed: bool = False
    progress: Progress = lambda done, total, text: None
    settled: Callable[[float], None] = lambda seconds: None
    _failures: int = 0
    _skipped: dict[str, Skip] = field(default_factory=dict)
    _disturbed: set[str] = field(default_factory=set)

    def run(self, tasks: Sequence[Task]) -> Outcome:
        """Measure what the store does not hold yet; what it holds is written whatever happens.

        Raises:
            LostError: ten cases failed in a row, and the sentinel too.
        """
        self._end_s = self.tools.now() + self.budget_s
        held = self.store.rows
        try:
            self._measure_all([task for task in tasks if task.case.id not in held])
            self._compare_with_usual()
            if not self.flag_all:
                self._measure_all([task for task in tasks if task.case.id in held and held[task.case.id]["flagged"]])
        finally:
            self.store.write()
        return self.outcome(tasks)

    def outcome(self, tasks: Sequence[Task]) -> Outcome:
        """Return what the session has come to so far, also where `run` was interrupted."""
        wanted = {task.case.id for task in tasks}
        return Outcome(tuple(self._skipped.values()), len(wanted - self.store.rows.keys() - self._skipped.keys()))

    def _measure_all(self, tasks: Sequence[Task]) -> None:
        queue = deque(tasks)
        before_s = self.tools.sentinel() if queue else 0.0
        self.tools.load.others()
        while queue and self.tools.now() < self._end_s:
            batch = list(self._batch(queue, len(tasks)))
            before_s = self._close(batch, before_s)

    def _compare_with_usual(self) -> None:
        """Make the usual sentinel ratio 1, and flag by the ratios that come of it."""
        rows = {name: row for name, row in self.store.rows.items() if row["op"] not in BESIDE}
        if self.flag_all or self.fixed or not rows:
            return
        middle = usual([row["sentinel_ratio"] for row in rows.values()])
        for name, row in rows.items():
            # A row of an earlier call that is flagged with a sentinel as it should be was disturbed otherwise.
            disturbed = name in self._disturbed or (row["flagged"] and not moved(row["sentinel_ratio"]))
            ratio = row["sentinel_ratio"] / middle
            row.update(sentinel_ratio=ratio, flagged=disturbed or moved(ratio))
        self.reference_s *= middle
        self.settled(self.reference_s)

    def _batch(self, queue: deque[Task], total: int) -> Iterator[dict[str, Any]]:
        """Yield the measured rows of the next cases, about `method.batch_s` of them."""
        begin = self.tools.now()
        while queue and self.tools.now() < min(begin + self.method.batch_s, self._end_s):
            task = queue.popleft()
            self.progress(total - len(queue) - 1, total, f"{task.case.op} {task.case.direction}")
            row = self._attempt(task)
            if row is not None:
                yield row

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
            self._look_for_device(error)
            self._failures = 0

    def _look_for_device(self, error: Exception) -> None:
        """Raise LostError unless the sentinel still runs: cases that fail in a row may all lack the same thing."""
        try:
            self.tools.sentinel()
        except Exception as lost:
            raise LostError(f"{self._failures} cases failed in a row, the last with {error}; then {lost}") from lost

    def _skip(self, task: Task, reason: str) -> None:
        self._skipped[task.case.id] = Skip(id=task.case.id, reason=" ".join(reason.split())[:300])

    def _measure(self, task: Task) -> dict[str, Any]:
        work = task.prepared(self.machine, self.seed)
        error = float(work.error())
        if error > work.tolerance:
            raise WrongError(f"wrong: relative error {error:.3g} above {work.tolerance:g}, not timed")
        timing = timed(work, self.method, self.tools.stopwatch, self._end_s - self.tools.now())
        return _row(task, timing, work.calls, error) | dict(self.stamp)

    def _close(self, batch: list[dict[str, Any]], before_s: float) -> float:
        """Store a batch with the sentinel's ratio and the sensors' readings; return the sentinel's time."""
        after_s = self.tools.sentinel()
        ratio = drift(self.reference_s, before_s, after_s)
        disturbed = self.tools.load.others() > MOST_OTHERS or moved(after_s / before_s)
        flagged = self.flag_all or disturbed or moved(ratio)
        readings = asdict(self.tools.sensors.read())
        for row in batch:
            self.store.add(row | readings | {"sentinel_ratio": ratio, "flagged": flagged})
            (self._disturbed.add if disturbed else self._disturbed.discard)(row["id"])
        self.store.write_if_due()
        return after_s


def usual(ratios: Sequence[float]) -> float:
    """Return the median of those of `ratios` that most agree on: that lie within `MOST_DRIFT` of one of them.

    Unlike the median of all it is that of the undisturbed machine also where more than half were disturbed.
    """
    held = sorted(Counter(ratios).items())
    centre = max(held, key=lambda each: (sum(n for other, n in held if not moved(other / each[0])), -each[0]))[0]
    return median(ratio for ratio in ratios if not moved(ratio / centre))


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
