"""Measures Tempo's layers on one core, for the notebook about them: bytes, gradients, losses, times, executed plans.

    python -m calibration.layers.tempo_evidence --out notebooks/data/tempo.json [--only PART]

It takes about three minutes; a part that is measured again replaces what the file has of it.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from calibration.execute.cli import execute
from calibration.execute.evidence import executed
from calibration.execute.limits import as_executed
from calibration.execute.measure import LEAST_STEPS, Setting
from calibration.host import HostStopwatch, cpu_name
from calibration.layers.tempo_bench import curve, gradient_errors, guard, saved, step_time
from calibration.layers.tempo_results import LayerSizes, Tempos, read_tempos, write_tempos
from sim.specs import Cluster, InputError, Job, Model, Plan
from sim.validation.executed import Executed

COMMAND = "python -m calibration.layers.tempo_evidence --out notebooks/data/tempo.json"
SIZES = tuple(
    LayerSizes(batch=b, seq=s, hidden=h, heads=a)
    for b, s, h, a in ((4, 64, 256, 4), (4, 128, 256, 4), (2, 128, 512, 8), (4, 256, 256, 4), (1, 384, 1024, 16))
)
DTYPES = ("float32", "bfloat16", "float16")
GAMMAS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
SEEDS, STEPS = (1, 2, 3), 200
MODEL = Model(layers=8, hidden=256, heads=4, vocab=2000, seq=128)
MICRO_BATCHES = (2, 4, 8)
Told = Callable[[str], object]


def _saved() -> dict[str, Any]:
    return {"saved": [saved(sizes, dtype) for dtype in DTYPES[:2] for sizes in SIZES]}


def _errors() -> dict[str, Any]:
    guards = [guard(gamma, dtype) for dtype in DTYPES[:2] for gamma in GAMMAS]
    return {"errors": [each for dtype in DTYPES for each in gradient_errors(dtype)], "guards": guards}


def _curves() -> dict[str, Any]:
    return {"curves": [curve(seed, STEPS) for seed in SEEDS]}


def _times() -> dict[str, Any]:
    return {"times": [step_time(sizes, HostStopwatch()) for sizes in SIZES]}


def _plans() -> dict[str, Any]:
    return {"plans": list(plans())}


PARTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "saved": _saved, "errors": _errors, "curves": _curves, "times": _times, "plans": _plans,
}  # fmt: skip


def plans(model: Model = MODEL, micro_batches: tuple[int, ...] = MICRO_BATCHES) -> Iterator[Executed]:
    """Execute a small GPT in fp32 on one core, and yield it without Tempo's layers and with them in turn."""
    for micro_batch in micro_batches:
        for tempo in (False, True):
            plan = Plan(global_batch=max(micro_batches), micro_batch=micro_batch, dp=1, precision="fp32", tempo=tempo)
            cluster = Cluster.of("cpu", 1, gpus_per_node=1, domain_gpus=1, profile="cpu")
            job = Job(model=model, cluster=cluster, plan=as_executed(replace(plan, overlap_dp=False)))
            name = f"micro-batch {micro_batch}{', Tempo' if tempo else ''}"
            yield executed(name, job, execute(job, Setting(steps=LEAST_STEPS)), LEAST_STEPS)


def gather(out: Path, only: str | None, told: Told) -> Tempos:
    """Return everything measured, or one part anew; the file is written after each part.

    Raises:
        InputError: the file that is there cannot be read.
        ExecutionError: the machine is busy, or a process failed.
    """
    torch.set_num_threads(1)
    made = Tempos(
        command=COMMAND, date=f"{datetime.now(UTC):%Y-%m-%d}", machine=f"one core of an {cpu_name()[1]}",
        software=f"one thread, torch {version('torch')}",
        saved=[], errors=[], guards=[], times=[], plans=[], curves=[],
    )  # fmt: skip
    if only and out.exists():
        before = read_tempos(out)
        made = replace(before, date=made.date, machine=made.machine, software=made.software)
    for name in (only,) if only else PARTS:
        made = replace(made, **PARTS[name]())
        write_tempos(out, made)
        told(f"{name}: done")
    return made


def main(
    out: Annotated[Path, typer.Option("--out", help="File that is written.")],
    only: Annotated[str | None, typer.Option("--only", help="One part: " + ", ".join(PARTS))] = None,
) -> None:
    """Measure; progress goes to stderr."""
    if only is not None and only not in PARTS:
        raise InputError("--only", only, "one of " + ", ".join(PARTS))

    def told(text: str) -> None:
        sys.stderr.write(text + "\n")

    for line in gather(out, only, told).lines():
        told(line)


if __name__ == "__main__":
    typer.run(main)
