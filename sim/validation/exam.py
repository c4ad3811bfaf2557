"""The exam: every published table predicted without its own source, and by half of itself, beside what others reach.

"elsewhere" uses the shipped run-level parameters that never saw the source. "site" is two-fold by group: the groups of
a table are dealt into two halves, run-level parameters are fitted to one (as `trainsim validate --site` does) and
predict the other, and the other way round. A row without a group is a group of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.validation.fit import halved
from sim.validation.predict import Prediction, analytic, elsewhere, fit_site
from sim.validation.table import Measured
from sim.validation.translate import Case
from sim.validation.validate import Validation, summary, translated, validate


@dataclass(frozen=True)
class Goal:
    """What to reach on one site, and what was reached before: mean absolute errors in percent.

    `most_tp`: the widest tensor parallelism among the runs that it speaks of.
    """

    tables: tuple[str, ...]
    site: float
    raw: float
    debiased: float
    prototype_site: float
    most_tp: int | None = None


GOALS: Mapping[str, Goal] = {
    "vtrain_multi, TP <= 8": Goal(("vtrain_multi",), 6, 10, 8, 8.2, 8),
    "bigscience_a100": Goal(("bigscience_a100",), 3.5, 12, 4, 3.6),
    "llm_foundry_mpt": Goal(("llm_foundry_mpt",), 3.5, 10, 5, 4.1),
    "zero_bubble": Goal(("zero_bubble_2401_10241",), 2.5, 6, 4, 3.4),
    "korthikanti + ptdp": Goal(("korthikanti_2205_05198", "ptdp_2104_04473"), 3, 7, 4, 3.1),
    "simumax_b200": Goal(("simumax_b200",), 4, 8, 5, 5.2),
    "torchtitan": Goal(("torchtitan",), 7, 12, 8, 7.8),
}
"""The exam's table; the prototype had 29 parameters. vTrain's also: order >= 0.88 and regret <= 2 % on site."""

PEERS: Mapping[str, str] = {
    "vTrain": "8.37 % on one node, 14.73 % up to 512 GPUs (the authors' claim)",
    "calculon": "19.6 % on vTrain's 109 runs, 11.1 % of them with TP <= 8",
    "SimuMax": "13.2 % on vTrain's 109 runs; B200 time 5.6 % (13.5 % at most), memory 0.46 %",
    "NeuSight": "6.6 % on average on H100 training; single operations 14 - 26 %",
    "Echo": "8 %",
    "Lumos": "3.3 % (replay)",
}
"""Published or measured figures of other simulators: mean absolute errors of step time."""


@dataclass(frozen=True)
class Entry:
    """One line of the exam: summaries (`sim.validation.validate.summary`) of both columns, and the goals if any.

    `site` is None where the table has fewer than two groups with step times that can be predicted.
    """

    name: str
    elsewhere: Mapping[str, Any]
    site: Mapping[str, Any] | None
    goal: Goal | None


def examine(tables: Mapping[str, Sequence[Measured]]) -> Iterator[Entry]:
    """Yield the exam's lines for tables by name: those of one site joined, the others one by one.

    A table of which the goal names a part comes twice, the part first.
    """
    left = dict(tables)
    for name, goal in GOALS.items():
        rows = [row for table in goal.tables for row in tables.get(table, ())]
        part = [row for row in rows if row.tp <= (goal.most_tp or row.tp)]
        if part:
            yield _entry(name, part, goal)
        if goal.most_tp is None:
            left = {table: held for table, held in left.items() if table not in goal.tables}
    for name, held in left.items():
        yield _entry(name, held, None)


def _entry(name: str, rows: Sequence[Measured], goal: Goal | None) -> Entry:
    found = two_fold(rows)
    return Entry(name, summary(validate(rows, elsewhere)), summary(found) if found else None, goal)


def two_fold(rows: Sequence[Measured]) -> Validation | None:
    """Return the rows whose time counts, each half predicted by parameters fitted to the other.

    None where there is nothing to fit one of the halves to.
    """
    timed = [row for row in rows if row.uses & {"time", "time?"}]
    first = halved([row.group or row.id for row in timed])
    halves = [[row for row, mine in zip(timed, first, strict=True) if mine == half] for half in (True, False)]
    told = {case.row.id for case in translated(timed)}
    if not all(any("time" in row.uses and row.id in told for row in half) for half in halves):
        return None

    def predict(cases: Sequence[Case]) -> list[Prediction]:
        mine = {half: [c for c in cases if c.row.id in ids] for half, ids in enumerate(members)}
        answers = {
            case.row.id: answer
            for half, other in ((0, 1), (1, 0))
            if mine[half]
            for case, answer in zip(mine[half], analytic(mine[half], fit_site(mine[other])), strict=True)
        }
        return [answers[case.row.id] for case in cases]

    members = [{row.id for row in half} for half in halves]
    return validate(timed, predict, chunk=None)
