"""Every knob of a plan: whether it is simulated, tuned, emitted (to which targets) and executed.

The table is made by `table()` and tested against it, against what a simulation and an emitted file change, and against
`limits`: what `trainsim execute` can run. Targets: c torch-csv, t torchtitan (both forms), m megatron, d deepspeed.

knob                   simulated  tuned     emitted  executed
---------------------  ---------  --------  -------  -------------------------
tp                     yes        yes       tmd      1
pp                     yes        yes       ctmd     1
virtual_stages         yes        yes       ctm      1
dp                     yes        follows   td       1 to 2 (cuda: 1)
cp                     yes        yes       tm       1
ep                     yes        yes       tmd      1
etp                    yes        kept      md       1
fsdp_shard             yes        kept      tm       -
rank_order             yes        kept      m        -
stage_layers           yes        by stage  m        -
sequence_parallel      yes        yes       m        -
global_batch           yes        kept      tmd      any
micro_batch            yes        yes       tmd      any
schedule               yes        yes       ctmd     none
microbatch_group_size  yes        kept      ctm      -
recompute              yes        yes       tmd      none
zero                   yes        yes       tmd      0 or 1
optimizer              yes        kept      -        -
gradient_dtype         yes        kept      md       fp32
overlap_dp             yes        kept      md       any
precision              yes        kept      md       fp32 (cuda: fp32 or bf16)
compiled               yes        kept      t        false
fused_wgrad            yes        kept      m        false
scatter_gather         yes        kept      -        -
tp_overlap             yes        kept      -        -
blocking_sends         yes        kept      -        -
framework              yes        kept      -        torch
cross_entropy          yes        kept      -        autograd
attention_kernel       yes        kept      -        -
optimizer_barrier      yes        kept      -        -
offload                yes        by stage  md       none
recompute_layers       yes        by stage  m        -
stages                 yes        yes       -        -
software_year          yes        kept      -        -
"""

from dataclasses import Field, fields
from typing import Any

from calibration.execute.limits import MOST_RANKS, ONES, PLAN, PRECISION, as_executed
from sim.plans import EXPRESSED
from sim.specs import Plan
from sim.specs.knobs import PLAN_KNOBS, STAGE_KNOBS

HEADINGS = ("knob", "simulated", "tuned", "emitted", "executed")
LETTERS = {"torch-csv": "c", "torchtitan": "t", "megatron": "m", "deepspeed": "d"}
ANY = ("global_batch", "micro_batch", "overlap_dp")
"""Knobs of which execution takes every value (overlap_dp: true only without ZeRO)."""


def table() -> str:
    """Return the table, one line a knob, columns padded."""
    rows = [HEADINGS, *((f.name, "yes", _tuned(f.name), _emitted(f.name), _executed(f.name)) for f in _knobs())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _knobs() -> list[Field[Any]]:
    return [f for f in fields(Plan) if f.init]


def _tuned(name: str) -> str:
    if name in PLAN_KNOBS or name in STAGE_KNOBS:
        return "yes" if name in PLAN_KNOBS else "by stage"
    return {"offload": "by stage", "stages": "yes", "stage_layers": "by stage", "dp": "follows"}.get(name, "kept")


def _emitted(name: str) -> str:
    return "".join(letter for target, letter in LETTERS.items() if name in EXPRESSED[target]) or "-"


def _executed(name: str) -> str:
    """Return the values that can be executed; "-" for what changes nothing there."""
    if name in ONES:
        return "1"
    if name in PLAN:
        return " or ".join(str(value).lower() for value in PLAN[name])
    fixed = as_executed(Plan(global_batch=1))
    made = {
        "precision": f"{' or '.join(PRECISION['cpu'])} (cuda: {' or '.join(PRECISION['cuda'])})",
        "dp": f"1 to {MOST_RANKS['cpu']} (cuda: 1)",
        "offload": "none",
        **{key: str(getattr(fixed, key)).lower() for key in ("framework", "cross_entropy", "fused_wgrad")},
        **dict.fromkeys(ANY, "any"),
    }
    return made.get(name, "-")
