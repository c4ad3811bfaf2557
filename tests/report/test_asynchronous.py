"""Figures of schedules without flush: every action a bar, every speed-up beside the published one."""

import pytest

from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.report import figures
from sim.report.figures.asynchronous import Gain, nearest
from sim.schedules import Kind, Shape, build


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_action_is_a_bar(theme) -> None:
    run = run_path(build("2bw", Shape(3, 6)), Durations.uniform(3, {Kind.F: 1, Kind.B: 2, Kind.OPTIMIZER: 1}))
    bars = {t.name: t for t in figures.order(run, theme=theme).data if t.x is not None and t.x[0] is not None}
    assert {name: len(t.x) for name, t in bars.items()} == {"forward": 18, "backward": 18, "update": 6}
    assert sorted(bars["forward"].text) == sorted([k + 1 for k in range(6)] * 3)
    assert max(max(t.base + t.x) for t in bars.values()) == run.makespan


def test_only_what_starts_before_the_end_is_shown() -> None:
    run = run_path(build("pipedream", Shape(2, 8)), Durations.uniform(2, {Kind.F: 1, Kind.B: 2}))
    figure = figures.order(run, until=6)
    assert figure.layout.xaxis.title.text == "time (ticks)"
    assert figure.layout.xaxis.range == (0, 6)
    assert all(b < 6 for t in figure.data if t.base is not None for b in t.base)
    assert "update" not in [t.name for t in figure.data]


@pytest.mark.parametrize(
    ("simulated", "ratio", "within"),
    [((2.0,), 1, True), ((1.0, 2.2), 1, True), ((5.0, 6.0), 1.25, True), ((8.0,), 2, False), ((1.4,), 0.7, False)],
)
def test_nearest_ends_of_two_ranges(simulated, ratio, within) -> None:
    row = Gain("x", (2.0, 4.0), simulated)
    assert nearest(row) == pytest.approx(ratio)
    assert row.within(0.25) == within


def test_gains_are_drawn_over_what_was_published() -> None:
    figure = figures.gains([Gain("<b>a", (2.0,), (1.9,)), Gain("b", (1.3, 20.0), (30.0,))])
    published, ours = figure.data
    assert list(published.x) == [2.0, 2.0, None, 1.3, 20.0, None]
    assert list(ours.x) == [1.9, 1.9, None, 30.0, 30.0, None]
    assert set(ours.y) == {"&lt;b&gt;a", "b"}
    assert [a.text for a in figure.layout.annotations] == ["−5 %", "+50 % *"]
