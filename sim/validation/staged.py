"""Measured runs of plans whose stages differ, beside their predictions: Mist's on L4 (arXiv 2503.19050).

Nothing is fitted to them: kernels come from operation timings, links from the same authors' benchmark, the run level
from other devices' runs. What their files do not state about models and framework is in the repository that they come
from (Dazz993/Mist: benchmark/mist/configs/model, mist/model, mist/re_swap_manager): no dropout, no biases, tables not
tied, 16-bit gradients that autograd adds up, cross-entropy in 16 bit, fp32 masters, activations kept in fp16.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.engine.step import Engine, Step, simulate
from sim.specs import Cluster, InputError, Links, Model, Offload, Plan, StagePlan
from sim.specs.csv_rows import read_records
from sim.specs.files import text_of
from sim.units import GIB, MIB
from sim.validation import metrics

SIZES = {"1.3b": (24, 2048, 16), "2.7b": (32, 2560, 32), "7b": (32, 4096, 32), "13b": (40, 5120, 40)}
"""Layers, hidden width and heads by name, of GPT and Llama alike (benchmark/mist/configs/model)."""
DEVICES = {"l4-24gb": "l4"}
CONFIG = re.compile(r"(?P<size>[0-9.]+b)-s_(?P<seq>\d+)-v_(?P<vocab>\d+)-b_\d+-n_\d+-m_\d+-f_(?P<flash>True|False)")
STAGE = "stage[b,dp,tp,w,g,o,wo,go,oo,ao]"
FRAMEWORK: dict[str, Any] = {
    "precision": "fp16", "gradient_dtype": "bf16", "fused_wgrad": False, "cross_entropy": "fused",
}  # fmt: skip
"""What holds of every plan: gradients of 16 bit, summed by a kernel of their own, a loss on 16-bit logits."""

MAX_BYTES = 16 * MIB
COLUMNS = ("hw", "family", "config", "iter_time_s", "peak_alloc_per_stage")


@dataclass(frozen=True)
class StagedRun:
    """One measured run: seconds of a step, allocated bytes at the peak of every stage."""

    name: str
    model: Model
    cluster: Cluster
    plan: Plan
    step_time_s: float
    allocated_bytes: tuple[float, ...]


@dataclass(frozen=True)
class Compared:
    """A run and its prediction."""

    run: StagedRun
    step: Step


def compare(runs: Sequence[StagedRun], engine: Engine = "path") -> list[Compared]:
    """Return every run with its prediction by the shipped run level."""
    return [Compared(run, simulate(run.model, run.cluster, run.plan, engine)) for run in runs]


def summary(found: Sequence[Compared]) -> dict[str, dict[str, float | None]]:
    """Return the errors over all runs, in percent: of time, raw and with one common factor removed, and of memory."""
    time = np.array([[c.step.step_time_s, c.run.step_time_s] for c in found]).reshape(-1, 2).T
    peaks = [
        (held.peak_bytes, measured)
        for c in found
        for held, measured in zip(c.step.memory, c.run.allocated_bytes, strict=True)
    ]
    memory = np.array(peaks).reshape(-1, 2).T
    measures = {"mape": metrics.mape, "max": metrics.max_error, "bias": metrics.bias}
    return {
        "time": {n: of(*time) for n, of in measures.items()} | {"mape_debiased": metrics.mape_debiased(*time)},
        "memory": {n: of(*memory) for n, of in measures.items()},
    }


def read_staged(runs: Path, plans: Path, hardware: Path) -> list[StagedRun]:
    """Return the measured runs of a table, with the plans and the host links that go with them.

    runs: CSV of step times and peaks by stage; plans, hardware: JSON lists of tuned plans and of fitted links.

    Raises:
        InputError: a file cannot be read, a run has no plan, or a field is not what it should be.
    """
    known = {str(p.get("file", "")).removesuffix(".yaml"): p for p in _list(plans)}
    links = {str(h.get("template", "")): h for h in _list(hardware)}
    return [_run(place, row, known, links) for place, row in read_records(runs, COLUMNS)]


def _run(
    path: str, row: Mapping[str, str], plans: Mapping[str, Mapping[str, Any]], links: Mapping[str, Mapping[str, Any]]
) -> StagedRun:
    name = "/".join(row[key] for key in ("hw", "family", "config"))
    held, match = plans.get(name), CONFIG.fullmatch(row["config"])
    if held is None or match is None or match["size"] not in SIZES or row["hw"] not in DEVICES:
        raise InputError(path, name, f"a run with a plan, of {', '.join(SIZES)} on {', '.join(DEVICES)}")
    device = DEVICES[row["hw"]]
    try:
        rate = float(links[f"template-{device}.yaml"]["cpu_gpu_(GBps,s)"][0]) * GIB
        plan, shape = _plan(held), (int(held["nodes"]), int(held["gpus_per_node"]))
        time, peaks = float(row["iter_time_s"]), re.findall(r"(\d+) MB", row["peak_alloc_per_stage"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(path, str(error), "a plan, a host link, a time and peaks in MB as Mist writes them") from None
    if len(peaks) != plan.pp:
        raise InputError(path, f"{len(peaks)} peaks", f"one for each of {plan.pp} stages")
    cluster = Cluster.of(device, nodes=shape[0], gpus_per_node=shape[1], links=Links(host_bytes_per_s=rate))
    model = _model(row["family"], match)
    return StagedRun(name, model, cluster, plan, time, tuple(float(p) * MIB for p in peaks))


def _model(family: str, match: re.Match[str]) -> Model:
    layers, hidden, heads = SIZES[match["size"]]
    llama: dict[str, Any] = {"norm": "rmsnorm", "gated_mlp": True} if family == "llama" else {}
    return Model(
        name=f"{family}-{match['size']}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=int(match["vocab"]),
        seq=int(match["seq"]),
        attention="flash" if match["flash"] == "True" else "eager",
        tied_embeddings=False,
        bias=False,
        **llama,
    )


def _plan(held: Mapping[str, Any]) -> Plan:
    stages = []
    for layers, again, (b, dp, tp, w, g, o, *offloads) in zip(held["layers"], held["ckpt"], held[STAGE], strict=True):
        shares = dict(zip(("weights", "gradients", "optimizer", "activations"), offloads, strict=True))
        recompute: dict[str, Any] = {"recompute": "full", "recompute_layers": again} if again else {}
        stages.append(
            StagePlan(
                layers=layers,
                tp=tp,
                dp=dp,
                micro_batch=b,
                zero=w + g + o,
                offload=Offload(**shares),
                **recompute,
            )
        )
    batch = held["G"] * stages[0].dp * stages[0].micro_batch
    return Plan(global_batch=batch, stages=tuple(stages), **FRAMEWORK)


def _list(path: Path) -> list[Mapping[str, Any]]:
    text = text_of(path, MAX_BYTES)
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        held = None
    if not isinstance(held, list) or not all(isinstance(each, dict) for each in held):
        raise InputError(str(path), "no such list", "a JSON list of objects")
    return held
