"""Whether a profile is of this machine as it is now: a kernel of each kind that it was fitted to, timed again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from calibration.device import machine
from calibration.kernels.family import Family
from calibration.kernels.registry import FAMILIES
from calibration.measure import order
from calibration.session import Bench, open_bench
from calibration.store import SAMPLES, SESSION, load_session, read_samples
from calibration.timing import METHODS, TooLongError, timed
from calibration.undisturbed import taken
from sim.catalog import folder, names
from sim.units import digits3

OPS = (
    "gemm",
    "attention",
    "convolution",
    "norm",
    "gelu",
    "softmax",
    "elementwise",
    "cross_entropy",
    "embedding",
    "adam",
    "launch",
)
"""What training steps consist of."""

MOST_S, EACH_S = 0.01, 0.5
"""Longest kernel that is timed again, and the seconds that it may take with all its samples."""

OTHER = 1.15
"""A machine that takes longer than this, or so much less, is not the one that the profile is of."""


@dataclass(frozen=True)
class SpotCheck:
    """Seconds of kernels now over those that the profile was fitted to, by op."""

    profile: str
    ratios: Mapping[str, float]

    @property
    def typical(self) -> float:
        """The median ratio."""
        return median(self.ratios.values())

    @property
    def span(self) -> tuple[float, float]:
        """The ratios' deciles."""
        low, high = np.quantile(list(self.ratios.values()), (0.1, 0.9))
        return float(low), float(high)

    @property
    def other(self) -> bool:
        """Whether the profile is of another machine, or of this one in another state."""
        return not 1 / OTHER <= self.typical <= OTHER

    def widened(self, interval_s: tuple[float, float]) -> tuple[float, float]:
        """Return an interval of predicted seconds, of another machine so that it reaches to what this one may take: a
        step is a weighted mean of its kernels."""
        if not self.other:
            return interval_s
        low, high = self.span
        return interval_s[0] * min(1.0, low), interval_s[1] * max(1.0, high)

    def lines(self, setting: str) -> tuple[str, ...]:
        """Return what to tell whoever reads predictions from the profile, nothing where it is of this machine.

        setting: what names another profile.
        """
        if not self.other:
            return ()
        low, high = (digits3(ratio) for ratio in self.span)
        return (
            f"{len(self.ratios)} kernels take {digits3(self.typical)} times as long here ({low} - {high}) as where and "
            f"when the profile {self.profile} was measured: predictions are of that machine, not of this one. "
            "`trainsim calibrate --device cpu --out out/my-cpu` measures this one, "
            f"{setting} out/my-cpu predicts with it",
        )

    def data(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"profile": self.profile, "typical": self.typical, "span": self.span, "ratios": dict(self.ratios)}


def spot_check(profile: str, bench: Bench | None = None, families: Sequence[Family] = FAMILIES) -> SpotCheck | None:
    """Return how long kernels of a CPU's profile (of the catalog, or a folder) take now, in about two seconds.

    None where it was not fitted to samples of a session of its own, as those from published data or a trace are.

    Raises:
        InputError: its samples or its session cannot be read.
    """
    held = Path(str(folder("profiles"))) / profile if profile in names("profiles") else Path(profile)
    if not all((held / name).is_file() for name in (SAMPLES, SESSION)):
        return None
    bench = bench or open_bench("cpu")
    session, here = load_session(held), machine(bench.fingerprint)
    tasks = {task.case.id: task for task in order(families, here, session.suite, session.seed)}
    fitted = [row for row in taken(read_samples(held / SAMPLES), itemgetter("op")) if row["use"] == "fit"]
    ratios = {}
    for op in OPS:
        rows = [row for row in fitted if row["op"] == op and row["id"] in tasks and 0 < row["t_s"] <= MOST_S]
        if not rows:
            continue
        row = sorted(rows, key=itemgetter("t_s"))[len(rows) // 2]
        work = tasks[row["id"]].prepared(here, session.seed)
        try:
            ratios[op] = timed(work, METHODS["cpu"], bench.tools.stopwatch, EACH_S).t_s / row["t_s"]
        except TooLongError:  # many times as long: the others say so too
            continue
    return SpotCheck(profile, ratios) if ratios else None
