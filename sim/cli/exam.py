"""`trainsim validate --exam` and `--ablation`: every table by what never saw it, and what each cost term is worth."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sim.cli.output import console, progress_console, written
from sim.specs import InputError
from sim.specs.files import print_json
from sim.units import digits3, many
from sim.validation.ablation import Ablated, ablation, write_ablation
from sim.validation.exam import PEERS, Entry, examine
from sim.validation.table import Measured
from sim.validation.validate import Reason, expressed

TIME = {
    "n": "runs",
    "mape": "mean %",
    "mape_debiased": "no bias %",
    "bias": "bias %",
    "p90": "p90 %",
    "pairwise_order": "order",
    "mean_regret": "regret %",
    "coverage80": "in 80 %",
    "median_width": "width %",
}
CONSTANTS = ("MFU %", "+ bubble %")
ROUNDING = 1e-9
"""Percent: of one run the best constant is exact but for this."""
YARDSTICKS = [*TIME.values(), *CONSTANTS]
ROOMY = 110
"""Characters of a terminal from which on columns stand two apart; all of them fit into 80 only one apart."""
HEADING = 6
"""Characters of a line of a heading, as many as most numbers have."""
WORDS = (
    "no bias: without the one factor that is common to all; order: pairs in the right order, and regret: how much "
    "slower the plan predicted fastest is than the fastest, both among runs of one `group`; in 80 %: share of runs in "
    "their 80 % interval; width: of that interval; MFU, + bubble: errors of one constant fitted to these runs"
)
"""What the columns of the errors of step times mean."""
EXAM = [key for key in TIME if key not in ("bias", "p90")]


def examined(tables: Mapping[str, list[Measured]], exam: bool, without: Path | None, as_json: bool) -> None:
    """Print both columns of the exam, and write (and print) what each cost term is worth."""
    cases, skipped = expressed([row for rows in tables.values() for row in rows])
    answer: dict[str, Any] = {"skipped": [asdict(reason) for reason in skipped]}
    if exam:
        with progress_console.status("predicting every table twice"):
            entries = list(examine(tables))
        answer |= {"exam": [asdict(entry) for entry in entries], "peers": dict(PEERS)}
        if not as_json:
            _print_exam([entry for entry in entries if _timed(entry)])
            for entry in entries:
                if not _timed(entry):
                    console.print(f"{entry.name}: no step times or orders to compare", highlight=False)
    if without:
        with progress_console.status("predicting every table without each cost term"):
            found = list(ablation(cases))
        if not found:
            raise InputError("--ablation", list(tables), "tables with step times that can be compared")
        with written("--ablation", without):
            write_ablation(found, without)
        answer["ablation"] = [asdict(row) for row in found]
        if not as_json:
            _print_ablation(found)
    if as_json:
        print_json(answer)
    elif skipped:
        console.print(f"{len(skipped)} of {many(len(cases) + len(skipped), 'row')} skipped", highlight=False)
        print_reasons(skipped)


def print_reasons(reasons: Iterable[Reason], on: Console = console) -> None:
    """Print the most frequent reasons why rows are left out, and how often each holds."""
    for reason, times_seen in Counter(r.reason for r in reasons).most_common(5):
        on.print(f"  {times_seen} x {reason}", highlight=False)


def _timed(entry: Entry) -> bool:
    time = entry.elsewhere["time"]
    return bool(time["n"]) or time["pairwise_order"] is not None


def _print_exam(entries: Sequence[Entry]) -> None:
    shown = table_of("step time, by run-level parameters that never saw the source", [*_headings(), "goal"])
    for entry in entries:
        goal = f"{entry.goal.raw:g}/{entry.goal.debiased:g}" if entry.goal else "-"
        shown.add_row(entry.name, *times_of(entry.elsewhere["time"], EXAM), goal)
    console.print(shown)
    console.print(WORDS, highlight=False)
    headings = [*_headings(), "before", "goal"]
    shown = table_of("step time, each half of a table by parameters fitted to the other", headings)
    for entry in entries:
        if entry.site:
            wanted = (entry.goal.prototype_site, entry.goal.site) if entry.goal else (None, None)
            shown.add_row(entry.name, *times_of(entry.site["time"], EXAM), *map(shown_number, wanted))
    console.print(shown)
    for name, words in PEERS.items():
        console.print(f"{name}: {words}", highlight=False)


def _print_ablation(rows: Sequence[Ablated]) -> None:
    sources = list(dict.fromkeys(row.source for row in rows))
    title = "bias-removed error of the step time in percent, without each cost term"
    shown = table_of(title, [source[:12] for source in sources])
    for term in dict.fromkeys(row.words for row in rows):
        shown.add_row(term, *(shown_number(row.mape_debiased) for row in rows if row.words == term))
    console.print(shown)


def _headings() -> list[str]:
    return [*(TIME[key] for key in EXAM), *CONSTANTS]


def times_of(time: Mapping[str, Any], keys: Iterable[str] = TIME) -> list[str]:
    """Return the cells of a summary of step times, the baselines' errors last."""
    constants = (baseline["mape"] for baseline in time["baselines"].values())
    return [shown_number(value) for value in (*(time[key] for key in keys), *constants)]


def table_of(title: str, headings: Sequence[str]) -> Table:
    """Return an empty table whose first column names a table of runs; the widest columns are the first to break."""
    table = Table(title=title, box=box.SIMPLE, padding=(0, int(console.width >= ROOMY), 0, 0))
    table.add_column("table", overflow="fold")
    for heading in headings:
        words = "\n".join(wrap(heading, HEADING, break_long_words=False))
        table.add_column(words, justify="right", overflow="fold")
    return table


def shown_number(value: Any) -> str:
    """Return a count, a number of three digits, or a dash for nothing."""
    if value is None:
        return "-"
    if abs(value) < ROUNDING:
        return "0"
    return str(value) if isinstance(value, int) else digits3(value) if value >= 0 else f"-{digits3(-value)}"
