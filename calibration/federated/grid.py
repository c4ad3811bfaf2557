"""Many short trainings: what accuracy an algorithm loses by theta, skew, network and data."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated

from calibration.federated.algorithms import ALGORITHMS
from calibration.federated.data import DataName
from calibration.federated.models import Norm
from calibration.federated.setting import Setting
from calibration.federated.train import train
from calibration.journal import read_journal, write_journal
from sim.costs.fitted import short
from sim.decentralized.communication import KNOBS, AlgorithmName, Communication
from sim.specs.arguments import checked
from sim.specs.fields import read, real, spec, whole

Share = Annotated[float, real(-1.0, 1.0)]


@spec
class Row:
    """The columns of the table.

    `accuracy`: of the mean of the models on test data; `accuracy_loss`: by travelling, in the later half of the run;
    `sent_bytes`: from one partition to one other for a minibatch; `sent_fraction`: of a message's values, those that
    say something.
    """

    algorithm: AlgorithmName
    theta: Annotated[float, real(0.0, 1e6)]
    skew: Share
    norm: Norm
    data: DataName
    seed: Annotated[int, whole(0, 2**31 - 1)]
    steps: Annotated[int, whole(1, 1_000_000)]
    accuracy: Share
    accuracy_loss: Share
    sent_bytes: Annotated[float, real(0.0, 1e12, "bytes")]
    sent_fraction: Share


@spec
class Short(Row):
    """A short run: a row, and the mean accuracy of the partitions' own models on test data."""

    partition_accuracy: Share


@dataclass(frozen=True)
class Case:
    """A run to be made."""

    setting: Setting
    communication: Communication

    @property
    def key(self) -> tuple[object, ...]:
        """What names its row."""
        at, how = self.setting, self.communication
        return how.algorithm, how.theta, at.skew, at.norm, at.data, at.seed, at.steps


def key(row: Row) -> tuple[object, ...]:
    """Return what names a row among those of one grid."""
    return row.algorithm, row.theta, row.skew, row.norm, row.data, row.seed, row.steps


def cases(
    settings: Iterable[Setting], algorithms: Sequence[AlgorithmName] = tuple(ALGORITHMS), every: int = 1
) -> list[Case]:
    """Return a case for each setting, algorithm and `every`-th of its thetas."""
    return [
        Case(setting, Communication(algorithm=algorithm, theta=theta))
        for setting in settings
        for algorithm in algorithms
        for theta in KNOBS[algorithm].thetas[::every]
    ]


Progress = Callable[[int, int, str], object]


@checked
def accuracy_grid(
    wanted: Sequence[Case], store: Path, budget_s: float = 3600.0, told: Progress = lambda done, total, text: None
) -> list[Short]:
    """Return a row for each case that is done: those of the file `store` (JSON lines), and new ones until the budget
    (s) is spent. The file is written after every run, whole or not at all; told: how far it is.

    Raises:
        InputError: the file has other lines.
    """
    rows = {key(row): row for row in read_lines(store)}
    begin, left = monotonic(), [case for case in wanted if case.key not in rows]
    for at, case in enumerate(left):
        if monotonic() - begin > budget_s:
            break
        told(len(wanted) - len(left) + at, len(wanted), " ".join(map(str, case.key)))
        rows[case.key] = row_of(case)
        write_journal(store, (short(asdict(row)) for row in rows.values()))
    return [rows[case.key] for case in wanted if case.key in rows]


def row_of(case: Case) -> Short:
    """Return what a run of the case comes to."""
    run = train(case.setting, case.communication)
    return Short(
        algorithm=case.communication.algorithm,
        theta=case.communication.theta,
        skew=case.setting.skew,
        norm=case.setting.norm,
        data=case.setting.data,
        seed=case.setting.seed,
        steps=case.setting.steps,
        accuracy=run.accuracy,
        accuracy_loss=run.accuracy_loss,
        sent_bytes=run.sent_bytes,
        sent_fraction=run.sent_fraction,
        partition_accuracy=sum(run.partition_accuracy) / len(run.partition_accuracy),
    )


def read_lines(path: Path) -> list[Short]:
    """Return the rows of a file of JSON lines.

    Raises:
        InputError: a line is no row.
    """
    return [read(Short, row, f"{path}:{number}") for number, row in enumerate(read_journal(path), 1)]
