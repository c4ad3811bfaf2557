"""`trainsim report`: what a sweep's store holds, as a page or a table."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, Progress

from sim.cli.output import checked_files, console, progress_console, written
from sim.cli.sweep import found_words, words
from sim.report.swept_files import save_csv, save_parquet
from sim.specs import InputError
from sim.specs.files import print_json
from sim.sweep.store import Store


def report_command(
    store: Annotated[Path, typer.Argument(help="The store of a sweep, finished or not.")],
    html: Annotated[Path | None, typer.Option(help="Write a page with figures, in one HTML file.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Write all configurations as a Parquet file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write all configurations as a CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what a sweep has found, and write it as a page or a table."""
    if not store.is_file():
        raise InputError(str(store), "no such file", "the store of a sweep")
    asked = checked_files({"--html": html, "--parquet": parquet, "--csv": csv}, store)
    with Store(store) as held:
        for option, target in asked.items():
            with written(option, target):
                _save(option, held, target)
        if as_json:
            print_json(report_data(held))
            return
        console.print(words(held.counts), highlight=False)
        for told in found_words(held):
            console.print(told, highlight=False, soft_wrap=True)
    for target in asked.values():
        console.print(f"written: {target}", highlight=False, soft_wrap=True)


def _save(option: str, store: Store, target: Path) -> None:
    if option == "--html":
        from sim.report.sweep_page import save_sweep_html  # noqa: PLC0415 - plotly only when asked for

        save_sweep_html(store, target)
        return
    save = {"--parquet": save_parquet, "--csv": save_csv}[option]
    with Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), console=progress_console, transient=True
    ) as bar:
        task = bar.add_task(f"rows of {target.name}", total=store.counts.done)
        save(store, target, lambda rows: bar.advance(task, rows))


def report_data(store: Store) -> dict[str, Any]:
    """Return the JSON object of a store: its counts and the best so far."""
    counts = store.counts
    best = counts.best and {
        "number": counts.best[0], "value": counts.best[1], "configuration": store.configuration(counts.best[0]),
    }  # fmt: skip
    held = {k: v for k, v in asdict(counts).items() if k != "best"}
    return held | {"done": counts.done, "left": counts.left, "objective": store.head.objective, "best": best}
