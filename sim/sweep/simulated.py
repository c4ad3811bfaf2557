"""Configurations run one by one: every row a whole simulated step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.engine.step import Step, simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.rules import RULES
from sim.specs.spread import Spread
from sim.sweep.filters import SECTIONS
from sim.sweep.grid import Grid
from sim.sweep.numbering import Column, distinct
from sim.sweep.outcome import FAILED, FITS, IMPOSSIBLE, OK, Outcome, Reasons
from sim.sweep.sections import Sections, changes

NumbersOf = dict[str, float]


def simulated(grid: Grid, sections: Mapping[str, Sections], columns: dict[str, Column], rows: int) -> Outcome:
    """Return what becomes of all rows; equal ones are simulated once."""
    found, reasons = Outcome.blank(rows, interval=True), Reasons()
    first, index = distinct(columns.values(), rows)
    for n, row in enumerate(first.tolist()):
        code, numbers, reason = _one(grid, sections, columns, row)
        at = index == n
        found.outcome[at] = code
        found.reason[at] = reasons.index(reason) if reason else -1
        for name, value in numbers.items():
            found.numbers[name][at] = value
    return replace(found, reasons=tuple(reasons.known))


def _one(
    grid: Grid, sections: Mapping[str, Sections], columns: dict[str, Column], row: int
) -> tuple[int, NumbersOf, str]:
    """Return the outcome of one row, its numbers and, without any, the reason."""
    made: list[Any] = []
    for name in SECTIONS:
        own = {path: column for path, column in columns.items() if path.partition(".")[0] == name}
        found = sections[name].at(changes(own, row))
        if isinstance(found, InputError):
            return IMPOSSIBLE, {}, f"{found.path}: {found.allowed}"
        made.append(found)
    model, cluster, plan = made
    try:
        broken = rule_broken(model, cluster, plan)
        if broken:
            return IMPOSSIBLE, {}, broken
        return OK, numbers_of(simulate(model, cluster, plan, "events" if grid.engine == "events" else "path")), ""
    except InputError as error:
        return IMPOSSIBLE, {}, f"{error.path}: {error.allowed}"
    except Exception as error:  # said of the row, and the sweep goes on
        return FAILED, {}, f"{type(error).__name__}: {error}"


def rule_broken(model: Model, cluster: Cluster, plan: Plan) -> str:
    """Return the short reason of the first rule that a plan breaks, or nothing; plans of stages have rules of their
    own."""
    suited = plan.suited(cluster)
    if suited.stages:
        return ""
    spread = Spread.of(suited, cluster)
    return next((rule.reason for rule in RULES if rule.broken(model, spread)), "")


def numbers_of(step: Step) -> NumbersOf:
    """Return the numbers of a step by the name of their column."""
    price, (low, high) = step.usd_per_1e9_tokens, step.step_time_interval_s
    return {
        "step_time_s": step.step_time_s, "step_time_low_s": low, "step_time_high_s": high,
        "peak_memory_bytes": step.peak_memory_bytes, "fits": FITS.index(step.fits), "mfu": step.mfu,
        "tokens_per_s_per_gpu": step.tokens_per_s_per_gpu,
        "usd_per_1e9_tokens": float("nan") if price is None else price,
    }  # fmt: skip
