"""The report as one HTML file: nothing is fetched, nothing from input is markup, light and dark."""

import json
from base64 import b64encode
from dataclasses import is_dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path

from plotly.offline import get_plotlyjs

from sim.engine.step import Step
from sim.plans.files import job_data, plain
from sim.report import markup as m
from sim.report import search, sections
from sim.report.text import answer, answer_tuned
from sim.run import Run
from sim.run.trained import Trained
from sim.specs.arguments import checked
from sim.specs.files import write_atomically
from sim.tuner.tune import Tuned
from sim.units import counted, many

TOP_PLANS = 5


@checked
def save_html(
    result: Tuned | Step,
    path: str | Path,
    command: str | None = None,
    run: Run | None = None,
    trained: Trained | None = None,
) -> Path:
    """Write the report of a search or of one step to `path` and return the path.

    command: the shell command that makes the same report, with `job.json` for the job printed beside it;
    None is the usual one; run: the whole run that the step (of the best plan) is part of; trained: a stretch of it,
    simulated (of one step's report). The file holds plotly.js once and works without a network.

    Raises:
        InputError: the folder is missing or not writable; nothing is left behind.
    """
    target = Path(path)
    write_atomically(target, page(result, command, run, trained))
    return target


def page(
    result: Tuned | Step, command: str | None = None, run: Run | None = None, trained: Trained | None = None
) -> str:
    """Return the report as text."""
    if isinstance(result, Tuned):
        return document(*_search(result, command, run))
    return document(*_step(result, command, run, trained))


def document(title: str, body: str) -> str:
    """Return a whole page of `body`, finished HTML, with plotly.js and the scripts that draw its figures."""
    css, script = _resource("page.css"), _resource("page.js")
    scripts = [get_plotlyjs(), script]
    hashes = " ".join(f"'sha256-{b64encode(sha256(s.encode()).digest()).decode()}'" for s in scripts)
    # Only the two scripts below may run, and nothing may be fetched, whatever the page holds.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {hashes}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{css}</style></head>\n"
        f"<body><main>\n{body}</main>\n" + "".join(f"<script>{s}</script>\n" for s in scripts) + "</body></html>\n"
    )


def _resource(name: str) -> str:
    return (files("sim.report") / name).read_text("utf-8")


def _header(title: str, sentence: str, step: Step) -> str:
    model, cluster = step.model, step.cluster
    sample = "one sample at a time" if model.table and not model.table.seq else f"sequence {model.seq}"
    facts = f"{counted(model.parameters)} parameters, {sample}, global batch {step.plan.global_batch}; " + " and ".join(
        f"{c.nodes} {'node' if c.nodes == 1 else 'nodes'} of {c.gpus_per_node} × {c.hardware.title}"
        for c in cluster.members
    )
    return (
        f"<header><h1>{escape(title)}</h1>{m.paragraph(facts, 'facts')}{m.paragraph(sentence, 'answer')}"
        f"{sections.step_cards(step)}</header>\n"
    )


def _search(tuned: Tuned, command: str | None, run: Run | None) -> tuple[str, str]:
    best = tuned.best.step
    title = f"Best parallel plan for {tuned.model.name} on {many(tuned.cluster.gpus, 'GPU')}"
    top = {f"plan {n}": r.step for n, r in enumerate(tuned.plans[:TOP_PLANS], 1)}
    top |= {"textbook": tuned.baseline} if tuned.baseline else {}
    job = job_data(tuned.model, tuned.cluster, best.plan, run.around if run else None)
    job["tune"] = {
        "global_batch": tuned.global_batch,
        # On the nodes that a deadline has led to, the search is one for the step time.
        "objective": "step_time" if tuned.objective == "gpus_for_deadline" else tuned.objective,
        "target": tuned.space.target,
        "knobs": {k: list(v) for k, v in tuned.knobs.items()},
    }
    kept = {name: plain(value) if is_dataclass(value) else value for name, value in tuned.space.kept.items()}
    job["plan"] = kept | {"global_batch": tuned.global_batch}  # what is not searched comes from the plan of the job
    body = [
        _header(title, answer_tuned(tuned), best),
        search.ranking_section(tuned),
        sections.run_section(best, run),
        search.against_section(tuned),
        sections.timeline_section(best),
        sections.memory_section(best),
        sections.breakdown_section(top),
        "" if tuned.interrupted else search.hardware_section(tuned),
        search.front_section(tuned),
        search.search_section(tuned),
        sections.certainty_section(best),
        _again(command or f"trainsim tune job.json --top {len(tuned.plans)} --out out", job),
    ]
    return title, "".join(body)


def _step(step: Step, command: str | None, run: Run | None, trained: Trained | None) -> tuple[str, str]:
    title = f"One training step of {step.model.name} on {many(step.placed.gpus, 'GPU')}"
    engine = " --engine events" if step.contention else ""
    body = [
        _header(title, answer(step), step),
        sections.run_section(step, run),
        sections.trained_section(trained),
        sections.timeline_section(step),
        sections.memory_section(step),
        sections.breakdown_section({"this plan": step}),
        sections.certainty_section(step),
        _again(
            command or f"trainsim simulate job.json{engine} --html report.html",
            job_data(step.model, step.cluster, step.plan, run.around if run else trained.around if trained else None),
        ),
    ]
    return title, "".join(body)


def _again(command: str, job: dict[str, object]) -> str:
    text = json.dumps(job, indent=1)
    return m.section(
        "Make this report again",
        m.paragraph("Save the job below as job.json, then run:", "words"),
        m.code(command),
        m.folded("job.json", m.code(text)),
    )
