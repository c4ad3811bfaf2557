"""PyTorch pipelining schedule CSV (torch 2.13 `_PipelineScheduleRuntime._load_csv`, format "compute_only")."""

import csv
from io import StringIO

from sim.plans.exported import Exported
from sim.schedules import Schedule
from sim.specs import InputError

EXPRESSES = ("pp", "virtual_stages", "schedule", "microbatch_group_size")
"""Fields of a plan that the order says."""


def torch_csv(made: Exported, stem: str) -> dict[str, str]:
    """The order as PyTorch's pipelining runtime reads it (CSV, format "compute_only").

    Raises:
        InputError: the order holds two copies or versions of the model.
    """
    return {f"{stem}.csv": schedule_csv(made.order)}


def schedule_csv(order: Schedule) -> str:
    """Return an order, one row a rank, one action a cell.

    Cells hold F, I, W, B and pairs OVERLAP_F_B; communication and gradient reduction are added by PyTorch's lowering.

    Raises:
        InputError: the order holds two copies of the model.
    """
    if order.pipelines > 1:
        raise InputError("plan.schedule", order.name, "one copy of the model (PyTorch's runtime has one direction)")
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows(text.split() for text in order.texts())
    return out.getvalue()
