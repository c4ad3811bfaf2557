"""Every knob of a plan: whether it is simulated, tuned, emitted (to which targets) and executed.

The table is made by `table()` and tested against it, against what a simulation and an emitted file change, and against
`limits`: what `trainsim execute` can run.

knob                   simulated  tuned     emitted  executed
---------------------  ---------  --------  -------  ----------------------
tp                     yes        yes       tmd      up to 8 ranks
pp                     yes        yes       ctmd     up to 8 ranks
virtual_stages         yes        yes       ctm      any
dp                     yes        follows   td       up to 8 ranks
cp                     yes        yes       tm       1
ep                     yes        yes       tmd      1
etp                    yes        kept      m        1
fsdp_shard             yes        yes       tm       left out
rank_order             yes        kept      m        -
stage_layers           yes        by stage  tm       any
sequence_parallel      yes        yes       m        any
global_batch           yes        kept      tmd      any
micro_batch            yes        yes       tmd      any
schedule               yes        yes       ctmd     any of one direction
microbatch_group_size  yes        kept      ctm      any
recompute              yes        yes       tmd      any
zero                   yes        yes       tmd      any
optimizer              yes        kept      -        -
gradient_dtype         yes        kept      md       fp32
overlap_dp             yes        kept      md       any
precision              yes        yes       md       fp32 or bf16
compiled               yes        kept      t        any
cuda_graphs            yes        kept      tm       false
layer_graphs           yes        kept      m        false
fused_wgrad            yes        kept      m        false
scatter_gather         yes        kept      -        -
tp_overlap             yes        kept      -        false
tp_comm_overlap        yes        kept      tm       false
token_dispatcher       yes        kept      m        -
fused_experts          yes        kept      -        false
ep_overlap             yes        kept      m        -
blocking_sends         yes        kept      -        -
framework              yes        kept      -        torch
core_modules           yes        kept      -        false
cross_entropy          yes        kept      m        autograd
attention_kernel       yes        kept      -        -
product_kernel         yes        kept      -        library or task-mapped
recurrent_kernel       yes        kept      -        -
tempo                  yes        yes       -        any
optimizer_barrier      yes        kept      -        -
offload                yes        by stage  md       optimizer, activations
recompute_layers       yes        by stage  m        any
recompute_experts      yes        kept      m        -
stages                 yes        yes       -        equal degrees
software_year          yes        kept      -        -

emitted to: c torch-csv, t torchtitan, t torchtitan-0.3, m megatron, d deepspeed
"""

from dataclasses import Field, fields
from typing import Any

from calibration.execute.limits import MOST_RANKS, PLAN, PRECISION, as_executed
from sim.plans import EXPORTERS
from sim.specs import Plan
from sim.specs.knobs import PLAN_KNOBS, STAGE_KNOBS

HEADINGS = ("knob", "simulated", "tuned", "emitted", "executed")
EVERY_VALUE = (
    "global_batch", "micro_batch", "overlap_dp", "virtual_stages", "stage_layers", "microbatch_group_size", "recompute",
    "zero", "sequence_parallel", "recompute_layers", "tempo", "compiled",
)  # fmt: skip
"""Knobs of which execution takes every value, alone; `limits` says which do not go together."""


FIXED = (
    "framework", "core_modules", "cross_entropy", "cuda_graphs", "layer_graphs", "fused_wgrad", "tp_overlap",
    "tp_comm_overlap", "fused_experts",
)  # fmt: skip
"""Knobs of which execution takes one value, whatever a plan says."""


def table() -> str:
    """Return the table, one line a knob, columns padded, and which letter stands for which target."""
    rows = [HEADINGS, *((f.name, "yes", _tuned(f.name), _emitted(f.name), _executed(f.name)) for f in _knobs())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    legend = "emitted to: " + ", ".join(f"{e.letter} {e.name}" for e in EXPORTERS.values())
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:], "", legend])


def _knobs() -> list[Field[Any]]:
    return [f for f in fields(Plan) if f.init]


def _tuned(name: str) -> str:
    if name in PLAN_KNOBS or name in STAGE_KNOBS:
        return "yes" if name in PLAN_KNOBS else "by stage"
    return {"offload": "by stage", "stages": "yes", "stage_layers": "by stage", "dp": "follows"}.get(name, "kept")


def _emitted(name: str) -> str:
    return "".join(dict.fromkeys(e.letter for e in EXPORTERS.values() if name in e.expresses)) or "-"


def _executed(name: str) -> str:
    """Return the values that can be executed; "-" for what changes nothing there."""
    if name in PLAN:
        return " or ".join("left out" if value in (None, ()) else str(value).lower() for value in PLAN[name])
    fixed = as_executed(Plan(global_batch=1))
    made = {
        "precision": " or ".join(PRECISION),
        "schedule": "any of one direction",
        "offload": "optimizer, activations",
        "stages": "equal degrees",
        **dict.fromkeys(("tp", "pp", "dp"), f"up to {MOST_RANKS['cpu']} ranks"),
        **{key: str(getattr(fixed, key)).lower() for key in FIXED},
        **dict.fromkeys(EVERY_VALUE, "any"),
    }
    return made.get(name, "-")
