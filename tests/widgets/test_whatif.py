"""The panel: answers at once, says what is impossible and what would fit, redraws only what is open."""

import json
import runpy
from dataclasses import replace
from types import SimpleNamespace

import pytest

import sim
from sim.costs.profile import load_profile
from sim.report import figures
from sim.report.numbers import signed
from sim.report.text import next_words
from sim.specs import Cluster, InputError, Model, Plan
from sim.tuner.tune import tune
from sim.units import percent
from sim.widgets.canvas import MIN_WIDTH, STALE
from sim.widgets.panes import NAMED
from tests.costs.test_products import MODEL, cores, with_mapped
from tests.widgets.conftest import PLAN, open_tab, set_knob


def plain(trace):
    return {k: v for k, v in json.loads(trace.to_json()).items() if k != "uid"}


def buttons(panel):
    return [button for line in panel._notice.children for button in line.children[1:]]


def test_answer_before_any_click(panel):
    assert "a step" in panel.message
    assert "Model FLOP utilisation" in panel._cards.value
    assert len(panel.panes.panes["Timeline"].canvases[0].plot.data)


def test_slider_changes_answer_and_open_figure_only(panel):
    before = panel.step.step_time_s
    set_knob(panel, recompute="full")
    assert panel.step.step_time_s > before
    assert panel.panes.panes["Timeline"].scene.step is panel.step
    assert panel.panes.panes["Breakdown"].scene is None
    open_tab(panel, "Breakdown")
    assert panel.panes.panes["Breakdown"].scene.step is panel.step
    share = percent(panel.step.breakdown_s["compute"] / panel.step.step_time_s)
    assert f": compute {share}, " in panel.panes.panes["Breakdown"]._words.value


def test_a_panel_says_that_zero_has_nothing_to_shard_on_one_replica(panel):
    set_knob(panel, pp=16)
    told = []
    for zero in (0, 1, 2):
        set_knob(panel, zero=zero)
        told.append(panel.message)
    assert panel.step.placed.dp == 1
    assert [f"ZeRO-{zero} changes nothing" in one for zero, one in enumerate(told)] == [False, True, True]
    set_knob(panel, pp=8)
    assert panel.step.placed.dp == 2 and "changes nothing" not in panel.message


def test_impossible_is_a_state(panel):
    step = panel.step
    set_knob(panel, pp=3)
    assert "Not possible" in panel.message
    assert panel.step is step
    assert panel.plans.knobs["pp"].value == 3
    label = panel.plans.knobs["pp"]._label.value
    assert "impossible, try 2, 4, 8" in label and "(x) try 2, 4</b>" in label
    assert "dp <b>–</b>" in panel.plans.dp.value and "tp 8 x pp 3 does not divide 128" in panel.plans.dp.value
    assert all(STALE in canvas._dom_classes for p in panel.panes.panes.values() for canvas in p.canvases)
    beside = (panel._cards, panel.panes.data, panel.panes.panes["Timeline"]._words)
    assert all(STALE in part._dom_classes for part in beside)
    assert STALE not in panel.panes.panes["Front"]._words._dom_classes  # of the last search, whatever is asked
    assert [b.description for b in buttons(panel)] == ["pp 4", "pp 2", "pp 8"]
    open_tab(panel, "Breakdown")
    assert STALE in panel.panes.panes["Breakdown"].canvases[0]._dom_classes
    buttons(panel)[1].click()
    assert panel.step.plan.pp == 2 and "data parallel (dp) <b>8</b> " in panel.plans.dp.value
    assert panel.plans.knobs["pp"].value == 2
    assert "a step" in panel.message
    shown = [*beside, *(canvas for p in panel.panes.panes.values() for canvas in p.canvases)]
    assert not any(STALE in part._dom_classes for part in shown)


def test_too_much_memory_is_drawn_and_fixes_are_offered(panel):
    set_knob(panel, micro_batch=4)
    assert panel.step.fits == "no"
    assert "does not fit" in panel.message
    assert buttons(panel)
    panel._notice.children[0].children[1].click()
    assert panel.step.fits in ("yes", "close")


def test_a_figure_that_is_redrawn_equals_a_new_one(panel):
    (plot,) = open_tab(panel, "Breakdown")
    set_knob(panel, zero=2)
    panel._fit()
    fresh = figures.breakdown(panel.step)
    assert [plain(t) for t in plot.data] == [plain(t) for t in fresh.data]
    assert plot.layout.xaxis.range == fresh.layout.xaxis.range


def test_axes_grow_and_never_shrink_until_fitted(panel):
    (plot,) = open_tab(panel, "Breakdown")
    set_knob(panel, recompute="full")
    longest = plot.layout.xaxis.range[1]
    set_knob(panel, recompute="selective")
    assert plot.layout.xaxis.range[1] == longest
    panel._fit()
    assert plot.layout.xaxis.range[1] < longest


@pytest.mark.slow
def test_a_rank_is_looked_at(panel):
    _, curve = open_tab(panel, "Memory")
    panel.panes.rank.value = 3
    assert "rank 3" in curve.layout.yaxis.title.text
    set_knob(panel, pp=2)
    assert panel.panes.rank.index == 0  # a choice is shown, also where there is no rank 3 any more
    assert "rank 0" in curve.layout.yaxis.title.text


def test_zoom_shows_bars_of_that_part(panel):
    plot = panel.panes.panes["Timeline"].canvases[0].plot
    assert any(t.type == "heatmap" for t in plot.data)
    plot.layout.xaxis.range = (1.0, 2.0)
    assert panel._scene.window == (1.0, 2.0)
    assert any(t.type == "bar" and t.x is not None and len(t.x) > 1 for t in plot.data)
    panel._fit()
    assert panel._scene.window is None


@pytest.mark.slow
def test_options_redraw_their_figure_alone(panel):
    chosen = panel.panes.options
    held = "Timeline Breakdown Tornado Roofline Front Compare"
    assert {title for title, own in chosen.items() if own} == {*held.split()}
    chosen["Timeline"]["ranks"].value = 4
    panel._fit()
    plot = panel.panes.panes["Timeline"].canvases[0].plot
    assert len(plot.layout.yaxis.ticktext) == 4
    chosen["Timeline"]["critical"].value = False
    assert "critical path" not in {t.name for t in plot.data}
    (plot,) = open_tab(panel, "Breakdown")
    chosen["Breakdown"]["share"].value = True
    assert "(%)" in plot.layout.xaxis.title.text
    chosen["Breakdown"]["hidden"].value = True
    assert any(t.name and t.name.endswith("hidden") for t in plot.data)
    (plot,) = open_tab(panel, "Tornado")
    chosen["Tornado"]["change"].value = 0.1
    assert plot.data[0].name.startswith("10")
    panel.panes._tried(plot.data[0], SimpleNamespace(point_inds=[0]), None)
    assert panel.hardware.knobs["clock"].value == 1.1
    chosen["Tornado"]["target"].value = "cost"
    assert "price" in plot.data[0].customdata


def test_the_roofline_has_a_choice_of_dtype_and_of_memory(panel):
    pane, options = panel.panes.panes["Roofline"], panel.panes.options["Roofline"]
    (plot,) = open_tab(panel, "Roofline")
    assert "In bf16, at 3.35" in pane._words.value and "989 TFLOP/s (bf16" in plot.layout.annotations[0].text
    options["dtype"].value, options["level"].value = "fp8", "host"
    assert "In fp8, at 50.4" in pane._words.value and "PFLOP/s (fp8" in plot.layout.annotations[0].text
    low = sim.simulate(panel.step.model, panel.step.cluster, panel.plan.but(precision="fp8"))
    assert [plain(t) for t in plot.data] == [plain(t) for t in figures.roofline(low, level="host").data]
    assert panel.plan.precision == "bf16"
    options["dtype"].value = "nvfp4"
    assert "units for" in plot.layout.annotations[0].text and not plot.data


def test_a_click_opens_an_operation_as_bar_and_as_picture(panel):
    pane = panel.panes.panes["Timeline"]
    picture = next(t for t in pane.canvases[0].plot.data if t.type == "heatmap")
    for row, kind in ((0, "F"), (3, "B")):
        column = next(n for n, text in enumerate(picture.text[row]) if kind in text)
        panel.panes._opened(picture, SimpleNamespace(point_inds=[[row, column]], xs=[0.0], ys=[row]), None)
        assert f"<h3>{picture.text[row][column]}: " in pane.detail.value
        assert f"pipeline rank {row}</h3>" in pane.detail.value
    pane.canvases[0].plot.layout.xaxis.range = (1.0, 2.0)
    bars = next(t for t in pane.canvases[0].plot.data if t.type == "bar" and t.customdata is not None)
    panel.panes._opened(bars, SimpleNamespace(point_inds=[3], xs=[0], ys=[0]), None)
    assert f"rank {bars.customdata[3][1]}" in pane.detail.value
    assert "consists of" in pane.detail.value
    set_knob(panel, pp=8)
    assert pane.detail.value == ""


@pytest.mark.slow
def test_a_box_on_the_front_lists_what_is_inside(panel, gpt3, h100s):
    few = {"tp": [4, 8], "pp": [2, 4], "virtual_stages": [1], "micro_batch": [1, 2], "unequal_stages": False}
    panel._tuned(tune(gpt3, h100s, 1024, knobs=few, top=1))
    pane = panel.panes.panes["Front"]
    for trace in (t for t in pane.canvases[0].plot.data if t.customdata is not None):
        panel.panes._boxed(trace, SimpleNamespace(point_inds=[0, 1]), None)
    assert "configurations selected" in pane.detail.value
    panel.panes.options["Front"]["across"].value = "cost"
    assert "USD" in pane.canvases[0].plot.layout.xaxis.title.text


def test_multipliers_say_what_they_change(panel):
    panel.hardware.knobs["inter"].value = 2.0
    panel.hardware.knobs["clock"].value = 1.2
    network, clock = panel.hardware.facts.value.split("<br>")
    assert "network between nodes (NIC) 2x saves" in network
    assert "clock 1.2x saves" in clock
    panel.hardware.reset.click()
    assert panel.hardware.facts.value == ""


def test_what_a_profile_has_not_timed_is_a_state(tmp_path):
    cluster = cores(with_mapped(load_profile("cpu"), tmp_path / "both"))
    panel = sim.whatif(MODEL, cluster, Plan(global_batch=8, product_kernel="task-mapped"))
    set_knob(panel, micro_batch=2)
    assert panel.step.step_time_s == sim.simulate(MODEL, cluster, panel.step.plan).step_time_s
    assert (panel.step.plan.micro_batch, panel.step.plan.product_kernel) == (2, "task-mapped")
    assert "library 98.9 GFLOP/s, task-mapped 198 GFLOP/s" in panel.clusters.facts.value
    panel.clusters.device.value = "l4"
    assert "Not possible" in panel.message and "l4 has timed no task-mapped products" in panel.message


def test_cards_say_how_their_numbers_come_about(panel):
    cards = panel._cards.value
    assert cards.count('class="badge"') == 5
    assert "fitted" in cards
    assert "FLOP of the model / (" in cards
    panel.clusters.device.value = "gb300"
    assert load_profile("gb300").estimate
    assert 'class="badge">assumed' in panel._cards.value.partition("USD")[0]


@pytest.mark.slow
def test_every_multiplier_matters(panel):
    before = panel.step
    for name, knob in panel.hardware.knobs.items():
        knob.value = 2.0
        now = panel.step
        assert (now.step_time_s, now.cluster.memory_bytes, now.usd_per_1e9_tokens) != (
            before.step_time_s, before.cluster.memory_bytes, before.usd_per_1e9_tokens,
        ), name  # fmt: skip
        knob.value = 1.0
    assert panel.step.step_time_s == before.step_time_s


def test_a_bar_of_the_tornado_sets_its_multiplier(panel):
    (plot,) = open_tab(panel, "Tornado")
    better = plot.data[0]
    assert (
        f"{better.y[0].split(' (')[0]} {signed(better.x[0], 1)}\u00a0%, " in panel.panes.panes["Tornado"]._words.value
    )
    at = list(better.customdata).index("matrix_flop_per_s")
    panel.panes._tried(better, SimpleNamespace(point_inds=[at]), None)
    assert panel.hardware.knobs["clock"].value == 1.25
    panel.panes._better("launch_s", True)
    assert panel.hardware.factors == dict.fromkeys(panel.hardware.knobs, 1.0) | {"clock": 1.25}
    panel.panes._better("price", True)
    panel.panes._better("memory_size", False)
    assert (panel.hardware.factors["price"], panel.hardware.factors["memory"]) == (0.8, 0.8)


def test_the_event_engines_answer_to_another_question_is_dropped(panel):
    asked = sim.simulate(panel.step.model, panel.step.cluster, panel.step.plan, "events")
    panel._ran(asked)
    assert "event engine" in panel._beside.value
    panel.hardware.knobs["clock"].value = 2.0
    panel._ran(asked)
    assert panel._beside.value == ""


def test_a_multiplier_out_of_range_is_refused(panel):
    panel.hardware.knobs["clock"].value = 9.0
    assert "multipliers.clock" in panel.message
    panel.hardware.reset.click()
    assert "a step" in panel.message


def test_other_models_and_clusters(panel):
    panel.models.picker.value = "llama3-70b"
    assert panel.step.model.name == "llama3-70b"
    assert panel.models.dimensions["hidden"].value == 8192
    panel.models.seq.value = 4096
    assert panel.step.model.seq == 4096
    panel.clusters.nodes.value = 8
    assert panel.step.cluster.gpus == 64
    panel.clusters.device.value = "a100-sxm-80gb"
    assert panel.step.cluster.device == "a100-sxm-80gb"
    assert panel.step.plan.tp == 8
    panel.models.picker.value = "no-such-model"
    assert "model no-such-model; allowed: a name of the list, or the path of a config.json." in panel.message


def test_a_model_of_no_catalog_is_found_again(panel, gpt3, h100s):
    own = Model(name="ours", layers=48, hidden=6144, heads=48, vocab=50_304, seq=2048)
    panel.show(own, h100s, PLAN)
    panel.models.picker.value = "gpt3-175b"
    assert panel.step.model == gpt3
    assert "ours" in panel.models.picker.options
    panel.models.picker.value = "ours"
    assert panel.step.model == own


def test_dimensions_contradict(panel):
    panel.models.dimensions["heads"].value = 97
    assert "Not possible" in panel.message
    panel.models.dimensions["heads"].value = 96
    panel.models.dimensions["layers"].value = 48
    assert panel.step.model.layers == 48


@pytest.mark.slow
def test_state_is_saved_and_loaded(panel, tmp_path, gpt3, h100s):
    panel.hardware.knobs["memory_rate"].value = 2.0
    set_knob(panel, pp=8, schedule="zb-h1", virtual_stages=1)
    panel.plans.shares["optimizer"].value = 50
    path = panel.save(tmp_path / "plan.json")
    other = sim.whatif(gpt3, h100s, PLAN)
    other.load(path)
    assert other.step.step_time_s == panel.step.step_time_s
    assert other.plans.knobs["schedule"].value == "zb-h1"
    assert other.plans.shares["optimizer"].value == 50


def test_a_job_is_shown_at_its_prices(panel, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: gpt2\ncluster: {device: h100-sxm-80gb}\nplan: {global_batch: 8}\nprices: {usd_per_gpu_hour: 1.5}\n"
    )
    panel.load(job)
    assert panel.step.cluster.usd_per_gpu_hour == 1.5


def test_a_wrong_file_is_said(panel, tmp_path):
    panel.file.value = str(tmp_path / "none.json")
    panel._load()
    assert "none.json" in panel._beside.value
    with pytest.raises(InputError):
        panel.load(tmp_path / "none.json")


def test_code_computes_the_same(panel, tmp_path):
    panel.models.dimensions["layers"].value = 48
    panel.hardware.knobs["clock"].value = 1.2
    panel.plans.shares["activations"].value = 25
    path = tmp_path / "again.py"
    path.write_text(panel.code)
    assert runpy.run_path(str(path))["run"].step_time_s == panel.step.step_time_s


def test_a_model_of_ones_own(h100s):
    model = sim.Model(name="mine", layers=8, hidden=1024, heads=16)
    panel = sim.whatif(model, h100s, Plan(tp=2, global_batch=128), tab="Data")
    assert "sim.Model(name='mine', layers=8" in panel.panes.data._html.value.replace("&#x27;", "'")
    set_knob(panel, tp=4)
    assert panel.step.model is model
    with pytest.raises(InputError, match="tab: got 'Nothing'"):
        sim.whatif(model, h100s, Plan(tp=2, global_batch=128), tab="Nothing")


def test_a_search_is_drawn_and_its_points_are_plans(panel, gpt3, h100s):
    few = {"tp": [4, 8], "pp": [2, 4], "virtual_stages": [1], "micro_batch": [1, 2], "unequal_stages": False}
    open_tab(panel, "Front")
    area = panel.panes.panes["Front"].canvases[1].layout
    assert area.display == "none"  # nothing has been searched
    panel._tuned(tune(gpt3, h100s, 1024, knobs=few, top=1))
    assert panel.panes.current == "Front" and area.display is None
    plot = panel.panes.panes["Front"].canvases[0].plot
    trace = next(t for t in plot.data if t.customdata is not None and t.name.startswith("pp 2"))
    tp, pp, _, dp, micro_batch, zero, flat = (int(v) for v in trace.customdata[0])
    shown = panel.panes.options["Front"]
    shown["by"].value, shown["points"].value = "tp", 500
    groups = [t for t in plot.data if t.customdata is not None and t.name.startswith("tp ")]
    assert [t.name for t in groups] == ["tp 2–4", "tp 5–16"] and sum(len(t.x) for t in groups) <= 500
    panel._chosen(flat, False)
    plan = panel.step.plan
    assert (plan.tp, plan.pp, panel.step.placed.dp, plan.micro_batch, plan.zero) == (tp, pp, dp, micro_batch, zero)
    assert not panel.panes.panes["Front"].canvases[1].plot.data  # one plan is ranked: nothing that it beats
    panel._chosen(NAMED["best"], True)
    assert panel.pinned.step_time_s == panel.found.best.step.step_time_s


def test_a_waterfall_says_why_the_best_plan_beats_the_next(panel, gpt3, h100s):
    few = {"tp": [4, 8], "pp": [2, 4], "virtual_stages": [1], "micro_batch": [1, 2], "unequal_stages": False}
    panel._tuned(tune(gpt3, h100s, 1024, knobs=few, top=2))
    best, other = panel.found.plans
    pane = panel.panes.panes["Front"]
    *terms, total = [bar.y[0] for bar in pane.canvases[1].plot.data]
    assert sum(terms) == pytest.approx(total) and total > 0
    shown = figures.difference(other.step, best.step)
    assert [plain(t) for t in pane.canvases[1].plot.data] == [plain(t) for t in shown.data]
    assert f"The next plan, tp {other.plan.tp}, pp {other.plan.pp}, " in pane._words.value
    assert f" takes {next_words(panel.found)}; below the front" in pane._words.value


def test_unequal_stages_stay_until_a_knob_moves(gpt3, h100s):
    like = sim.StagePlan(layers=23, tp=8, dp=4, zero=1, recompute="selective")
    stages = (replace(like, layers=27, recompute="full"), *(replace(like, layers=n) for n in (23, 24, 22)))
    panel = sim.whatif(gpt3, h100s, Plan(global_batch=1024, stages=stages))
    shown = {name: panel.plans.knobs[name].value for name in ("tp", "pp", "zero", "recompute")}
    assert shown == {"tp": 8, "pp": 4, "zero": 1, "recompute": "selective"}  # as most layers have it
    assert "layers 27 23 24 22; dp 4; recompute full 27, selective 23 24 22." in panel.plans.dp.value
    panel.hardware.knobs["price"].value = 2.0
    assert panel.step.plan.stages == stages
    set_knob(panel, zero=0)
    assert not panel.step.plan.stages and panel.step.plan.tp == 8
    assert panel.step.plan.recompute == "selective" and "of their own" not in panel.plans.dp.value


def test_starts_from_a_ranked_plan(gpt3, h100s):
    best = tune(gpt3, h100s, 128, knobs={"tp": [8], "pp": [4, 8], "unequal_stages": False}, top=1).best
    assert sim.whatif(gpt3, h100s, best).step.step_time_s == best.step.step_time_s


def test_impossible_start_is_refused(gpt3, h100s):
    with pytest.raises(InputError, match=r"plan\.tp"):
        sim.whatif(gpt3, h100s, Plan(tp=7, global_batch=8))


def test_figures_fill_their_column_and_follow_the_theme(panel):
    panel.sensor.width = 1000
    panel.sensor.theme = "dark"
    plot = panel.panes.panes["Timeline"].canvases[0].plot
    assert plot.layout.width == 964
    set_knob(panel, recompute="full")
    assert plot.layout.width == 964
    assert plot.layout.template.layout.font.color == "#E6E6E6"
    wide = panel._told.layout.min_height
    panel.sensor.width = 300
    assert int(panel._told.layout.min_height[:-2]) > int(wide[:-2])  # the same words take more lines
    assert {figure.layout.width for figure in (plot, *open_tab(panel, "Breakdown"))} == {MIN_WIDTH}


def test_mixed_clusters_have_no_rates_of_links_to_multiply(gpt3):
    groups = [{"device": "h100-sxm-80gb", "nodes": 4}, {"device": "a100-sxm-80gb", "nodes": 4}]
    panel = sim.whatif(gpt3, Cluster.of(groups=groups), Plan(tp=8, pp=8, global_batch=1024, zero=1, recompute="full"))
    before = panel.step.step_time_s
    panel.hardware.knobs["clock"].value = 2.0
    assert panel.step.step_time_s < before
    panel.hardware.knobs["intra"].value = 2.0
    assert "cluster.links" in panel.message


def test_tempos_layers_are_a_switch(panel):
    set_knob(panel, recompute="none")
    before = panel.step
    set_knob(panel, tempo="on")
    assert panel.plan.tempo
    assert panel.step.peak_memory_bytes < before.peak_memory_bytes
    assert "tempo=True" in panel.code
    set_knob(panel, tempo="off")
    assert panel.step.step_time_s == before.step_time_s
