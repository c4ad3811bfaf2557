"""Reader of learned corrections: what executed plans took over what was predicted, kept apart from what was fitted.

`learned.json` lies beside a profile's `profile.json`, whose numbers it never changes: without the file, predictions are
as before. `trainsim execute --learn` writes it. A correction belongs to a group of plans (how they are parallel, on how
many processes, in which precision) and to one fit of the profile, and applies to nothing else.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field

from sim.costs.fitted import Z80, Text, Word
from sim.specs import PlacedPlan
from sim.specs.fields import InputError, read, real, spec, version_one, whole
from sim.specs.files import load_mapping
from sim.units import many, seconds

FILE = "learned.json"
FEW = 3
"""Least plans of a group; of fewer neither the middle nor how they scatter says anything."""

MOST_RUNS, MOST_FACTOR = 1_000, 20.0
BEYOND = 2.0
"""Steps that are so many times as long as the longest plan of a group, or as short, are other steps."""

Kind = Literal["one process", "data parallel", "sharded", "tensor parallel", "pipeline"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""How plans are parallel: "sharded" is data parallelism that gathers what it has split (ZeRO-2 and 3)."""
Seconds = Annotated[float, real(1e-9, 1e6, "s")]
Factor = Annotated[float, real(1 / MOST_FACTOR, MOST_FACTOR)]
End = Annotated[float, real(1e-6, 1e6)]
Ranks = Annotated[int, whole(1, 1_000_000, "processes")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$", description="16 to 64 hexadecimal digits")]
Date = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="a date, YYYY-MM-DD")]


class Group(NamedTuple):
    """What corrections are learned for: plans that are parallel in one way, on so many processes, in one precision."""

    kind: Kind
    processes: int
    precision: str

    def __str__(self) -> str:
        where = "" if self.kind == "one process" else f" on {self.processes} processes"
        return f"{self.kind}{where} in {self.precision}"

    @classmethod
    def of(cls, placed: PlacedPlan) -> "Group | None":
        """Return a plan's group; None of what is never executed: stages of their own, context and expert parallel."""
        plan = placed.plan
        if plan.stages or plan.cp > 1 or plan.ep > 1:
            return None
        return cls(KINDS[int(_kind(plan.tp, plan.pp, placed.dp, plan.zero))], placed.gpus, str(plan.precision))


def _kind(tp: Any, pp: Any, dp: Any, zero: Any) -> Any:
    """Return the place in `KINDS`: a pipeline whatever it has inside, then tensor, then data parallel (arrays too)."""
    data = np.where(np.asarray(dp) > 1, np.where(np.asarray(zero) > 1, 2, 1), 0)
    return np.where(np.asarray(pp) > 1, 4, np.where(np.asarray(tp) > 1, 3, data))


@spec
class LearnedRun:
    """An executed plan: what it was, predicted without any correction and measured seconds of a step.

    id: hash of model, plan and order; the same plan executed again takes the place of the earlier run.
    """

    id: Hash
    date: Date
    what: Text
    kind: Kind
    processes: Ranks
    precision: Word
    predicted_s: Seconds
    measured_s: Seconds
    torch: Word = ""

    def __post_init__(self) -> None:
        if abs(self.log) > log(MOST_FACTOR):
            allowed = f"{MOST_FACTOR:g} times the predicted {self.predicted_s:g} s or less, a {MOST_FACTOR:g}th or more"
            raise InputError("measured_s", self.measured_s, allowed)

    @property
    def log(self) -> float:
        """Log of measured over predicted time."""
        return log(self.measured_s / self.predicted_s)

    @property
    def group(self) -> Group:
        """What it is an example of."""
        return Group(self.kind, self.processes, self.precision)


@spec
class Correction:
    """The factor on the predicted time of a group's plans, from `n` executed ones.

    interval80: of the factor; scatter_log: standard deviation of the log of what plans of the group take beyond it.
    """

    kind: Kind
    processes: Ranks
    precision: Word
    n: Annotated[int, whole(FEW, MOST_RUNS, "executed plans")]
    factor: Factor
    interval80: list[End]
    scatter_log: Annotated[float, real(0.0, 10.0)]

    def __post_init__(self) -> None:
        if len(self.interval80) != 2 or not self.interval80[0] <= self.factor <= self.interval80[1]:
            raise InputError(
                "interval80", self.interval80, f"[lowest, highest], with the factor {self.factor:g} inside"
            )

    @property
    def group(self) -> Group:
        """What it applies to."""
        return Group(self.kind, self.processes, self.precision)

    @property
    def error_log(self) -> float:
        """Standard deviation of the log of the factor."""
        low, high = self.interval80
        return log(high / low) / (2 * Z80)

    def sigma_log(self, beyond: bool) -> float:
        """Return the same for a step; one beyond those that were executed may as well need no correction at all."""
        return max(self.error_log, abs(log(self.factor))) if beyond else self.error_log

    def __str__(self) -> str:
        low, high = self.interval80
        spread = 100 * (exp(Z80 * self.scatter_log) - 1)
        return (
            f"learned correction x{self.factor:.3g} (80 % interval {low:.3g} to {high:.3g}) from {self.n} executed "
            f"plans, {self.group}, which scatter by +-{spread:.2g} %"
        )


@spec
class Learned:
    """What `learned.json` holds: the corrections, and every executed plan that they come from.

    profile_sha256: of the fit that the plans were predicted by. off: why the corrections do not apply (empty: they do).
    """

    schema_version: Annotated[int, version_one()] = 1
    profile_sha256: Hash
    off: Word = ""
    corrections: Annotated[list[Correction], Field(max_length=MOST_RUNS)] = Field(default_factory=list)
    runs: Annotated[
        list[LearnedRun], Field(max_length=MOST_RUNS, description=f"a list of at most {MOST_RUNS} executed plans")
    ] = Field(default_factory=list)

    def __post_init__(self) -> None:
        _once("runs", [run.id for run in self.runs], "every id once")
        _once("corrections", [str(one.group) for one in self.corrections], "every group once")
        for place, one in enumerate(self.corrections):
            logs = [run.log for run in self.runs if run.group == one.group]
            if len(logs) != one.n:
                raise InputError(f"corrections.{place}.n", one.n, f"{len(logs)}, the executed plans of {one.group}")
            # Drawn to 1, never beyond the middle of the plans.
            low, high = sorted((1.0, exp(median(logs))))
            if not low * (1 - 1e-4) <= one.factor <= high * (1 + 1e-4):
                allowed = f"{low:.6g} to {high:.6g}: between none and the middle of its executed plans"
                raise InputError(f"corrections.{place}.factor", one.factor, allowed)

    def of(self, placed: PlacedPlan) -> Correction | None:
        """Return the correction of a plan's group; None outside all groups, or while the corrections are off."""
        group = None if self.off else Group.of(placed)
        return next((one for one in self.corrections if one.group == group), None)

    def beyond(self, group: Group, predicted_s: float) -> bool:
        """Return whether a step is far shorter or longer (`BEYOND`) than those of the group's executed plans."""
        low, high = self._span(group)
        return not low / BEYOND <= predicted_s <= high * BEYOND

    def words(self, placed: PlacedPlan, step_time_s: float) -> str:
        """Return what a prediction of `step_time_s` (corrected) rests on here, as an assumption's text."""
        if self.off:
            return f"learned corrections of {FILE} not applied: {self.off}"
        one = self.of(placed)
        if one is None:
            known = "; ".join(f"{held.group} (x{held.factor:.3g}, {many(held.n, 'plan')})" for held in self.corrections)
            asked = Group.of(placed) or "stages of their own, context and expert parallelism"
            return f"no learned correction for {asked}: outside of what was executed ({known or 'too few plans yet'})"
        dates = sorted(run.date for run in self.runs if run.group == one.group)
        when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        low, high = (seconds(t) for t in self._span(one.group))
        text = f"{one}, executed {when} with steps of {low} to {high}; kept in {FILE}, the fitted numbers are unchanged"
        if self.beyond(one.group, step_time_s / one.factor):
            text += "; this step lies beyond those, and the interval is wider for it"
        return text

    def _span(self, group: Group) -> tuple[float, float]:
        """Return the shortest and the longest predicted step of a group's executed plans, in seconds."""
        times = [run.predicted_s for run in self.runs if run.group == group]
        return min(times), max(times)


def _once(path: str, names: Sequence[str], allowed: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(path, twice, allowed)


def profile_hash(raw: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a profile as its file states it."""
    return sha256(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_learned(folder: Path, fit_sha256: str) -> Learned | None:
    """Return the corrections of a profile folder, None without any; off where they were learned for another fit.

    Raises:
        InputError: the file cannot be read, or a field of it is wrong.
    """
    path = folder / FILE
    if not path.exists():
        return None
    held = read(Learned, load_mapping(path), f"{folder}/{FILE}")
    return held if held.profile_sha256 == fit_sha256 else replace(held, off="the profile was fitted anew since")


def factors(learned: Learned | None, degrees: Mapping[str, Any], precisions: Iterable[str]) -> Any:
    """Return the factors of many plans, an array; the number 1 without corrections.

    degrees: tp, pp, dp, cp, ep (arrays) and zero (a number or an array); precisions: of every plan.
    """
    if learned is None or learned.off or not learned.corrections:
        return 1.0
    tp, pp, dp, cp, ep = (np.asarray(degrees[axis]) for axis in ("tp", "pp", "dp", "cp", "ep"))
    kinds, names = _kind(tp, pp, dp, degrees["zero"]), np.array(list(precisions), dtype=object)
    found = np.ones(len(tp))
    for one in learned.corrections:
        alike = (kinds == KINDS.index(one.kind)) & (tp * pp * dp * cp == one.processes) & (cp == 1) & (ep == 1)
        found[alike & (names == one.precision)] = one.factor
    return found


def least_factor(learned: Learned | None, processes: int) -> float:
    """Return a factor that no plan of so many processes stays below."""
    held = [] if learned is None or learned.off else learned.corrections
    return min([1.0, *(one.factor for one in held if one.processes == processes)])
