"""A run as a whole: from one step to days, GPU-hours, cost and energy; and what a budget is best spent on."""

from sim.run.measures import Measures
from sim.run.optimal import Allocation, Budget, Optimal, compute_optimal
from sim.run.power import Draw, device_draw
from sim.run.shared import Shared
from sim.run.trained import Trained, train
from sim.run.turns import in_turn
from sim.run.whole import Run, run_of, whole_run

__all__ = [
    "Allocation",
    "Budget",
    "Draw",
    "Measures",
    "Optimal",
    "Run",
    "Shared",
    "Trained",
    "compute_optimal",
    "device_draw",
    "in_turn",
    "run_of",
    "train",
    "whole_run",
]
