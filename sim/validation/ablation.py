"""What each cost term is worth: step-time errors without it, everything else as it was.

Every source is predicted by the shipped run-level parameters that never saw it. A term is switched off in the symbols
of the cost model and nothing is fitted again, so that the change is the term's own; the bias-removed error leaves out
that steps only got shorter as a whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevelSet, run_level
from sim.engine.batch import Asked, Batch, Symbols
from sim.schedules import CLOSED
from sim.specs.csv_rows import read_cells, write_rows
from sim.specs.fields import InputError
from sim.validation.metrics import Floats, mape, mape_debiased
from sim.validation.translate import Case

Change = Callable[[Asked, Symbols], Mapping[str, Any]]


class Term(NamedTuple):
    """A cost term: what it is, and the symbols that leave it out."""

    words: str
    without: Change


def _set(**values: float) -> Change:
    return lambda asked, symbols: values


def _endings(symbols: Symbols, *endings: str) -> list[str]:
    return [name for name in symbols if name.endswith(endings)]


def _launch(asked: Asked, symbols: Symbols) -> Mapping[str, Any]:
    return dict.fromkeys([*_endings(symbols, "_t0"), "host_s_per_launch"], 0.0)


def _one_tier(asked: Asked, symbols: Symbols) -> Mapping[str, Any]:
    """A communicator that leaves its node counts as if all of its ranks sat in one."""
    groups = [name.removesuffix("_out") for name in _endings(symbols, "_out") if symbols[name] > 1]
    return {f"{g}_in": symbols[f"{g}_n"] for g in groups} | {f"{g}_out": 1.0 for g in groups}


def _framework(asked: Asked, symbols: Symbols) -> Mapping[str, Any]:
    """Everything as today's Megatron-LM does it."""
    fused = 2 * symbols["gradient_bytes"] - 2
    settings = {"tp_overlap": 1.0, "blocking_sends": 0.0, "scatter_gather": 1.0, "overlap_dp": 1.0}
    return settings | {"native": 0.0, "core": 1.0, "accumulate_bytes": fused, "step_overhead_s": 0.0}


def _exposed_shards(asked: Asked, symbols: Symbols) -> Mapping[str, Any]:
    return {"overlap_dp": symbols["overlap_dp"] * (1 - symbols["zero3"])}


def _no_shards(asked: Asked, symbols: Symbols) -> Mapping[str, Any]:
    """ZeRO-1 and ZeRO-2 reduce and update like plain data parallelism."""
    return dict.fromkeys(("zero1", "zero2"), symbols["zero3"])


def _alone(asked: Asked, symbols: Symbols) -> Mapping[str, Any]:
    """Context and expert parallelism and sequence parallelism's own traffic cost nothing."""
    ones = {f"{group}_{part}": 1.0 for group in ("cp", "ep", "etp") for part in ("n", "in", "out")}
    return ones | {"sequence_parallel": 0.0}


def _full_power(asked: Asked, symbols: Symbols) -> Mapping[str, Any]:
    """A device whose power is capped runs like the one that it was carried over from."""
    base = asked.profile.base
    if base is None or "limited to" not in asked.cluster.hardware.title:
        return {}
    return load_profile(base, asked.placed.plan.product_kernel).values


SWITCHED_OFF: Mapping[str, Term] = {
    "launch": Term("launch overhead and small shapes", _launch),
    "small-messages": Term(
        "small-message collectives", _set(intra_alpha=0, intra_alpha_rank=0, intra_fill_s=0, inter_alpha=0)
    ),
    "both-tiers": Term("communicators over both tiers", _one_tier),
    "in-switch": Term("in-switch reduction", _set(in_switch_reduction=0.0)),
    "straggler": Term("straggler and scale", _set(straggler=0.0)),
    "framework": Term("framework by software generation", _framework),
    "fsdp-overlap": Term("FSDP prefetch and overlap", _exposed_shards),
    "contention": Term("slowdown of what runs side by side", _set(overlap_slowdown=0.0, contention_known=0.0)),
    "tp-overlap": Term("tensor-parallel overlap", _set(tp_overlap=0.0, tp_comm_overlap=0.0)),
    "data-parallel": Term("gradient reduction", _set(dp_n=1, dp_in=1, dp_out=1, shard_n=1, shard_in=1, shard_out=1)),
    "distributed-optimizer": Term("distributed optimizer", _no_shards),
    "cp-ep-sp": Term("context, expert, sequence parallel traffic", _alone),
    "fused-loss": Term("cross-entropy as one kernel", _set(one_kernel=0.0)),
    "ring": Term("PyTorch's ring attention", _set(ring=0.0)),
    "low-precision": Term("fp8, mxfp8 and nvfp4 rates", _set(rate_forward=1, rate_dgrad=1, rate_wgrad=1)),
    "ends": Term("first- and last-stage work", _set(vocab=1.0)),
    "power": Term("power limits", _full_power),
    "recompute": Term("recomputation", _set(full=0.0, selective=0.0)),
    "memory-bound": Term("memory-bound kernels", _set(memory_bound_slowdown=0.0)),
    "attention": Term("fused attention", _set(attention_slowdown=0.0)),
    "misaligned": Term("misaligned head dimensions", _set(misaligned=0.0)),
}
"""The cost terms by name; the last four are no gap that was closed, but say how much there is to get wrong."""


@dataclass(frozen=True)
class Ablated:
    """Step-time errors of one source (percent) with every term ("" as `term`), or without one."""

    term: str
    words: str
    source: str
    n: int
    mape: float
    mape_debiased: float


def ablation(cases: Sequence[Case]) -> Iterator[Ablated]:
    """Yield the errors of every source, first with all terms, then without each in turn.

    All steps by closed forms, so that the full model's errors may differ from those of `validate` by what the engine
    says of uneven stages; runs of schedules that have none are left out.
    """
    timed = [case for case in cases if "time" in case.row.uses and case.placed.plan.order in CLOSED]
    asked = [Asked(case.model, case.cluster, case.placed) for case in timed]
    sources = {source: [n for n, c in enumerate(timed) if c.row.source == source] for source in _names(timed)}
    measured = np.array([case.row.step_time_s for case in timed])
    for name, term in {"": Term("every term", _set()), **SWITCHED_OFF}.items():
        for source, at in sources.items():
            part = [asked[n] for n in at]
            predicted = _predicted(part, run_level(source), term.without)
            errors = (f(predicted, measured[at]) or 0.0 for f in (mape, mape_debiased))
            yield Ablated(name, term.words, source, len(at), *errors)


def _names(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(case.row.source for case in cases))


def _predicted(asked: Sequence[Asked], level: RunLevelSet, without: Change) -> Floats:
    return Batch(asked, "walked", without)(level).step_time_s


def write_ablation(rows: Sequence[Ablated], path: Path) -> None:
    """Write the table as CSV, whole or not at all."""
    write_rows(rows, Ablated, path, lambda value: f"{value:.4g}" if isinstance(value, float) else value)


def read_ablation(path: str | Path) -> list[Ablated]:
    """Return the rows of a table that `write_ablation` wrote.

    Raises:
        InputError: no such file, another header, or a cell that is no number where one stands.
    """
    kinds = get_type_hints(Ablated).values()
    lines = list(read_cells(path, Ablated, "a table of `trainsim validate --ablation`"))
    try:
        return [Ablated(*(kind(cell) for kind, cell in zip(kinds, cells, strict=True))) for _, cells in lines]
    except ValueError as error:
        raise InputError(str(path), str(error)[:80], "numbers of the table's columns") from None
