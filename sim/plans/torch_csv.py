"""PyTorch pipelining schedule CSV (torch 2.13 `_PipelineScheduleRuntime._load_csv`, format "compute_only")."""

import csv
from io import StringIO

from sim.engine.step import Step
from sim.schedules import Schedule
from sim.specs import InputError


def torch_csv(step: Step, stem: str = "plan") -> dict[str, str]:
    """The order as PyTorch's pipelining runtime reads it (CSV, format "compute_only").

    Raises:
        InputError: the order holds two copies or versions of the model.
    """
    return {f"{stem}.csv": schedule_csv(step.timeline.schedule)}


def schedule_csv(order: Schedule) -> str:
    """Return an order, one row a rank, one action a cell.

    Cells hold F, I, W, B and pairs OVERLAP_F_B; communication and gradient reduction are added by PyTorch's lowering.

    Raises:
        InputError: the order holds two copies of the model.
    """
    if order.pipelines > 1:
        raise InputError("schedule", order.name, "one copy of the model (PyTorch's runtime has one direction)")
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows(text.split() for text in order.texts())
    return out.getvalue()
