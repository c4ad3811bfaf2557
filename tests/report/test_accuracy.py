"""Figures of a validation: every run a point, errors as the metrics say."""

import pytest

from sim.report import figures
from sim.report.theme import PALETTE
from sim.validation.accuracy import Accuracy, errors_by_source


def run(
    source: str, ratio: float | None, memory: float | None = None, time_s: float = 2.0, name: str = "r"
) -> Accuracy:
    """Return a made-up row."""
    return Accuracy(
        source, name, "a100", "GPT on 8: tp 8, pp 1, dp 1, micro-batch 1, ZeRO-1", "time", time_s, 0.9 * time_s,
        1.1 * time_s, ratio, ratio and 1.2, ratio and 0.9, 4e9, 3e9, 5e9, memory,
    )  # fmt: skip


ROWS = [run("first", 0.8), run("first", 1.25, time_s=20.0), run("second", 1.0, 2.0, name="<b>x"), run("second", None)]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_timed_run_is_a_point_over_its_measurement(theme) -> None:
    figure = figures.accuracy(ROWS, theme=theme)
    first, second = (t for t in figure.data if t.name)
    assert list(first.x) == pytest.approx([2.5, 16.0]) and list(first.y) == [2.0, 20.0]
    assert len(second.x) == 1 and "&lt;b&gt;x" in second.text[0] and "−20.0 % off" in first.text[0]
    assert first.marker.color == PALETTE["forward"][theme == "dark"] and first.marker.symbol != second.marker.symbol
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log" and "(s)" in figure.layout.xaxis.title.text


def test_memory_shows_only_what_measured_it() -> None:
    figure = figures.accuracy(ROWS, "memory")
    (points,) = (t for t in figure.data if t.name)
    assert list(points.x) == [2.0] and list(points.y) == [4.0] and "(GB)" in figure.layout.yaxis.title.text
    assert "no run" in figures.accuracy(ROWS[:1], "memory").layout.title.text


@pytest.mark.parametrize("span", [1.5, 1e3, 1e9])
def test_ticks_are_few_and_round(span: float) -> None:
    figure = figures.accuracy([run("a", 1.0, time_s=1.0), run("a", 1.0, time_s=span)])
    assert 1 <= len(figure.layout.xaxis.tickvals) <= 8


def test_errors_are_those_of_the_metrics() -> None:
    bar, unbiased, constant, bubble = figures.accuracy_errors(ROWS).data
    errors = errors_by_source(ROWS)
    assert list(bar.x) == [e.mape for e in errors.values()] == pytest.approx([22.5, 0.0])
    assert list(unbiased.x) == [e.mape_debiased for e in errors.values()]
    assert list(constant.x) == pytest.approx([20, 20]) and list(bubble.x) == pytest.approx([10, 10])
    assert list(bar.y) == ["first (2)", "second (1)"]
