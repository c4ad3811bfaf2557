"""The ranked plans as a table: the columns in which they differ, and in words what they share and what ranks them."""

from collections.abc import Mapping
from dataclasses import dataclass

from sim.report.shown import Table
from sim.report.table import COLUMNS, formatted, ranking
from sim.tuner.tune import Tuned
from sim.units import gigabytes

ALWAYS = ("rank", "step_time", "over_best", "memory", "p_best")
"""Columns that stand also where all plans have the same cell, unless it is empty."""

OF_OBJECTIVE = {"cost": "price", "tokens_per_usd": "price", "memory_headroom": "memory"}
"""The column of what an objective other than the step time ranks by; it stands first."""

USUAL = {
    "cp": "1", "ep": "1", "virtual_stages": "1", "fsdp_shard": "all", "schedule": "none", "fits": "yes",
    "price": "not known", "tempo": "off",
}  # fmt: skip
"""What goes without saying where all plans have it; so does what stays on the device."""

IMPLIED = {"none", "1f1b", "interleaved"}
"""Schedules that follow from pp and v."""

WORDS = ("schedule", "precision", "recompute")
"""Columns of words, which begin at the same edge."""


@dataclass(frozen=True)
class Ranked:
    """The ranked plans as text. names: of the columns shown (of `COLUMNS`); rows: all cells of every plan, best first;
    notes: sentences on what ranks the plans, what they share and how cells of unequal stages are read."""

    names: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]
    notes: tuple[str, ...]


def ranked(tuned: Tuned) -> Ranked:
    """Return the short list of a search; plans that differ have different cells."""
    raw = ranking(tuned)
    rows = tuple(map(formatted, raw))
    first = OF_OBJECTIVE.get(tuned.objective)
    held = {name: {cells[name] for cells in rows} for name in COLUMNS}
    if not any(" " in cell for cell in held["layers"]):
        del held["layers"]  # pp and v say it
    if len(held["schedule"]) > 1 and held["schedule"] <= IMPLIED:
        del held["schedule"]  # so here
    shown = [n for n, cells in held.items() if len(cells) > 1 or (n in (*ALWAYS, first) and cells != {""})]
    names = sorted(shown, key=lambda name: (name != "rank", name != first))
    quiet = USUAL | {name: "0" for name in COLUMNS if name.endswith("_on_host")}
    shared = {name: next(iter(cells)) for name, cells in held.items() if name not in names}
    said = [f"{COLUMNS[n][0]} {cell}" for n, cell in shared.items() if cell and cell != quiet.get(n)]
    memory = f"{gigabytes(raw[0]['capacity_bytes'])} of memory a device; peaks are {COLUMNS['memory'][1]}"
    notes = [_order(tuned), f"All: {', '.join(said)}, {memory}."]
    if any(len(plan.plan.stages) > 1 for plan in tuned.plans):
        notes.append('Values of unequal stages stand in their order; "8x3 6" is three stages of 8 and one of 6.')
    return Ranked(tuple(names), rows, tuple(notes))


def ranking_table(tuned: Tuned) -> Table:
    """Return the short list of a search as a table that shows itself, its notes below."""
    made = ranked(tuned)
    cells = tuple(tuple(row[name] for name in made.names) for row in made.rows)
    headings = tuple(COLUMNS[name][0] for name in made.names)
    return Table(headings, cells, tuple(name not in WORDS for name in made.names), made.notes)


def _order(tuned: Tuned) -> str:
    if tuned.objective == "memory_headroom":
        return "Ranked by free memory."
    what = "price, which follows the step time" if tuned.objective in OF_OBJECTIVE else "step time"
    if tuned.best.contended_s is None:
        return f"Ranked by {what} on the path engine: interrupted before the event engine had run any, with contention."
    return (
        f"Ranked by {what} on the event engine (with contention), shown over the first plan's; step times are the path "
        "engine's."
    )
