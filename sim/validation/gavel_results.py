"""What `sim.validation.gavel_study` has written, for tables and figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from sim.specs.fields import InputError
from sim.specs.files import load_mapping

Curves = dict[str, dict[float, float]]


@dataclass(frozen=True)
class GavelStudy:
    """Gavel's evaluation done again: every case by name, and what was published."""

    cases: Mapping[str, Mapping[str, Any]]
    published: Mapping[str, Mapping[str, Mapping[str, float]]]
    date: str

    def rows(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the cases of a kind: runs, load, makespan or sizes."""
        return [row for name, row in self.cases.items() if name.startswith(f"{kind}: ")]

    @property
    def loads(self) -> Curves:
        """Average completion times (h) by policy and jobs an hour."""
        return _curves((row["policy"], row["rate"], row["jct_h"]) for row in self.rows("load"))

    @property
    def published_loads(self) -> Curves:
        """The same as published, at the loads and of the policies that are here."""
        held, found = self.published["avg_JCT_hours"], self.loads
        return {
            name: {rate: held[name][f"{rate:g}"] for rate in curve if f"{rate:g}" in held[name]}
            for name, curve in found.items()
            if name in held
        }

    @property
    def makespans(self) -> Curves:
        """How much longer a policy that does not know types takes, by the share of fast devices; means over seeds."""
        every: dict[tuple[str, float], list[float]] = {}
        for row in self.rows("makespan"):
            every.setdefault((f"{row['jobs']} jobs", row["fraction"]), []).append(row["ratio"])
        curves = _curves((name, x, fmean(values)) for (name, x), values in every.items())
        (held,) = self.published["makespan_agnostic_over_aware"].values()
        return curves | {"published": {float(x): y for x, y in held.items() if float(x) < 1}}

    def parity(self) -> list[Mapping[str, Any]]:
        """Return the published runs that were repeated as published."""
        return [row for row in self.rows("runs") if row["parity"]]

    def default(self) -> list[Mapping[str, Any]]:
        """Return those repeated with the defaults: fixed rounds, exact programs, moves that cost time."""
        return [row for row in self.rows("runs") if not row["parity"]]

    def lines(self) -> Iterator[str]:
        """Yield how near the repeated runs come, and how fast they are."""
        rows = self.parity()
        near = [row for row in rows if abs(row["makespan_percent"]) < 1 and abs(row["jct_percent"]) < 2]
        same = [row for row in rows if abs(row["makespan_percent"]) < 0.01 and abs(row["jct_percent"]) < 0.01]
        yield (
            f"{len(near)} of {len(rows)} published runs end within 1 % of the makespan and 2 % of the completion time, "
            f"{len(same)} within 0.01 %."
        )
        for name, held in (("as published", rows), ("with the defaults", self.default())):
            long = [row for row in held if row["published_seconds"] >= 1]
            ratios = [row["published_seconds"] / row["seconds"] for row in long]
            yield (
                f"Of {len(long)} runs of a second or more the median is {median(ratios):.0f} times as fast {name} "
                f"({min(ratios):.1f} to {max(ratios):.0f})."
            )


def read_study(path: str | Path) -> GavelStudy:
    """Return what was written; raises InputError for another file."""
    held = load_mapping(Path(path))
    if not {"cases", "published", "date"} <= held.keys():
        raise InputError(str(path), sorted(held), "a file that sim.validation.gavel_study has written")
    return GavelStudy(held["cases"], held["published"], held["date"])


def _curves(points: Iterator[tuple[str, float, float]]) -> Curves:
    found: Curves = {}
    for name, x, y in points:
        found.setdefault(name, {})[x] = y
    return {name: dict(sorted(curve.items())) for name, curve in found.items()}
