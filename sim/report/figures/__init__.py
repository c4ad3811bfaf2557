"""Figures of a step and of a search, as `plotly.graph_objects.Figure`; each takes theme "light" or "dark"."""

from sim.report.figures.breakdown import breakdown
from sim.report.figures.difference import difference
from sim.report.figures.front import front
from sim.report.figures.memory import memory, memory_peaks
from sim.report.figures.timeline import opening, timeline

__all__ = ["breakdown", "difference", "front", "memory", "memory_peaks", "opening", "timeline"]
