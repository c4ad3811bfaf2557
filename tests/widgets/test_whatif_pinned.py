"""Two plans in the panel: A, which is pinned, and the one shown."""

from types import SimpleNamespace

import pytest

from sim.report.details import action_card, action_named
from sim.tuner.tune import tune
from sim.units import seconds
from tests.widgets.conftest import open_tab, set_knob


@pytest.mark.slow
def test_two_plans_and_their_difference(panel):
    panel.pin()
    open_tab(panel, "Compare")
    assert panel.panes.panes["Compare"]._words.value.split("</p>")[0].endswith("Both take equally long.")
    before = panel.step
    panel.hardware.knobs["inter"].value = 4.0
    assert panel.step.step_time_s < before.step_time_s
    (bars,) = open_tab(panel, "Breakdown")
    assert list(bars.layout.yaxis.ticktext) == ["A", "B"]
    waterfall, _ = open_tab(panel, "Compare")
    *terms, total = [bar.y[0] for bar in waterfall.data]
    assert sum(terms) == pytest.approx(total)
    shorter = seconds(before.step_time_s - panel.step.step_time_s)
    assert f"B − A: −{shorter} a step." in panel.panes.panes["Compare"]._words.value
    panel.swap()
    assert panel.step.step_time_s == before.step_time_s
    assert panel.pinned.cluster.links.inter_bytes_per_s_per_node == 4 * before.cluster.links.inter_bytes_per_s_per_node
    panel.unpin()
    assert panel.pinned is None


def test_outlines_of_the_pinned_plan_in_memory(panel):
    panel.pin()
    set_knob(panel, pp=8)
    peaks, curve = open_tab(panel, "Memory")
    assert [t.name for t in peaks.data].count("A") == 1
    assert any(t.name == "A, pipeline rank 0" for t in curve.data)


def test_a_click_opens_a_term_of_the_plan_that_was_clicked(panel):
    panel.pin()
    set_knob(panel, pp=8)
    (plot,) = open_tab(panel, "Breakdown")
    bubble = next(t for t in plot.data if t.meta == "bubble")
    told = []
    for row in (0, 1):
        panel.panes._asked(bubble, SimpleNamespace(point_inds=[row]), None)
        told.append(panel.panes.panes["Breakdown"].detail.value)
    assert "pipeline idle" in told[0]
    assert told[0] != told[1]


@pytest.mark.slow
def test_a_zoom_moves_both_timelines(panel):
    panel.pin()
    set_knob(panel, pp=8)
    _, timelines = open_tab(panel, "Compare")
    timelines.layout.xaxis.range = (1.0, 2.0)
    assert panel._scene.window == (1.0, 2.0)
    assert tuple(timelines.layout.xaxis2.range) == (1.0, 2.0)


def test_every_figure_shows_both(panel):
    shown = {title: len(open_tab(panel, title)[0].data) for title in ("Roofline", "Tornado", "Timeline")}
    panel.pin()
    set_knob(panel, pp=8)
    for title, before in shown.items():
        (plot,) = open_tab(panel, title)
        assert len(plot.data) > before, title
        named = {t.name for t in plot.data} | {a.text[:1] for a in plot.layout.annotations}
        assert "A" in named, title


def test_the_timelines_of_a_comparison_are_there_only_while_there_is_one(panel):
    _, none = open_tab(panel, "Compare")
    area = panel.panes.panes["Compare"].canvases[1]
    assert none is None and area.layout.display == "none"
    panel.pin()
    set_knob(panel, pp=8)
    height = area.plot.layout.height
    assert area.layout.display is None and height
    panel.unpin()
    assert area.layout.display == "none" and area.plot.layout.height == height  # unseen, and not to be laid out again
    panel.pin()
    area.plot.layout.xaxis.range = (0.1, 0.2)
    assert panel._scene.window is not None


@pytest.mark.slow
def test_both_timelines_are_clicked_and_zoomed_and_one_is_left_after_unpinning(panel):
    panel.pin()
    set_knob(panel, pp=8)
    (plot,) = open_tab(panel, "Timeline")
    pane = panel.panes.panes["Timeline"]
    above, below = (next(t for t in plot.data if t.type == "heatmap" and (t.xaxis == "x2") == low) for low in (0, 1))
    for picture, step in ((above, panel.pinned), (below, panel.step)):
        column = next(n for n, text in enumerate(picture.text[-1]) if "F" in text)
        panel.panes._opened(picture, SimpleNamespace(point_inds=[[len(picture.text) - 1, column]]), None)
        clicked = action_named(step, step.plan.pp - 1, picture.text[-1][column])
        assert action_card(step, clicked) in pane.detail.value
    assert tuple(plot.layout.xaxis.range) == tuple(plot.layout.xaxis2.range)
    whole = panel._scene.end_s
    assert whole > min(step.timeline.makespan for step in panel._scene.steps) * 1e-9
    plot.layout.xaxis.range = (whole - 0.01, whole)
    assert panel._scene.window == pytest.approx((whole - 0.01, whole))
    panel.unpin()
    assert panel._scene.window is None
    (plot,) = open_tab(panel, "Timeline")
    assert not any(t.xaxis == "x2" for t in plot.data) and not plot.layout.annotations


@pytest.mark.slow
def test_both_are_marked_on_the_front_of_a_search_that_asked_the_same(panel, gpt3, h100s):
    few = {"tp": [8], "pp": [2, 4], "virtual_stages": [1], "micro_batch": [1, 2], "unequal_stages": False}
    panel._tuned(tune(gpt3, h100s, 1024, knobs=few, top=1))
    plot = panel.panes.panes["Front"].canvases[0].plot
    assert not {"A", "B"} & {t.name for t in plot.data}
    panel.pin()
    set_knob(panel, micro_batch=8)
    a, b = (next(t for t in plot.data if t.name == name) for name in "AB")
    assert [t.marker.symbol for t in (a, b)] == ["circle-open", "circle"]
    assert [t.x[0] * 1e9 for t in (a, b)] == pytest.approx([s.peak_memory_bytes for s in panel._scene.steps])
    assert panel.step.fits == "no" and b.x[0] < plot.layout.xaxis.range[1]
    panel.clusters.nodes.value = 32
    assert not {"A", "B"} & {t.name for t in plot.data}
