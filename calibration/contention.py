"""Fit of the 12 numbers of `sim.costs.contention` to times of operations that start together.

Rows belong to one device, one communicator shape and one session: mixing two sessions of one device costs more than
all the rest. How long each operation takes alone comes from the rows in which only its stream runs; as these are few
and the model is exact to a few thousandths inside a node, the fit may correct each of them by a few percent.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from calibration.fit import FOLDS, SEED
from calibration.samples import Floats
from sim.costs.contention import STREAMS, Contention, makespan, rows

NUMBERS = len(STREAMS) * (len(STREAMS) - 1)
MOST = 20.0
"""Largest slowdown: beyond it a stream stands still while the other runs."""
START = 0.2
LOSS_SCALE = 0.02
ALONE_SIGMA = 0.05
"""How far a time alone may be off (standard deviation of its log)."""
QUIET = 0.1
"""Rows whose own standard deviation is more than this share of their time say nothing about a few percent."""
FEWEST = 60
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Together:
    """Measured seconds of operations that start together, of one device, communicator shape and session.

    amount: [n, 4], what each stream has to do in any unit of its own (0: nothing); spread: [n], standard deviations.
    """

    device: str
    n_in: int
    n_out: int
    session: str
    amount: Floats
    seconds: Floats
    spread: Floats
    source: str

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True)
class Fitted:
    """A fitted matrix, and held-out errors (mape, percent) of two models without parameters beside its own."""

    contention: Contention
    longest: float
    total: float


@dataclass(frozen=True)
class Levels:
    """Rows with several streams. which: [n, 4], index into `alone`, whose last entry is 0 (nothing to do)."""

    which: NDArray[np.int64]
    alone: Floats
    seconds: Floats

    def subset(self, mask: NDArray[np.bool_]) -> "Levels":
        """Return the rows where `mask` is true."""
        return Levels(self.which[mask], self.alone, self.seconds[mask])


def levels(samples: Together) -> Levels:
    """Return the quiet rows with several streams whose operations were also measured alone."""
    quiet = samples.spread <= QUIET * samples.seconds
    streams = (samples.amount > 0).sum(axis=1)
    alone: list[float] = []
    which = np.full(samples.amount.shape, -1)
    for k in range(len(STREAMS)):
        single = quiet & (streams == 1) & (samples.amount[:, k] > 0)
        for amount in np.unique(samples.amount[single, k]):
            same = samples.amount[:, k] == amount
            which[same, k] = len(alone)
            alone.append(float(np.median(samples.seconds[single & same])))
    known = ((which >= 0) == (samples.amount > 0)).all(axis=1)
    use = quiet & (streams > 1) & known
    return Levels(np.where(which[use] < 0, len(alone), which[use]), np.array([*alone, 0.0]), samples.seconds[use])


def usable(samples: Together) -> bool:
    """Return whether enough quiet rows have several streams: at least half of them, and `FEWEST`."""
    several = int(((samples.amount > 0).sum(axis=1) > 1).sum())
    return len(levels(samples).seconds) >= max(FEWEST, several / 2)


def solve(data: Levels) -> tuple[list[list[float]], Floats]:
    """Return the matrix and the corrected times alone that fit best, by a soft L1 loss on log time."""
    used = np.unique(data.which[data.which < len(data.alone) - 1])

    def unpack(x: Floats) -> tuple[list[list[float]], Floats]:
        alone = data.alone.copy()
        alone[used] *= np.exp(ALONE_SIGMA * x[NUMBERS:])
        return rows(x[:NUMBERS].tolist()), alone

    def residuals(x: Floats) -> Floats:
        matrix, alone = unpack(x)
        off = np.log(makespan(alone[data.which], matrix) / data.seconds) / LOSS_SCALE
        # The corrections are Gaussian, so the loss is applied here and not to all residuals alike.
        return np.append(np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1)), x[NUMBERS:])

    free = np.full(len(used), np.inf)
    bounds = np.append(np.zeros(NUMBERS), -free), np.append(np.full(NUMBERS, MOST), free)
    start = np.append(np.full(NUMBERS, START), np.zeros(len(used)))
    found = least_squares(residuals, start, bounds=bounds, ftol=TOLERANCE, xtol=TOLERANCE, gtol=TOLERANCE)
    return unpack(found.x)


def held_out(data: Levels) -> Floats:
    """Return the seconds of every row predicted without its fold."""
    predicted = np.empty(len(data.seconds))
    fold = np.random.default_rng(SEED).permutation(len(predicted)) % FOLDS
    for k in range(FOLDS):
        matrix, alone = solve(data.subset(fold != k))
        predicted[fold == k] = makespan(alone[data.which[fold == k]], matrix)
    return predicted


def fit(samples: Together) -> Fitted:
    """Return the matrix of one device, communicator shape and session, with its held-out error."""
    data = levels(samples)
    matrix, _ = solve(data)
    alone = data.alone[data.which]
    errors = {
        name: float(100 * np.abs(predicted / data.seconds - 1).mean())
        for name, predicted in (("own", held_out(data)), ("max", alone.max(axis=1)), ("sum", alone.sum(axis=1)))
    }
    source = (
        f"{samples.source}: {len(data.seconds)} rows of 2 - 4 streams, {FOLDS}-fold held out mape "
        f"{errors['own']:.2f} % (the longest alone {errors['max']:.1f} %, the sum {errors['sum']:.1f} %)"
    )
    made = Contention(
        n_in=samples.n_in,
        n_out=samples.n_out,
        matrix=[[round(value, 3) for value in row] for row in matrix],
        form="fluid-12",
        mape=round(errors["own"], 3),
        n=len(data.seconds),
        session=samples.session,
        source=source,
    )
    return Fitted(made, errors["max"], errors["sum"])


def fit_device(samples: Iterable[Together]) -> list[Contention]:
    """Return a device's matrices by shape, all from the one session that is predicted best on average."""
    sessions: dict[str, list[Contention]] = {}
    for each in samples:
        if usable(each):
            sessions.setdefault(each.session, []).append(fit(each).contention)
    if not sessions:
        return []
    best = min(sessions.values(), key=lambda found: (-len(found), float(np.mean([c.mape for c in found]))))
    return sorted(best, key=lambda c: (c.n_out, c.n_in))
