"""Figures: traces, units, order of the legend, and that they show what the step says."""

import numpy as np
import plotly.graph_objects as go
import pytest

from sim.engine.step import Step, device_memory
from sim.report import figures
from sim.report.figures import raster
from sim.report.figures.front import pareto
from sim.report.figures.raster import raster as rasterised
from sim.report.theme import CATEGORIES, OUTSIDE, PALETTE, TERMS
from sim.tuner.tune import Tuned


def legend(figure: go.Figure) -> list[str]:
    """Return the legend's texts from left to right."""
    return [t.name for t in figure.data if t.showlegend is not False and t.name]


def bars(figure: go.Figure) -> list[go.Bar]:
    """Return the bars that hold data."""
    return [t for t in figure.data if t.type == "bar" and t.x is not None and t.x[0] is not None]


def areas(figure: go.Figure) -> list[go.Scatter]:
    """Return the stacked areas."""
    return [t for t in figure.data if t.type == "scatter" and t.stackgroup]


def test_timeline_shows_every_operation_as_a_bar_and_one_row_per_rank(step: Step) -> None:
    figure = figures.timeline(step)
    shown = [t for t in bars(figure) if t.name]
    assert sum(len(t.x) for t in shown) == np.count_nonzero(step.timeline.end > step.timeline.start)
    assert {int(y) for t in shown for y in t.y} == {0, 1, 2, 3}
    assert figure.layout.height == 120 + 22 * 4
    assert legend(figure)[:2] == ["forward (F)", "backward (B)"] and legend(figure)[-1] == "idle"
    scale = {"s": 1.0, "ms": 1e-3}[figure.layout.xaxis.title.text.split("(")[1].split(")")[0]]
    assert figure.layout.xaxis.range[1] * scale == pytest.approx(step.timeline.makespan * 1e-9)
    assert max(float(np.max(t.base + t.x)) for t in shown) * scale == pytest.approx(step.timeline.makespan * 1e-9)


def test_timeline_tells_chunks_apart_by_shade(step: Step) -> None:
    shades = {t.marker.color for t in bars(figures.timeline(step)) if t.name == "forward (F)"}
    assert len(shades) == step.plan.virtual_stages and PALETTE["forward"][0] in shades


def test_more_operations_than_bars_become_a_raster(long_step: Step) -> None:
    figure = figures.timeline(long_step)
    assert [t.type for t in figure.data][-1] == "heatmap" and not bars(figure)
    rows, window = figures.opening(long_step) or (0, (0.0, 0.0))
    assert bars(figures.timeline(long_step, rows, window=window))


def test_a_raster_bin_shows_the_operation_that_holds_most_of_it() -> None:
    start, end, row = np.array([0, 12, 0]), np.array([12, 20, 1]), np.array([0, 0, 1])
    assert rasterised(start, end, row, 2, 2, 20).tolist() == [[0, 1], [2, -1]]
    assert raster.raster(start, end, row, 2, 4, 20).tolist() == [[0, 0, 1, 1], [2, -1, -1, -1]]


def test_a_long_pipeline_shows_its_first_and_last_rank(long_step: Step) -> None:
    assert list(figures.timeline(long_step, ranks=2).layout.yaxis.ticktext) == ["0", "3"]


@pytest.mark.parametrize("rank", [0, 3])
def test_memory_peaks_where_the_step_says(step: Step, rank: int) -> None:
    figure = figures.memory(step, stage=rank)
    total = sum(np.asarray(t.y, dtype=float) for t in areas(figure))
    assert float(np.max(total)) * 1e9 == pytest.approx(step.memory[rank].peak_bytes)
    assert "capacity 85.5 GB" in figure.layout.annotations[0].text and "(GB)" in figure.layout.yaxis.title.text
    order = [look.label for look in CATEGORIES.values()]
    shown = [name for name in legend(figure) if name in order]
    assert shown == sorted(shown, key=order.index)


def test_memory_is_thinned_but_keeps_its_peak(long_step: Step) -> None:
    held = areas(figures.memory(long_step, stage=0))
    assert all(len(t.x) <= 400 for t in held)
    assert float(np.max(sum(t.y for t in held))) * 1e9 == pytest.approx(long_step.memory[0].peak_bytes)


def test_peaks_stack_to_device_memory(step: Step) -> None:
    figure = figures.memory_peaks(step)
    total = sum(np.asarray(t.y, dtype=float) for t in bars(figure)) * 1e9
    wanted = device_memory(np.array([m.peak_bytes for m in step.memory]), step.profile)
    assert total == pytest.approx(wanted) and legend(figure)[-1] == OUTSIDE.label


def test_what_does_not_fit_is_hatched_and_said_in_words(overfull: Step) -> None:
    assert overfull.fits == "no"
    for figure in (figures.memory(overfull), figures.memory_peaks(overfull)):
        assert legend(figure)[-1] == "over capacity"
        assert any("over by" in a.text for a in figure.layout.annotations)


def test_breakdown_sums_to_the_step_in_the_fixed_order(step: Step, overfull: Step) -> None:
    figure = figures.breakdown([step, overfull])
    unit = 1e-3 if "(ms)" in figure.layout.xaxis.title.text else 1.0
    assert sum(t.x for t in bars(figure)) * unit == pytest.approx([step.step_time_s, overfull.step_time_s])
    order = [look.label for look in TERMS.values()]
    assert legend(figure) == sorted(legend(figure), key=order.index) and "offload" not in legend(figure)
    error = figure.data[-1].error_x
    assert figure.data[-1].x[0] + error.array[0] == pytest.approx(step.step_time_interval_s[1] / unit)


def test_difference_adds_up(step: Step, overfull: Step) -> None:
    terms = bars(figures.difference(step, overfull))
    assert sum(float(t.y[0]) for t in terms[:-1]) == pytest.approx(float(terms[-1].y[0]))


def test_front_is_bounded_counts_misfits_and_holds_nothing_dominated(tuned: Tuned) -> None:
    figure = figures.front(tuned, max_points=200)
    points = [t for t in figure.data if t.type == "scattergl"]
    assert sum(len(t.x) for t in points) <= 200 and "does not fit (" in points[0].name
    assert legend(figure)[-2:] == ["best", "baseline"] and len(legend(figure)) <= 8
    assert pareto(np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 3.0, 3.0, 2.0])).tolist() == [1, 3, 0]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_the_themes_and_the_background_is_left_alone(step: Step, theme: str) -> None:
    figure = figures.timeline(step, theme=theme)  # type: ignore[arg-type]
    assert bars(figure)[0].marker.color == PALETTE["forward"][theme == "dark"]
    assert figure.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"
