"""What a search may try: a knob of the job file fixed to a value, listed, or bounded."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from sim.specs.fields import InputError, check, spec, whole
from sim.specs.plan import Offload, Plan

PLAN_KNOBS = (
    "tp", "pp", "cp", "ep", "virtual_stages", "micro_batch", "zero", "fsdp_shard", "recompute", "sequence_parallel",
    "schedule", "precision", "tempo",
)  # fmt: skip
STAGE_KNOBS = ("recompute_layers", *(f"offload_{each.name}" for each in fields(Offload)))
"""Knobs of single stages, which only plans of unequal stages vary."""

KNOBS = (*PLAN_KNOBS, "unequal_stages", "imbalance", *STAGE_KNOBS)
"""All knobs; `unequal_stages` says whether the stages of a plan may differ, `imbalance` by what factor a stage's layers
and devices may differ from an equal share."""

MAX_IMBALANCE = 16_384
"""Of any model's layers."""

BOUNDED = KNOBS[: KNOBS.index("recompute")]
"""Knobs that are numbers, and so may have bounds."""

MAX_KNOB_VALUES = 256
HELP = "a value, a list of values, or {min: .., max: ..}"


@spec
class Bounds:
    """All values of a knob from `min` to `max`, both included, that the model, cluster and batch can take.

    Raises:
        InputError: neither end is given, or `max` is below `min`.
    """

    min: Annotated[int, whole(0, 10_000_000)] | None = None
    max: Annotated[int, whole(0, 10_000_000)] | None = None

    def __post_init__(self) -> None:
        if self.min is None and self.max is None:
            raise InputError("", {}, "min, max or both")
        if self.min is not None and self.max is not None and self.max < self.min:
            raise InputError("max", self.max, f"at least min = {self.min}")

    def holds(self, value: int) -> bool:
        """Return whether `value` lies inside."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


Values = list[int | bool | str | float] | Bounds


def knob_values(knobs: Mapping[str, Any], global_batch: int) -> tuple[dict[str, Values], list[InputError]]:
    """Return what each knob may be, and everything that is wrong; paths start at `knobs`."""
    made: dict[str, Values] = {}
    problems: list[InputError] = []
    for name, raw in knobs.items():
        one = _Knob(name, global_batch)
        values, found = one.bounds(raw) if isinstance(raw, Mapping | Bounds) else one.listed(raw)
        problems += found
        made[name] = values
    return made, problems


@dataclass(frozen=True)
class _Knob:
    name: str
    global_batch: int

    def error(self, value: object, allowed: str, inner: str = "") -> list[InputError]:
        return [InputError(f"knobs.{self.name}{inner}", value, allowed)]

    def listed(self, raw: Any) -> tuple[Values, list[InputError]]:
        values = list(raw) if isinstance(raw, list | tuple) else [raw]
        if self.name not in KNOBS:
            return [], self.error(raw, "a knob: " + ", ".join(KNOBS))
        if not 1 <= len(values) <= MAX_KNOB_VALUES:
            return [], self.error(raw, f"a list of 1 to {MAX_KNOB_VALUES} values")
        shares = self.name.startswith("offload_") or self.name == "imbalance"
        known = int | bool | str | float if shares else int | bool | str
        for n, value in enumerate(values):
            if not isinstance(value, known):
                if values == [raw]:
                    return [], self.error(raw, HELP)
                return [], self.error(value, "a whole number or true or false or text", f".{n}")
        return values, [problem for value in values for problem in self._problems(value)]

    def bounds(self, raw: Any) -> tuple[Values, list[InputError]]:
        if self.name not in BOUNDED:
            known = self.name in KNOBS
            return [], self.error(raw, "a value or a list of values" if known else "a knob: " + ", ".join(KNOBS))
        found, problems = check(Bounds, raw, f"knobs.{self.name}")
        if found is None:
            return [], problems
        for end in ("min", "max"):
            if getattr(found, end) is not None:
                wrong = self._problems(getattr(found, end))
                problems += [InputError(f"{p.path}.{end}", p.value, p.allowed) for p in wrong]
        return found, problems

    def _problems(self, value: object) -> list[InputError]:
        if self.name == "unequal_stages":
            return [] if isinstance(value, bool) else self.error(value, "true or false")
        if self.name == "fsdp_shard" and value == 0 and not isinstance(value, bool):
            return []  # all data-parallel ranks
        if self.name == "imbalance":
            known = isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= MAX_IMBALANCE
            return [] if known else self.error(value, f"a number from 1 to {MAX_IMBALANCE}")
        what = self.name.removeprefix("offload_")
        if what == self.name:
            return check(Plan, {"global_batch": self.global_batch, self.name: value}, "knobs")[1]
        return [
            p for problem in check(Offload, {what: value}, "")[1] for p in self.error(problem.value, problem.allowed)
        ]
