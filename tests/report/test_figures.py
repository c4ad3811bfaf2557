"""Figures: traces, units, order of the legend, and that they show what the step says."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from sim.engine.hidden import hidden
from sim.engine.path import run_path
from sim.engine.step import Step, device_memory, simulate
from sim.engine.timeline import Durations, Timeline
from sim.report import figures
from sim.report.figures.front import pareto
from sim.report.text import overflow
from sim.report.theme import CATEGORIES, LETTERS, LINE, NARROW, OUTSIDE, PALETTE, TERMS, wrapped
from sim.schedules import SCHEDULES, Kind, Shape, build
from sim.specs import InputError
from sim.tuner.front import front
from sim.tuner.tune import Tuned
from sim.units import seconds


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
    assert figure.layout.height == 120 + 22 * 4 + 16  # the note needs two lines
    assert legend(figure)[:2] == ["forward (F)", "backward (B)"] and legend(figure)[-1] == "idle"
    scale = {"s": 1.0, "ms": 1e-3}[figure.layout.xaxis.title.text.split("(")[1].split(")")[0]]
    assert figure.layout.xaxis.range[1] * scale == pytest.approx(step.timeline.makespan * 1e-9)
    assert max(float(np.max(t.base + t.x)) for t in shown) * scale == pytest.approx(step.timeline.makespan * 1e-9)


@pytest.mark.parametrize("window", [(1.0, 0.0), (0.0, 0.0), (float("nan"), 1.0), (0.0, float("inf")), (5.0, 6.0), "ab"])
def test_a_window_that_shows_nothing_is_refused(step: Step, window: tuple[float, float]) -> None:
    with pytest.raises(InputError, match=r"^window: got "):
        figures.timeline(step, window=window)


def test_arguments_that_no_figure_can_have_are_refused(step: Step, tuned: Tuned) -> None:
    for draw in (
        lambda: figures.breakdown([]),
        lambda: figures.breakdown([step, step], ["one"]),
        lambda: figures.front(tuned, max_points=-5),
    ):
        with pytest.raises(InputError):
            draw()


def test_timeline_says_what_a_step_takes_after_its_last_bar(step: Step) -> None:
    left = step.step_time_s - step.timeline.makespan * 1e-9
    note = f"; waiting for the slowest device adds {seconds(left)}"
    title = figures.timeline(step).layout.xaxis.title.text.replace("<br>", " ").replace("\u00a0", " ")
    assert left > 1e-3 * step.step_time_s and title.endswith(note)
    beginning = figures.timeline(step, window=(0.0, 0.5 * step.step_time_s))
    unhindered = replace(step, step_time_s=step.timeline.makespan * 1e-9)
    for figure in (beginning, figures.timeline(unhindered), figures.timeline(step.timeline)):
        assert "slowest" not in figure.layout.xaxis.title.text


def test_timeline_tells_chunks_apart_by_shade(step: Step) -> None:
    shades = {t.marker.color for t in bars(figures.timeline(step)) if t.name == "forward (F)"}
    assert len(shades) == step.plan.virtual_stages and PALETTE["forward"][0] in shades


@pytest.mark.parametrize(("shade", "shades"), [("nothing", 1), ("chunk", 2), ("microbatch", 8)])
def test_shades_tell_apart_what_is_asked_for(step: Step, shade: str, shades: int) -> None:
    figure = figures.timeline(step, shade=shade)
    assert len({bar.marker.color for bar in figure.data if bar.name == "forward (F)" and bar.type == "bar"}) == shades
    assert ("deeper" in figure.layout.xaxis.title.text) == (shade != "nothing")


def test_more_operations_than_bars_become_a_raster(long_step: Step) -> None:
    figure = figures.timeline(long_step)
    assert [t.type for t in figure.data][-1] == "heatmap" and not bars(figure)
    rows, window = figures.opening(long_step) or (0, (0.0, 0.0))
    assert bars(figures.timeline(long_step, rows, window=window))


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


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_below_the_memory_are_the_microbatches_in_flight(step: Step, schedule: str) -> None:
    run = simulate(step.model, step.cluster, step.plan.but(schedule=schedule, virtual_stages=1))
    for rank, most in enumerate(run.timeline.schedule.peak_in_flight()):
        figure = figures.memory(run, stage=rank)
        (alive,) = (t for t in figure.data if t.yaxis == "y2")
        assert max(alive.y) == most and alive.y[0] == alive.y[-1] == alive.y[-2] == 0
        held = next(t for t in areas(figure) if t.name == "activations")
        filled = [axis.x[axis.y > 0.999 * max(axis.y)][0] for axis in (alive, held)]
        assert filled[0] == pytest.approx(filled[1]) and alive.x[-1] == held.x[-1]
        assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]


def test_memory_is_thinned_but_keeps_its_peak(long_step: Step) -> None:
    figure = figures.memory(long_step, stage=0)
    held = areas(figure)
    assert all(len(t.x) <= 400 for t in figure.data)
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
        assert any(f"over by {overflow(overfull)}" == a.text for a in figure.layout.annotations)


def test_an_interval_that_reaches_below_the_capacity_is_close_and_nothing_to_be_over_by(overfull: Step) -> None:
    capacity = overfull.device_memory_bytes * 0.99
    step = simulate(overfull.model, replace(overfull.cluster, memory_bytes=capacity), overfull.plan)
    assert step.fits == "close"
    texts = [a.text for figure in (figures.memory(step), figures.memory_peaks(step)) for a in figure.layout.annotations]
    assert sum(text.startswith("close: ") for text in texts) == 2
    assert not any("over by" in text for text in texts)


def test_a_hover_over_memory_says_by_what_it_is_divided(step: Step) -> None:
    sharded = simulate(step.model, step.cluster, step.plan.but(zero=2, tp=1))
    plan, shard = sharded.plan, sharded.placed.shard
    split = f"<br>divided by tp {plan.tp} x pp {plan.pp}"
    told = {t.name: t.text[0] for t in bars(figures.memory_peaks(sharded))}
    assert shard > 1
    assert told["parameters"] == split
    assert told["gradients"] == told["optimizer state"] == f"{split} x {shard} ranks by ZeRO-2"
    assert told["activations"].startswith(f"<br>divided by tp {plan.tp} x cp {plan.cp}; micro-batch")
    assert all(told[t.name] in t.hovertemplate for t in areas(figures.memory(sharded)) if told[t.name])


def test_memory_of_the_plan_compared_with_is_whole_and_has_a_unit(overfull: Step) -> None:
    smaller = simulate(overfull.model, overfull.cluster, overfull.plan.but(micro_batch=1, recompute="full"))
    figure = figures.memory(smaller, 0, reference=overfull)
    (other,) = (t for t in figure.data if t.name == "A, pipeline rank 0")
    assert max(other.y) * 1e9 == pytest.approx(overfull.memory[0].peak_bytes)
    assert max(other.y) < figure.layout.yaxis.range[1] and "GB allocated" in other.hovertemplate


def test_breakdown_sums_to_the_step_in_the_fixed_order(step: Step, overfull: Step) -> None:
    figure = figures.breakdown([step, overfull])
    unit = 1e-3 if "(ms)" in figure.layout.xaxis.title.text else 1.0
    assert sum(t.x for t in bars(figure)) * unit == pytest.approx([step.step_time_s, overfull.step_time_s])
    order = [look.label for look in TERMS.values()]
    assert legend(figure) == sorted(legend(figure), key=order.index) and "offload" not in legend(figure)
    error = figure.data[-1].error_x
    assert figure.data[-1].x[0] + error.array[0] == pytest.approx(step.step_time_interval_s[1] / unit)


def test_breakdown_in_percent_sums_to_a_hundred(step: Step, overfull: Step) -> None:
    figure = figures.breakdown([step, overfull], share=True)
    for i in range(2):
        assert sum(bar.x[i] for bar in figure.data if bar.type == "bar") == pytest.approx(100)
    assert "(%)" in figure.layout.xaxis.title.text


def test_names_of_rows_have_room(step: Step, overfull: Step) -> None:
    figure = figures.breakdown([step, overfull], ["before the schedule was changed", "after"])
    assert list(figure.layout.yaxis.ticktext) == ["before the schedule was…", "after"]
    shared = figure.layout.template.layout  # margins follow the names, the legend does not
    assert shared.xaxis.automargin and shared.yaxis.automargin and shared.legend.xref == "container"


def test_notes_are_broken_into_lines_that_fit(step: Step) -> None:
    note = figures.timeline(step).layout.xaxis.title.text
    compared = figures.timeline_difference(uniform("zb-h1", 4, 8), uniform("1f1b", 4, 8)).layout
    for text, most in ((note, LETTERS), (compared.title.text, NARROW)):
        assert len(text) > most >= max(map(len, text.split("<br>")))
    assert wrapped("so it adds 12.5 ms, ring-all-reduce", 14)[0].split("<br>") == [
        "so it adds", "12.5\u00a0ms,", "ring-all-reduce"
    ]  # fmt: skip
    alike = figures.timeline_difference(uniform("1f1b", 4, 8), uniform("1f1b", 4, 8)).layout
    assert compared.height - alike.height == compared.margin.b - alike.margin.b == LINE


def test_what_is_hidden_is_drawn_beside_what_is_exposed(step: Step) -> None:
    figure = figures.breakdown(step, hidden=True)
    found = hidden(step)
    drawn = {bar.meta: bar.x[0] for bar in figure.data if bar.name and bar.name.endswith("hidden")}
    scale = figure.data[0].x[0] / step.breakdown_s["compute"]
    assert drawn == pytest.approx({term: value * scale for term, value in found.items() if value})
    assert any("hidden" in note.text for note in figure.layout.annotations)


def test_difference_adds_up(step: Step, overfull: Step) -> None:
    terms = bars(figures.difference(step, overfull))
    assert sum(float(t.y[0]) for t in terms[:-1]) == pytest.approx(float(terms[-1].y[0]))


def test_front_is_bounded_counts_misfits_and_holds_nothing_dominated(tuned: Tuned) -> None:
    figure = figures.front(tuned, max_points=200)
    points = [t for t in figure.data if t.type == "scattergl"]
    assert sum(len(t.x) for t in points) <= 200 and "does not fit (" in points[0].name
    assert legend(figure)[-2:] == ["best", "baseline"] and len(legend(figure)) <= 8
    assert pareto(np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 3.0, 3.0, 2.0])).tolist() == [1, 3, 0]


def test_front_shows_a_best_plan_of_unequal_stages_also_where_none_of_equal_stages_fits(tuned: Tuned) -> None:
    time, fits = tuned.scores.step_time_s, tuned.scores.fits
    for scores in (
        replace(tuned.scores, step_time_s=10 * time),
        replace(tuned.scores, fits=np.zeros_like(fits)),
    ):
        figure = figures.front(replace(tuned, scores=scores))
        (best,) = (t for t in figure.data if t.name == "best")
        low, high = 10.0 ** np.array(figure.layout.yaxis.range)
        assert low < best.y[0] < high


@pytest.mark.parametrize(("terms", "lower"), [(6, 0), (len(TERMS), (len(TERMS) + 1) // 2)])
def test_names_of_a_waterfall_are_level_and_stand_in_two_lines_where_they_are_many(
    step: Step, terms: int, lower: int
) -> None:
    slower = replace(step, breakdown_s=step.breakdown_s | {t: step.breakdown_s[t] + 0.01 for t in [*TERMS][:terms]})
    figure = figures.difference(slower, step)
    axis, names = figure.layout.xaxis, [bar.x[0] for bar in figure.data]
    assert len(names) == terms + 1 and list(axis.tickvals) == names and axis.tickangle == 0
    assert [text.removeprefix("<br>") for text in axis.ticktext] == names
    assert [text.startswith("<br>") for text in axis.ticktext].count(True) == lower


def test_a_long_logarithmic_axis_has_ticks_from_end_to_end(tuned: Tuned) -> None:
    time = tuned.scores.step_time_s
    spread = np.geomspace(0.004, 20.0, time.size).reshape(time.shape)
    axis = figures.front(replace(tuned, scores=replace(tuned.scores, step_time_s=spread))).layout.yaxis
    assert 3 <= len(axis.tickvals) <= 8
    assert axis.tickvals[0] < 3.2 * 10 ** axis.range[0] and axis.tickvals[-1] > 10 ** axis.range[1] / 3.2


def test_misfits_wait_for_a_click_on_their_entry(tuned: Tuned) -> None:
    shown, waiting = (figures.front(tuned, misfits=on).data[0] for on in (True, False))
    assert shown.name == waiting.name
    assert (shown.visible, waiting.visible) == (None, "legendonly")


def test_front_takes_any_two_objectives(tuned: Tuned) -> None:
    found = front(tuned, "tokens_per_usd", "memory_headroom")
    figure = figures.front(tuned, x="tokens_per_usd", y="memory_headroom", confirmed=found, webgl=False)
    titles = [axis.title.text for axis in (figure.layout.xaxis, figure.layout.yaxis)]
    assert titles == ["million tokens per USD, log scale", "peak allocated memory (GB)"]
    (marks,) = (t for t in figure.data if t.name == "front, simulated")
    assert list(marks.x) == pytest.approx([plan.x / 1e6 for plan in found.plans])
    assert list(marks.y) == pytest.approx([plan.peak_memory_bytes / 1e9 for plan in found.plans])
    assert len(marks.text) == len(found.plans) and all("micro-batch" in text for text in marks.text)
    with pytest.raises(InputError, match="a front of memory_headroom and step_time"):
        figures.front(tuned, confirmed=found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_the_themes_and_the_background_is_left_alone(step: Step, theme: str) -> None:
    figure = figures.timeline(step, theme=theme)  # type: ignore[arg-type]
    assert bars(figure)[0].marker.color == PALETTE["forward"][theme == "dark"]
    assert figure.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"
    for axis in (figure.layout.template.layout.xaxis, figure.layout.template.layout.yaxis):
        assert axis.separatethousands and axis.minexponent == 6  # plotly.js would write 40k beside our 40 000


def uniform(name: str, ranks: int, microbatches: int) -> Timeline:
    """Return a schedule's timeline with F, I, W and messages of 100, 110, 90 and 2 us."""
    kind = SCHEDULES[name]
    shape = Shape(ranks, microbatches, kind.chunks)
    stages = len(kind.rank_of(shape))
    times = {Kind.F: 100_000, Kind.B: 200_000, Kind.I: 110_000, Kind.W: 90_000}
    durations = Durations.uniform(stages, times, message=2_000)
    return run_path(build(name, shape, durations.work()), durations)


def outline(figure: go.Figure) -> go.Scatter:
    """Return the critical path."""
    (found,) = (t for t in figure.data if t.name == "critical path")
    return found


def test_the_critical_path_reaches_from_end_to_end(step: Step) -> None:
    path = outline(figures.timeline(step))
    x = [v for v in path.x if v is not None]
    assert min(x) == 0
    assert max(x) == pytest.approx(figures.timeline(step).layout.xaxis.range[1])
    assert not [t for t in figures.timeline(step, critical=False).data if t.name == "critical path"]


def test_a_bar_says_what_it_waits_for() -> None:
    (second,) = (t for t in bars(figures.timeline(uniform("1f1b", 2, 1))) if t.name == "backward (B)")
    assert [row[2] for row in second.customdata] == [
        "B of microbatch 0, stage 0<br>waits for the message of 1B0",
        "B of microbatch 0, stage 1<br>waits for its rank's previous action",
    ]


def test_a_short_axis_of_ranks_has_a_short_title(step: Step) -> None:
    titles = [figures.timeline(x).layout.yaxis.title.text for x in (uniform("1f1b", 2, 4), step)]
    assert titles == ["rank", "pipeline rank"]


def test_two_directions_are_told_apart_and_pairs_share_a_bar() -> None:
    figure = figures.timeline(uniform("dualpipe", 4, 10))
    forwards = [t for t in bars(figure) if t.name == "forward (F)"]
    assert {t.marker.color for t in forwards} >= {PALETTE["forward"][0]}
    assert len({t.marker.color for t in forwards}) == 2
    assert "first direction" in figure.layout.xaxis.title.text
    assert any("second direction" in row[2] for t in forwards for row in t.customdata)
    halves = [t for t in bars(figure) if t.name and np.min(t.width) < 0.5]
    assert {t.name for t in halves} == {"forward (F)", "backward (B)"}
    pairs = sum(int(np.count_nonzero(np.asarray(t.width) < 0.5)) for t in halves)
    assert pairs == 2 * sum(map(len, uniform("dualpipe", 4, 10).schedule.fused))
    above = {float(np.round(y % 1, 4)) for t in halves for y, w in zip(t.y, t.width, strict=True) if w < 0.5}
    assert above == {0.2125, 0.7875}


def test_b_and_i_share_an_entry_of_the_legend() -> None:
    assert legend(figures.timeline(uniform("dualpipev", 2, 4)))[1] == "backward (B), for the input only (I)"
    assert "backward, input (I)" in legend(figures.timeline(uniform("zbv", 2, 4)))


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_kind_of_schedule_is_drawn_with_every_action(name: str) -> None:
    run = uniform(name, 2, 4)
    shown = [t for t in bars(figures.timeline(run)) if t.name]
    assert sum(len(t.x) for t in shown) == np.count_nonzero(run.end > run.start)


def test_sixteen_thousand_actions_are_a_small_picture() -> None:
    shape = Shape(16, 256, 2)
    run = run_path(build("interleaved", shape), Durations.uniform(32, {Kind.F: 1, Kind.B: 2}))
    assert len(run.start) == 16_384
    figure = figures.timeline(run)
    assert len(figure.to_json()) < 4e5
    assert len(figure.data) < 30


def test_lanes_are_rows_of_the_event_engine(step: Step) -> None:
    run = simulate(step.model, step.cluster, step.plan, "events")
    names = list(figures.timeline(run, ranks=2, lanes=True).layout.yaxis.ticktext)
    assert {n.split()[0] for n in names} == {"0", "3"}
    assert {"0 compute", "0 collectives", "0 messages"} <= set(names)
    with pytest.raises(InputError, match="lanes: got True"):
        figures.timeline(step, lanes=True)


@pytest.mark.parametrize("names", [("1f1b", "1f1b"), ("zb-h1", "1f1b"), ("gpipe", "1f1b")])
def test_two_timelines_share_one_axis(names: tuple[str, str]) -> None:
    after, before = (uniform(n, 4, 8) for n in names)
    figure = figures.timeline_difference(after, before)
    shown = [t for t in bars(figure) if t.name]
    for axis, run in ((("y", None), before), (("y2",), after)):
        assert sum(len(t.x) for t in shown if t.yaxis in axis) == np.count_nonzero(run.end > run.start)
    assert figure.layout.xaxis.matches == "x2"
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range
    assert len({t.name for t in figure.data if t.showlegend is not False}) == len(legend(figure))
    moved = [row[2] for t in shown if t.yaxis == "y2" for row in t.customdata]
    assert all("against A" in words for words in moved) == (names[0] != "zb-h1")
    assert ("equally long" in figure.layout.title.text) == (names[0] == names[1])


def test_a_difference_of_steps_says_what_no_bar_shows(step: Step) -> None:
    waiting = replace(step, breakdown_s={**step.breakdown_s, "straggler": 1.0}, step_time_s=step.step_time_s + 1.0)
    figure = figures.timeline_difference(waiting, step)
    texts = [note.text for note in figure.layout.annotations]
    assert "waiting for the slowest device adds" in texts[0].replace("<br>", " ")
    assert "waiting for the slowest device adds 1" in texts[1].replace("<br>", " ")
    assert all(len(line) <= NARROW for text in texts for line in text.split("<br>"))
    more = sum(text.count("<br>") for text in texts)
    known = replace(step, step_time_s=step.timeline.makespan * 1e-9)  # nothing after the last bar
    assert more and figure.layout.height - figures.timeline_difference(known, known).layout.height == more * LINE


def test_a_difference_of_steps_names_both_plans(step: Step, long_step: Step) -> None:
    figure = figures.timeline_difference(step, long_step)
    swapped = figures.timeline_difference(long_step, step)
    assert all("earlier chunk" in f.layout.xaxis2.title.text for f in (figure, swapped))  # `step` alone has chunks
    assert [a.text[:8] for a in figure.layout.annotations] == ["A: tp 2,", "B: tp 2,"]
    assert figure.layout.title.text.startswith("B takes ")
    plain = figures.timeline_difference(step, long_step, critical=False, shade="microbatch")
    assert not any(t.name == "critical path" for t in plain.data)
    assert "of 8 microbatches" in plain.layout.xaxis2.title.text
