"""Figures of a step, a search and a validation, as `plotly.graph_objects.Figure`; theme is "light" or "dark"."""

from sim.report.figures.ablation import ablation
from sim.report.figures.accuracy import accuracy, accuracy_errors
from sim.report.figures.asynchronous import gains, order
from sim.report.figures.breakdown import breakdown
from sim.report.figures.checkpoints import (
    checkpoint_interval,
    checkpoint_recovery,
    checkpoint_scale,
    checkpoint_timeline,
)
from sim.report.figures.cluster import (
    cluster_completion,
    cluster_devices,
    cluster_fairness,
    cluster_load,
    cluster_policies,
)
from sim.report.figures.compared import measured, timeline_difference
from sim.report.figures.decentralized import (
    decentralized_front,
    decentralized_loss,
    decentralized_map,
    decentralized_runs,
    decentralized_theta,
    decentralized_timeline,
    decentralized_what_if,
)
from sim.report.figures.difference import difference
from sim.report.figures.executed import executed_memory, executed_times
from sim.report.figures.factors import factors
from sim.report.figures.front import front
from sim.report.figures.grid import grid
from sim.report.figures.in_turn import in_turn
from sim.report.figures.kernels import schedules, tasks
from sim.report.figures.loading import loading_rates, stall_map, stalls
from sim.report.figures.market import (
    market_frequency,
    market_front,
    market_left_out,
    market_prices,
    market_strategies,
)
from sim.report.figures.memory import memory, memory_peaks
from sim.report.figures.parts import parts
from sim.report.figures.roofline import roofline
from sim.report.figures.swept import swept_axis, swept_points
from sim.report.figures.throughput import bars, curves, throughput
from sim.report.figures.timeline import opening, timeline
from sim.report.figures.tornado import tornado
from sim.report.figures.trained import trained

__all__ = [
    "ablation",
    "accuracy",
    "accuracy_errors",
    "bars",
    "breakdown",
    "checkpoint_interval",
    "checkpoint_recovery",
    "checkpoint_scale",
    "checkpoint_timeline",
    "cluster_completion",
    "cluster_devices",
    "cluster_fairness",
    "cluster_load",
    "cluster_policies",
    "curves",
    "decentralized_front",
    "decentralized_loss",
    "decentralized_map",
    "decentralized_runs",
    "decentralized_theta",
    "decentralized_timeline",
    "decentralized_what_if",
    "difference",
    "executed_memory",
    "executed_times",
    "factors",
    "front",
    "gains",
    "grid",
    "in_turn",
    "loading_rates",
    "market_frequency",
    "market_front",
    "market_left_out",
    "market_prices",
    "market_strategies",
    "measured",
    "memory",
    "memory_peaks",
    "opening",
    "order",
    "parts",
    "roofline",
    "schedules",
    "stall_map",
    "stalls",
    "swept_axis",
    "swept_points",
    "tasks",
    "throughput",
    "timeline",
    "timeline_difference",
    "tornado",
    "trained",
]
