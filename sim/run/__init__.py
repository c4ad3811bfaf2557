"""A run as a whole: from one step to days, GPU-hours, cost and energy; and what a budget is best spent on."""

from sim.run.optimal import Allocation, Budget, Optimal, compute_optimal
from sim.run.power import Draw, device_draw
from sim.run.whole import Run, whole_run

__all__ = ["Allocation", "Budget", "Draw", "Optimal", "Run", "compute_optimal", "device_draw", "whole_run"]
