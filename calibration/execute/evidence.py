"""Executes small GPTs under plans of every kind and keeps what came of it for the notebook "Does it hold on hardware?".

    python -m calibration.execute.evidence --out notebooks/data/hardware.json [--processes 2]

Every plan is predicted before it runs; a plan that the file has is replaced. The measured step of one pipeline is kept
beside it as traces of its own passes.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from calibration.execute.busy import Busy, drift_since, nobody, others
from calibration.execute.cli import execute
from calibration.execute.holdout import Row
from calibration.execute.limits import as_executed
from calibration.execute.measure import Setting, processes
from calibration.execute.processes import ExecutionError
from calibration.guards import drift
from calibration.instruments import usable_cores
from sim.catalog import folder
from sim.plans.files import plain
from sim.report.numbers import change
from sim.specs import Cluster, InputError, Job, Model, Plan
from sim.specs.files import write_atomically
from sim.validation.executed import Evidence, Executed, Figures, read_evidence, write_evidence
from sim.validation.traces import PREFIX, trace_events

PROFILE = "cpu"
STEPS = 20
PATIENCE_S = 60.0
COMMAND = "python -m calibration.execute.evidence --out notebooks/data/hardware.json"
SIZES = {
    "small": Model(layers=8, hidden=128, heads=4, vocab=1000, seq=64),
    "medium": Model(layers=8, hidden=256, heads=4, vocab=2000, seq=64),
}
TRACED = "zb-h1"
"""The plan whose measured step is kept."""

PLANS: Mapping[str, Mapping[str, Any]] = {
    "one process": {},
    "one, micro-batch 4": {"micro_batch": 4},
    "one, full recompute": {"recompute": "full"},
    "one, selective recompute": {"recompute": "selective"},
    "one, small": {"size": "small"},
    "one, small, full recompute": {"size": "small", "recompute": "full"},
    "gpipe": {"pp": 2, "schedule": "gpipe"},
    "1f1b": {"pp": 2, "schedule": "1f1b"},
    "1f1b, small": {"size": "small", "pp": 2, "schedule": "1f1b"},
    "1f1b, full recompute": {"pp": 2, "schedule": "1f1b", "recompute": "full"},
    "interleaved": {"pp": 2, "virtual_stages": 2, "schedule": "interleaved"},
    "looped-bfs": {"pp": 2, "virtual_stages": 2, "schedule": "looped-bfs"},
    "zb-h1": {"pp": 2, "schedule": "zb-h1"},
    "interleaved-zb": {"pp": 2, "virtual_stages": 2, "schedule": "interleaved-zb"},
    "zbv": {"pp": 2, "virtual_stages": 2, "schedule": "zbv"},
    "dualpipev": {"pp": 2, "virtual_stages": 2, "schedule": "dualpipev"},
    "pipedream": {"pp": 2, "schedule": "pipedream"},
    "2bw": {"pp": 2, "schedule": "2bw"},
    "tp 2": {"tp": 2, "sequence_parallel": False},
    "tp 2, sequence parallel": {"tp": 2},
    "tp 2, full recompute": {"tp": 2, "recompute": "full"},
    "tp 2, selective recompute": {"tp": 2, "recompute": "selective"},
    "tp 2, small": {"size": "small", "tp": 2},
    "dp 2": {"dp": 2},
    "dp 2, overlapped": {"dp": 2, "overlap_dp": True},
    "dp 2, small": {"size": "small", "dp": 2},
    "dp 2, ZeRO-1": {"dp": 2, "zero": 1},
    "dp 2, FSDP (ZeRO-2)": {"dp": 2, "zero": 2},
    "dp 2, FSDP (ZeRO-3)": {"dp": 2, "zero": 3},
    "dp 2, FSDP, small": {"size": "small", "dp": 2, "zero": 3},
    "dp 2, FSDP, full recompute": {"dp": 2, "zero": 3, "recompute": "full"},
    "1f1b on 4": {"pp": 4, "schedule": "1f1b"},
    "interleaved on 4": {"pp": 4, "virtual_stages": 2, "schedule": "interleaved"},
    "zb-h2 on 4": {"pp": 4, "schedule": "zb-h2"},
    "v-half on 4": {"pp": 4, "virtual_stages": 2, "schedule": "v-half"},
    "tp 2 x pp 2": {"tp": 2, "pp": 2, "schedule": "1f1b"},
    "tp 2 x pp 2, zb-h1": {"tp": 2, "pp": 2, "schedule": "zb-h1"},
    "tp 2 x dp 2": {"tp": 2, "dp": 2},
    "pp 2 x dp 2, ZeRO-1": {"pp": 2, "dp": 2, "zero": 1, "schedule": "1f1b"},
    "dp 4, FSDP (ZeRO-3)": {"dp": 4, "zero": 3},
}
"""Plans by name: global batch 16, micro-batch 2, the medium network unless another is said."""


def jobs() -> Iterator[tuple[str, Job]]:
    """Yield the name and the job of every plan, on as many cores as it has processes."""
    for name, given in PLANS.items():
        changes = dict(given)
        model = SIZES[changes.pop("size", "medium")]
        usual: dict[str, Any] = {
            "global_batch": 16,
            "micro_batch": 2,
            "precision": "fp32",
            "overlap_dp": False,
            "dp": 1,
        }
        plan = as_executed(Plan(**usual | changes))
        if plan.pipeline.asynchronous:  # first and last stage update at different times
            model = replace(model, tied_embeddings=False)
        n = processes(plan)
        yield (
            name,
            Job(model=model, cluster=Cluster.of("cpu", 1, gpus_per_node=n, domain_gpus=n, profile=PROFILE), plan=plan),
        )


def executed(name: str, job: Job, row: Row, steps: int) -> Executed:
    """Return a row as the file holds it."""
    said, found = row.predicted, row.measured
    peaks, traffic = (
        [list(map(float, each.peak_memory_bytes)) for each in (said, found)],
        [_lists(said), _lists(found)],
    )
    return Executed(
        name=name,
        model=plain(job.model),
        plan=plain(row.case.plan),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        torch=version("torch"),
        cores=usable_cores(),
        steps=steps,
        predicted=Figures(
            step_time_s=said.step_time_s,
            interval_s=list(said.interval_s),
            peak_memory_bytes=peaks[0],
            traffic=traffic[0],
        ),
        measured=Figures(
            step_time_s=found.step_time_s,
            interval_s=list(found.interval_s),
            peak_memory_bytes=peaks[1],
            traffic=traffic[1],
            median_s=found.median_s,
        ),
        passes=sum(map(len, found.order)),
        order_matches=row.order_matches,
        max_gradient_error=found.max_gradient_error,
        sentinel_ratio=row.sentinel_ratio,
    )


def _lists(side: Any) -> list[dict[str, list[float]]]:
    return [{group: [float(calls), float(sent)] for group, (calls, sent) in each.items()} for each in side.traffic]


def keep_trace(trace: Path, target: Path) -> None:
    """Write the last step's passes of a trace to `target`, times from the first of them on (microseconds)."""
    events = [e for e in trace_events(trace) if e.get("ph") == "X" and str(e.get("name", "")).startswith(PREFIX)]
    last = {e["name"]: e for e in sorted(events, key=lambda e: float(e["ts"]))}.values()
    begin = min(float(e["ts"]) for e in last)
    kept = [
        {
            "ph": "X",
            "name": e["name"],
            "pid": 0,
            "ts": round(float(e["ts"]) - begin, 1),
            "dur": round(float(e["dur"]), 1),
        }
        for e in last
    ]
    write_atomically(target, json.dumps({"traceEvents": kept}) + "\n")


def gather(
    out: Path,
    chosen: Callable[[str, Job], bool],
    steps: int = STEPS,
    busy: Busy = nobody,
    done: Callable[[str], None] = lambda text: None,
) -> Evidence:
    """Return the file `out` with the chosen plans executed again; it is written after each of them.

    Raises:
        InputError: the file that is there cannot be read.
        ExecutionError: the machine is busy, or a process failed.
    """
    asked = [(name, job) for name, job in jobs() if chosen(name, job)]
    held = {one.name: one for one in read_evidence(out).plans} if out.exists() else {}
    session = Path(str(folder("profiles"))) / PROFILE / "session.json"
    drifted = drift_since(session)
    made = Evidence(machine=machine(), profile=PROFILE, command=COMMAND, plans=list(held.values()))
    for name, job in asked:
        with TemporaryDirectory() as traces:
            kept = Path(traces) if name == TRACED else None
            before = drifted()
            row = execute(job, Setting(steps=steps, traces=kept), busy)
            row = replace(row, sentinel_ratio=drift(1.0, before, drifted()))
            for rank in range(processes(row.case.plan)) if kept else ():
                keep_trace(Path(traces) / f"trace-0-{rank}.json", out.with_name(f"{out.stem}-trace-{rank}.json"))
        held[name] = executed(name, job, row, steps)
        ordered = [held[one] for one in PLANS if one in held]
        made = replace(made, plans=ordered)
        write_evidence(made, out)
        done(f"{name}: {change(row.error)}, machine x{row.sentinel_ratio:.2f}")
    return made


def patient() -> str | None:
    """Return the reason if others use the CPU for a minute on end."""
    until = time.monotonic() + PATIENCE_S
    while (reason := others()) and time.monotonic() < until:
        time.sleep(1.0)
    return reason


def machine() -> str:
    """Return this machine in words."""
    from calibration.host import cores_and_cpu  # noqa: PLC0415 - loads torch

    return f"{cores_and_cpu()}, one thread a process, gloo on 127.0.0.1"


def main(
    out: Annotated[Path, typer.Option("--out", help="File that is written, traces beside it.")],
    count: Annotated[int, typer.Option("--processes", help="Only plans of so many processes (0: all).")] = 0,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this plan.")] = None,
    steps: Annotated[int, typer.Option("--steps", help="Steps that are measured, after 3 of warm-up.")] = STEPS,
    despite_load: Annotated[bool, typer.Option("--despite-load", help="Run on a busy machine too.")] = False,
) -> None:
    """Execute the plans of the notebook; progress goes to stderr."""
    unknown = set(only or ()) - set(PLANS)
    if unknown:
        raise InputError("--only", sorted(unknown), ", ".join(PLANS))

    def chosen(name: str, job: Job) -> bool:
        right = not count or (job.plan is not None and processes(job.plan) == count)
        return right and (not only or name in only)

    def told(text: str) -> None:
        sys.stderr.write(text + "\n")

    try:
        gather(out, chosen, steps, nobody if despite_load else patient, told)
    except ExecutionError as error:
        told(f"error: {error}")
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
