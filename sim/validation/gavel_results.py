"""What `sim.validation.gavel_study` has written, for tables and figures."""

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, get_origin, get_type_hints

from sim.specs.fields import InputError, read, real, spec, whole
from sim.specs.files import load_mapping

Curves = dict[str, dict[float, float]]
Positive = Annotated[float, real(1e-9, 1e12)]
Percent = Annotated[float, real(-100.0, 1e6, "%")]

LOADS, MAKESPANS = "avg_JCT_hours", "makespan_agnostic_over_aware"
"""Published figures beside which ours stand."""


@spec
class Load:
    """Average completion time of jobs of which so many come an hour; `seconds` of the simulation."""

    policy: str
    rate: Positive
    jct_h: Positive
    rho: Positive
    seconds: Positive


@spec
class Makespan:
    """How many times as long jobs that come at once take where types are taken for alike, at a share of fast ones."""

    jobs: Annotated[int, whole(1, 10**9)]
    fraction: Annotated[float, real(0.0, 1.0)]
    seed: Annotated[int, whole(0, 2**31)]
    ratio: Positive


@spec
class Repeated:
    """A published run beside ours, `parity`: by the published rules; `seconds` of both simulations."""

    tag: str
    policy: str
    seed: Annotated[int, whole(0, 2**31)]
    solver: str
    parity: bool
    makespan_percent: Percent
    jct_percent: Percent
    seconds: Positive
    published_seconds: Positive


@spec
class Size:
    """A large cluster; `seconds` of its simulation, of which so many went into allocations."""

    policy: str
    parts: Annotated[int, whole(1, 10**6)]
    jobs: Annotated[int, whole(1, 10**9)]
    devices: Annotated[int, whole(1, 10**9)]
    seconds: Positive
    allocation_seconds: Annotated[float, real(0.0, 1e12, "s")]
    rounds: Annotated[int, whole(1, 10**12)]
    jct_h: Positive
    makespan_h: Positive


@spec
class GavelStudy:
    """Gavel's evaluation done again, and what was published: by figure, policy and x."""

    load: tuple[Load, ...]
    makespan: tuple[Makespan, ...]
    runs: tuple[Repeated, ...]
    sizes: tuple[Size, ...]
    published: dict[str, dict[str, dict[str, float]]]
    date: str

    def __post_init__(self) -> None:
        figures = {name: self.published.get(name, {}) for name in (LOADS, MAKESPANS)}
        wrong = [x for figure in figures.values() for points in figure.values() for x in points if not _is_number(x)]
        if wrong or not figures[LOADS] or len(figures[MAKESPANS]) != 1:
            allowed = f"{LOADS} and {MAKESPANS} (of one policy) by number"
            raise InputError("published", wrong or sorted(self.published), allowed)

    @property
    def loads(self) -> Curves:
        """Average completion times (h) by policy and jobs an hour."""
        return _curves((row.policy, row.rate, row.jct_h) for row in self.load)

    @property
    def published_loads(self) -> Curves:
        """The same as published, at the loads and of the policies that are here."""
        held, found = self.published[LOADS], self.loads
        return {
            name: {rate: held[name][f"{rate:g}"] for rate in curve if f"{rate:g}" in held[name]}
            for name, curve in found.items()
            if name in held
        }

    @property
    def makespans(self) -> Curves:
        """How much longer a policy that does not know types takes, by the share of fast devices; means over seeds."""
        every: dict[tuple[str, float], list[float]] = {}
        for row in self.makespan:
            every.setdefault((f"{row.jobs} jobs", row.fraction), []).append(row.ratio)
        curves = _curves((name, x, fmean(values)) for (name, x), values in every.items())
        (held,) = self.published[MAKESPANS].values()
        return curves | {"published": {float(x): y for x, y in held.items() if float(x) < 1}}

    def parity(self) -> list[Repeated]:
        """Return the published runs that were repeated as published."""
        return [row for row in self.runs if row.parity]

    def default(self) -> list[Repeated]:
        """Return those repeated with the defaults: fixed rounds, exact programs, moves that cost time."""
        return [row for row in self.runs if not row.parity]

    def lines(self) -> Iterator[str]:
        """Yield how near the repeated runs come, and how fast they are."""
        rows = self.parity()
        near = [row for row in rows if abs(row.makespan_percent) < 1 and abs(row.jct_percent) < 2]
        same = [row for row in rows if abs(row.makespan_percent) < 0.01 and abs(row.jct_percent) < 0.01]
        yield (
            f"{len(near)} of {len(rows)} published runs end within 1 % of the makespan and 2 % of the completion time, "
            f"{len(same)} within 0.01 %."
        )
        for name, held in (("as published", rows), ("with the defaults", self.default())):
            ratios = [row.published_seconds / row.seconds for row in held if row.published_seconds >= 1]
            if ratios:
                yield (
                    f"Of {len(ratios)} runs of a second or more the median is {median(ratios):.0f} times as fast "
                    f"{name} ({min(ratios):.1f} to {max(ratios):.0f})."
                )


KINDS = {name: kind for name, kind in get_type_hints(GavelStudy).items() if get_origin(kind) is tuple}
"""Of cases: their names begin so."""


def read_study(path: str | Path) -> GavelStudy:
    """Return what was written; raises InputError for another file."""
    held = load_mapping(Path(path))
    cases = held.get("cases")
    if not {"published", "date"} <= held.keys() or not isinstance(cases, dict):
        raise InputError(str(path), sorted(held), "a file that sim.validation.gavel_study has written")
    kinds = {name: name.partition(": ")[0] for name in cases}
    if unknown := [name for name, kind in kinds.items() if kind not in KINDS]:
        raise InputError(f"{path}: cases", unknown[0], f"names that begin with one of {', '.join(KINDS)}")
    by_kind = {kind: [cases[name] for name in cases if kinds[name] == kind] for kind in KINDS}
    return read(GavelStudy, by_kind | {"published": held["published"], "date": held["date"]}, str(path))


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def _curves(points: Iterator[tuple[str, float, float]]) -> Curves:
    found: Curves = {}
    for name, x, y in points:
        found.setdefault(name, {})[x] = y
    return {name: dict(sorted(curve.items())) for name, curve in found.items()}
