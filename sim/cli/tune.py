"""`trainsim tune`: the best plans for a job, ranked and explained."""

import sys
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer
from rich import box
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from sim.cli.output import console, progress_console, run_data, written
from sim.market.job_prices import priced
from sim.plans.files import NUMBERED, plain
from sim.plans.plan_file import save_plans
from sim.report.ranked import WORDS, Ranked, ranked
from sim.report.table import COLUMNS
from sim.report.text import answer_tuned, assumed_words, effect_words, fitting_words, robust_words, run_words
from sim.run import Run, run_of
from sim.specs import InputError, Job
from sim.specs.cluster import MIXED
from sim.specs.files import checked_folder, none_left_empty, print_json
from sim.specs.job import Tune
from sim.tuner.effects import effects
from sim.tuner.stop import Stop
from sim.tuner.tune import Tuned, tune
from sim.units import digits3, grouped, many

BETWEEN = 2
"""Characters between the columns of a table, and beside them."""


def tune_command(
    job: Annotated[Path, typer.Argument(help="Job file (YAML or JSON) with model, cluster and tune (or plan).")],
    out: Annotated[Path | None, typer.Option(help="Folder for report.html and one plan file per plan.")] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="Plans to list.")] = 10,
    budget_s: Annotated[float, typer.Option(min=0, help="Confirm no further plan after this many seconds.")] = inf,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search all plans for the job's devices and rank the best."""
    loaded = Job.load(job)
    if loaded.tune is None and loaded.plan is None:
        raise InputError("tune", None, "required: global_batch, and optionally knobs, objective and target")
    if out:
        checked_folder("--out", out)
        if NUMBERED.fullmatch(job.name) and job.resolve().parent == out.resolve():
            raise InputError("--out", str(out), f"another folder than that of {job}, which is read")
    asked = loaded.tune or Tune(global_batch=loaded.plan.global_batch)  # type: ignore[union-attr]
    cluster = priced(loaded.cluster, loaded.prices, loaded.training)
    with Progress(console=progress_console, transient=True) as bar:
        task = bar.add_task("scoring the space")
        found = tune(
            loaded.model,
            cluster,
            asked.global_batch,
            asked.knobs,
            asked.objective,
            top,
            budget_s,
            plan=loaded.plan,
            target=asked.target,
            training=loaded.training if asked.deadline_days else None,
            deadline_days=asked.deadline_days,
            progress=lambda what, done, of: bar.update(task, description=what, completed=done, total=max(of, done + 1)),
        )
    stop = Stop(list(found.left_out))
    asked_run = partial(run_of, found.best.step, loaded.around)
    run = stop.unless("the whole run", asked_run, None) if loaded.training else None
    if out:
        with written("--out", out), none_left_empty(out):
            out.mkdir(parents=True, exist_ok=True)
            saved = save_plans([r.step for r in found.plans], out, loaded.around)
    if as_json:
        print_json(tuned_data(found, run, stop))
    else:
        _print(found, run, stop)
    sys.stdout.flush()
    if stop.pressed:
        told = f"interrupted: the best plan so far, not certified; left out: {', '.join(stop.left_out)}"
        progress_console.print(told, soft_wrap=True)
    if out:
        if not as_json:
            more = f" to {saved[-1].name}" if len(saved) > 1 else ""
            words = f"plans: {saved[0]}{more}, best first, which trainsim simulate and trainsim emit read"
            console.print(words, highlight=False, soft_wrap=True)
        limit = f" --budget-s {budget_s:g}" if budget_s < inf else ""
        again = f"trainsim tune job.json --top {top}{limit} --out out"
        _report(found, run, out / "report.html", again, as_json)


def _report(found: Tuned, run: Run | None, file: Path, again: str, as_json: bool) -> None:
    """Write the report of what has been printed, which Ctrl-C leaves out."""
    from sim.report.html import save_html  # noqa: PLC0415 - plotly only when asked for

    try:
        with written("--out", file.parent):
            save_html(found, file, command=again, run=run)
    except KeyboardInterrupt:
        progress_console.print(f"interrupted: {file} is left out", soft_wrap=True)
    else:
        if not as_json:
            console.print(f"report: {file}", highlight=False, soft_wrap=True)


def tuned_data(found: Tuned, run: Run | None, stop: Stop) -> dict[str, Any]:
    """Return the JSON object of a search (DESIGN: `trainsim tune`), and of the whole run with the winner."""
    base, robust = found.baseline, found.robustness
    effect = stop.unless("what faster hardware would buy", lambda: found.elasticities, ())
    return {
        "plans": [
            {
                "plan": plain(r.plan),
                "step_time_s": r.step.step_time_s,
                "contended_step_time_s": r.contended_s,
                "step_time_interval_s": list(r.step.step_time_interval_s),
                "mfu": r.step.mfu,
                "peak_memory_bytes": r.step.peak_memory_bytes,
                "memory_kind": "allocated",
                "memory_rank": r.step.fullest.rank,
                "fits": r.step.fits,
                "usd_per_1e9_tokens": r.step.usd_per_1e9_tokens,
                "p_best": r.p_best,
                "why": list(r.why),
            }
            for r in found.plans
        ],
        "objective": found.objective,
        "target": found.space.target,
        "nodes": found.cluster.nodes,
        "evaluated": found.evaluated,
        "feasible": found.feasible,
        "excluded": found.excluded,
        "seconds": found.seconds["total"],
        "seconds_by_part": {name: took for name, took in found.seconds.items() if name != "total"},
        "gap": found.gap,
        "certified": found.certified,
        "robustness": robust
        and {
            "samples": robust.times_s.shape[1],
            "expected_regret": robust.expected_regret,
            "sigmas": robust.sigmas,
            "flip": robust.flip and asdict(robust.flip),
        },
        "elasticities": {e.name: e.elasticity for e in effect},
        "interrupted": stop.pressed,
        "left_out": list(stop.left_out),
        "baseline": base and {"plan": plain(base.plan), "step_time_s": base.step_time_s},
        "speedup": found.speedup,
        "assumptions": [*found.assumed, *found.best.step.assumptions, *(run.assumptions if run else ())],
    } | ({"run": run_data(run)} if run else {})


def _table(made: Ranked, title: str, width: int) -> Table:
    """Return the ranked plans at most `width` characters wide: stages' values wrap, all other cells are whole.

    Where there is no room, MFU and price are left out, which follow the time (but what the plans are ranked by).
    """
    names, whole = list(made.names), {name: _longest(made, name, "\n") for name in made.names}
    least = {n: _longest(made, n, None if _wraps(made, n) else "\n") for n in names}
    for name in ("price", "mfu"):
        if name in names[2:] and sum(whole[n] + BETWEEN for n in names) + BETWEEN > width:
            names.remove(name)
    room = width - BETWEEN - sum(least[n] + BETWEEN for n in names)
    if room < 0:
        least["step_time"] = _longest(made, "step_time", None)  # its interval goes on a line of its own
        room = width - BETWEEN - sum(least[n] + BETWEEN for n in names)
    for _ in range(room):
        tight = max(names, key=lambda n: whole[n] / least[n])
        least[tight] += least[tight] < whole[tight]
    table = Table(title=Text(title), box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in names:
        heading = "\n".join(wrap(COLUMNS[name][0], least[name]))
        left = name in WORDS or _wraps(made, name)
        table.add_column(heading, justify="left" if left else "right", width=least[name], overflow="fold")
    for cells in made.rows:
        table.add_row(*(cells[name] for name in names))
    return table


def _wraps(made: Ranked, name: str) -> bool:
    """Return whether cells of a column list what stages have."""
    return name != "step_time" and any(" " in cells[name] for cells in made.rows)


def _longest(made: Ranked, name: str, between: str | None) -> int:
    """Return the characters of a column's longest cell, or of the longest part where parts may stand on lines of their
    own; no word of the heading is longer."""
    parts = [part for cells in made.rows for part in cells[name].split(between)]
    return max(map(len, [*parts, *COLUMNS[name][0].split()]))


def _print(found: Tuned, run: Run | None, stop: Stop) -> None:
    on = MIXED.join(f"{member.gpus} x {member.device}" for member in found.cluster.members)
    title = f"{found.model.name} on {on}, global batch {found.global_batch}"
    made = ranked(found)
    console.print(_table(made, title, console.width))
    for note in made.notes:
        console.print(note, highlight=False)
    console.print()
    console.print(answer_tuned(found), highlight=False)
    for line in found.best.why[1:]:
        console.print(f"  {line}", highlight=False)
    if found.robustness:
        console.print(f"  {robust_words(found.robustness)}", highlight=False)
    faster = stop.unless(
        "what faster hardware would buy", lambda: effects(found.best.step, known=found.elasticities), ()
    )
    if faster:
        console.print(f"  {effect_words(faster)}", highlight=False)
    price = found.best.step.usd_per_1e9_tokens
    if price is not None:
        console.print(f"  {digits3(price)} USD per 1e9 tokens", highlight=False)
    for line in run_words(run):
        console.print(f"  {line}", highlight=False)
    rate = found.evaluated / max(found.seconds["score"] + found.seconds["stages"], 1e-9)
    proof = found.proof if found.certified else f"not certified ({found.proof})"
    console.print(
        f"\n{many(found.evaluated, 'plan')} scored ({grouped(round(rate))}/s), {fitting_words(found)}; "
        f"{found.seconds['total']:.1f} s in all; optimum of the space {proof}"
    )
    for line in found.assumed:
        console.print(f"assumed: {line}", highlight=False)
    for line in assumed_words(found.best.step, run):
        console.print(line, highlight=False, soft_wrap=True)
