"""What a sweep's page, figures and tables show: every value of an axis, what fits, intervals where there are some."""

import numpy as np
import pytest

from sim.report.figures.swept import swept_axis, swept_points
from sim.report.sweep_page import _again, sweep_page
from sim.report.swept import Along, axis_label, glimpse, swept
from sim.report.swept_table import chosen_points
from sim.sweep.grid import Grid
from sim.sweep.run import sweep
from sim.sweep.store import Store

BASE = {"model": "gpt2-xl", "cluster": {"device": "l4", "nodes": 2}, "plan": {"global_batch": 64}}


@pytest.fixture
def store(tmp_path):
    axes = {
        "plan.pp": [1, 3, 4],
        "cluster.links.latency_s": {"min": 1e-6, "max": 1e-4, "count": 60, "scale": "log"},
        "plan.zero": [0, 1],
        "plan.recompute": ["none", "full"],
    }
    sweep(Grid(**BASE, axes=axes), tmp_path / "a.db", "here")
    with Store(tmp_path / "a.db") as held:
        yield held


def test_a_glimpse_of_few_blocks_has_the_reasons_and_the_best_of_all(store):
    seen, whole = glimpse(store), swept(store)
    assert seen.reasons == whole.reasons and sum(seen.reasons.values()) == store.counts.impossible > 0
    assert seen.top[0].number == whole.top[0].number
    assert set(seen.points) >= {"plan.pp", "mfu", "fits"}


def test_the_best_of_all_is_listed_though_it_is_not_drawn(store):
    seen = glimpse(store, points=1)
    best = seen.top[0]
    assert best.number not in seen.points["number"]
    listed, of = chosen_points(seen, None, {}, 20)
    assert (listed[0].number, of) == (best.number, len(seen.points["number"]) + 1)
    assert best.number not in [p.number for p in chosen_points(seen, (0.0, 1.0, 0.0, 1.0), {}, 20)[0]]
    assert best.number not in [p.number for p in chosen_points(seen, None, {"plan.pp": (3,)}, 20)[0]]


def test_ranges_of_a_listed_axis_are_equally_full(store):
    latency = next(a for a in swept(store).along if a.path == "cluster.links.latency_s")
    assert len(latency.labels) == 40 and not np.isnan(latency.best).any()


def test_values_whose_beginnings_are_equal_keep_bars_of_their_own(store):
    names = tuple(f"/a/folder/with/a/rather/long/name/for/the/device-{n}.json" for n in range(3))
    figure = swept_axis(swept(store), Along("cluster.device", names, np.array([1.0, np.nan, 2.0])))
    assert len(set(figure.layout.xaxis.ticktext)) == 3 and max(map(len, figure.layout.xaxis.ticktext)) <= 40
    assert len(set(figure.data[0].x)) == 3
    assert [a.text for a in figure.layout.annotations] == ["none runs"]


def test_axes_show_what_fits(store):
    found = swept(store)
    found.points["fits"][:] = np.where(np.arange(len(found.points["fits"])) % 2, 2, 0)
    found.points["peak_memory_bytes"][::2] = 1e15
    axis = swept_points(found).layout.xaxis
    assert "(GB)" in axis.title.text and 10 ** axis.range[1] < 100 and axis.tickformat


def test_a_hover_names_the_configuration(store):
    found = swept(store)
    points = swept_points(found).data[0]
    number, *told = points.customdata[0]
    assert told == [axis_label(value, 3) for value in store.configuration(number).values()]
    assert "plan.pp %{customdata[1]}<br>" in points.hovertemplate and points.hovertemplate.endswith("<extra></extra>")


def test_large_fractions_have_a_prefix():
    assert [axis_label(v) for v in (5e10, 1e-6, 2.5, 8, "full")] == ["50 G", "1e-06", "2.5", "8", "full"]


def test_simulated_steps_have_an_interval_and_one_is_enough(tmp_path):
    sweep(Grid(**BASE, axes={"plan.pp": [4]}, engine="path"), tmp_path / "b.db", "here")
    with Store(tmp_path / "b.db") as held:
        found = swept(held)
        numbers, page = found.top[0].numbers, sweep_page(found, held)
    assert f"({numbers['step_time_low_s']:.2f}–{numbers['step_time_high_s']:.2f}) a step with plan.pp 4" in page
    assert "A sweep of 1 configuration<" in page and "closed forms" not in page


def test_a_value_that_is_a_list_is_found_again(tmp_path):
    halves = [[24, 24], [23, 25]]
    grid = BASE | {"plan": {"global_batch": 16, "pp": 2, "zero": 1}}
    sweep(Grid(**grid, axes={"plan.stage_layers": halves}, engine="path"), tmp_path / "b.db", "here")
    with Store(tmp_path / "b.db") as held:
        found = glimpse(held, among={"plan.stage_layers": halves[1:]})
    assert found.points["plan.stage_layers"].tolist() == halves[1:]


def test_a_grid_too_long_for_the_page_is_not_offered_as_a_file_to_save(store, monkeypatch):
    assert "Save the grid below as grid.json" in _again(store)
    monkeypatch.setattr("sim.report.sweep_page.MOST_GRID", 100)
    text = _again(store)
    assert "Save the grid" not in text and "the beginning of grid.json" in text
