"""A run as a whole: from one step to days, GPU-hours, cost and energy; and what a budget is best spent on."""

from sim.run.optimal import Allocation, Budget, Optimal, compute_optimal
from sim.run.power import Draw, device_draw
from sim.run.trained import Trained, train
from sim.run.whole import Run, run_of, whole_run

__all__ = [
    "Allocation",
    "Budget",
    "Draw",
    "Optimal",
    "Run",
    "Trained",
    "compute_optimal",
    "device_draw",
    "run_of",
    "train",
    "whole_run",
]
