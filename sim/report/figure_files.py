"""A single figure to take away: its numbers as CSV, itself as a page that needs no network, and a name for both."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from html import escape
from io import StringIO
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sim.engine.step import Step
from sim.plans.files import job_data
from sim.report import markup as m
from sim.report.html import document
from sim.report.theme import Theme
from sim.specs.csv_rows import no_formula

COLUMNS = ("x", "y", "z", "base", "text", "hovertext")
"""What of a trace is a number or a text for each of its points."""


def figure_csv(figure: go.Figure) -> str:
    """Return the points of all traces as CSV, a row a point: the trace's name and what it has of `COLUMNS`.

    Numbers are in the units of the axes, whose titles stand in the heading. Cells of a picture (heatmap) are rows
    of their own. Text that a spreadsheet would run is neutralised with an apostrophe.
    """
    tables = [(str(trace.name or trace.type), _points(trace)) for trace in figure.data]
    kept = [(name, points) for name, points in tables if points]
    columns = [column for column in COLUMNS if any(column in points for _, points in kept)]
    titles = {"x": figure.layout.xaxis.title.text, "y": figure.layout.yaxis.title.text}
    out = StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(["trace", *(_cell(": ".join(filter(None, (c, titles.get(c))))) for c in columns)])
    for name, points in kept:
        rows = zip(*(points.get(c) or [""] * len(next(iter(points.values()))) for c in columns), strict=True)
        writer.writerows([_cell(name), *map(_cell, row)] for row in rows)
    return out.getvalue()


def _points(trace: Any) -> dict[str, Sequence[Any]]:
    """Return the columns of a trace, all of one length; none where it only stands in the legend."""
    held = {c: np.asarray(trace[c], dtype=object) for c in COLUMNS if c in trace and np.ndim(trace[c])}
    if "z" in held:
        rows, columns = held["z"].shape
        grid = {"x": np.tile(held["x"], rows), "y": np.repeat(held["y"], columns)}
        held = grid | {c: v.ravel() for c, v in held.items() if v.shape == (rows, columns)}
    length = max(map(len, held.values()), default=0)
    found = {c: v.tolist() for c, v in held.items() if len(v) == length}
    return found if any(value is not None for values in found.values() for value in values) else {}


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return no_formula(value)
    return "" if value is None else value


def figure_html(draw: Callable[[Theme], go.Figure], title: str, sentence: str) -> str:
    """Return a page of one figure, light and dark, with plotly.js once; `sentence` says in words what it shows."""
    return document(title, f"<h1>{escape(title)}</h1>{m.figure('figure', draw, sentence)}")


def file_stem(step: Step) -> str:
    """Return what files about a step are called, without the ending: model, devices and eight digits of the plan."""
    plan = json.dumps(job_data(step.model, step.cluster, step.plan)["plan"], sort_keys=True)
    digits = sha256(plan.encode()).hexdigest()[:8]
    return re.sub(r"[^A-Za-z0-9.-]+", "-", f"{step.model.name}-{step.placed.gpus}x{step.cluster.device}-{digits}")
