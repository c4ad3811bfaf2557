"""PyTorch pipelining schedule CSV (torch 2.13 `_PipelineScheduleRuntime._load_csv`, format "compute_only")."""

import csv
from io import StringIO

from sim.engine.step import Step


def torch_csv(step: Step) -> str:
    """Return the order of the step's pipeline, one row a rank, one action a cell.

    Cells hold F, I, W and B; communication and gradient reduction are added by PyTorch's lowering.
    """
    rows = [text.split() for text in step.timeline.schedule.texts()]
    width = max(map(len, rows))
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerows(row + [""] * (width - len(row)) for row in rows)
    return out.getvalue()
