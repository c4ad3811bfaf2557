"""Figures and words of decentralised training: they show what was simulated."""

from dataclasses import replace
from statistics import fmean

import pytest

from sim.decentralized import KNOBS, Failure, Wan, selected, simulate, what_if
from sim.report import figures
from sim.report.decentralized import answer_decentralized, what_if_lines
from sim.specs.fields import InputError
from tests.decentralized.toys import fitted, rows, small

MODEL = fitted()
RUN = small(controller="hill_climbing", steps=4_000, travel_every=400)


@pytest.fixture(scope="module")
def run():
    """A training under a controller."""
    return simulate(RUN, MODEL)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_front_has_a_point_for_every_training(run, theme):
    fixed = [simulate(small(theta=theta), MODEL) for theta in (50.0, 10.0)]
    fedavg, controlled = figures.decentralized_front([*fixed, run], theme=theme).data
    assert (fedavg.name, controlled.name) == ("fedavg", "fedavg, hill_climbing")
    assert list(fedavg.text) == ["50", "10"]  # by traffic
    assert list(fedavg.y) == pytest.approx([100 * one.accuracy.value for one in fixed])
    assert fedavg.x[1] == pytest.approx(5 * fedavg.x[0])
    assert fedavg.error_y.array[0] == pytest.approx(100 * (fixed[0].accuracy.high - fixed[0].accuracy.value))
    for wrong in ([], [simulate(small())]):
        with pytest.raises(InputError, match="found"):
            figures.decentralized_front(wrong)


def test_short_runs_have_a_point_for_every_theta():
    runs = selected(rows(), skew=1.0)
    (drawn,) = figures.decentralized_runs([replace(run, sent_bytes=1e5 / run.theta) for run in runs]).data
    assert list(drawn.text) == ["200", "100", "50", "20", "10", "5"]
    assert list(drawn.x) == pytest.approx([100 / float(theta) for theta in drawn.text])
    assert list(drawn.customdata) == list(drawn.text) and "theta %{customdata}" in drawn.hovertemplate
    last = [100 * run.accuracy for run in selected(runs, theta=5.0)]
    assert drawn.y[-1] == pytest.approx(fmean(last))
    assert drawn.y[-1] + drawn.error_y.array[-1] == pytest.approx(max(last))
    assert drawn.y[-1] - drawn.error_y.arrayminus[-1] == pytest.approx(min(last))
    with pytest.raises(InputError, match="short runs"):
        figures.decentralized_runs([])


def test_what_is_lost_has_a_line_for_every_skew_and_a_circle_for_every_run():
    drawn = figures.decentralized_loss(MODEL).data
    assert [line.name for line in drawn[::2]] == ["skew 0", "skew 0.5", "skew 1"]
    line, circles = drawn[4:]
    each = [MODEL.accuracy_loss(theta, 1.0) for theta in KNOBS["fedavg"].thetas]
    assert list(line.y) == pytest.approx([100 * one.value for one in each])
    assert line.error_y.array[2] == pytest.approx(100 * (each[2].high - each[2].value))
    assert sorted(circles.y) == sorted(100 * run.accuracy_loss for run in MODEL.runs if run.skew == 1.0)
    assert figures.decentralized_loss(MODEL, "accuracy").data[0].y[0] > 80
    ticks = figures.decentralized_loss(MODEL).layout.xaxis
    assert dict(zip(ticks.tickvals, ticks.ticktext, strict=True))[0] == "5"


def test_what_if_has_a_line_for_every_training():
    rows = {f"{theta:g}": what_if(small(theta=theta), "bandwidth", (1.25e6, 1.25e7)) for theta in (10.0, 50.0)}
    tight, loose = figures.decentralized_what_if(rows).data
    assert list(tight.x) == ["1.25 MB/s", "12.5 MB/s"] and loose.name == "50"
    assert list(tight.y) == pytest.approx([row.seconds / 3600 for row in rows["10"]])
    assert figures.decentralized_what_if(rows, "traffic").data[0].y[0] == pytest.approx(3.2)  # 40 times 20 of 4 MB
    for wrong in ({}, rows | {"of K": what_if(small(), "partitions", (2,))}):
        with pytest.raises(InputError, match="rows of one axis"):
            figures.decentralized_what_if(wrong)


def test_the_map_shows_theta_and_what_it_is_worth():
    found = [
        simulate(RUN.with_(skew=skew, noise=False, wan=Wan(bytes_per_s=rate)), MODEL)
        for skew in (1.0, 0.0)
        for rate in (1.25e6, 1.25e8)
    ]
    (drawn,) = figures.decentralized_map(found).data
    assert list(drawn.y) == ["0", "1"]
    assert [list(row) for row in drawn.text] == [["200", "200"], ["10", "10"]]
    assert drawn.z[0][0] == pytest.approx(found[2].bsp_seconds / found[2].seconds)
    assert drawn.z[0][0] > drawn.z[0][1] > 1
    assert drawn.texttemplate == "%{text}"
    with pytest.raises(InputError, match="links are alike"):
        figures.decentralized_map([simulate(small(wan=Wan(partitions=2, bytes_per_s=((1e6, 1e6), (1e6, 1e6)))))])


def test_theta_stands_beside_the_objective(run):
    theta, objective = figures.decentralized_theta(run).data
    assert list(theta.y) == [*(since.theta for since in run.thetas), run.thetas[-1].theta]
    assert theta.x[-1] == run.steps
    assert list(objective.y) == [travel.objective for travel in run.travels]
    assert objective.yaxis == "y2"
    low, high = figures.decentralized_theta(run).layout.yaxis2.range
    assert low < min(objective.y) <= max(objective.y) < high


def test_a_timeline_has_what_partitions_did():
    found = simulate(small(theta=20.0, steps=40, step_s=(0.1, 0.2, 0.1, 0.1, 0.1)))
    bars = {bar.name: bar for bar in figures.decentralized_timeline(found).data}
    assert set(bars) == {"compute", "sending", "waiting for others"}
    assert sum(x for x, y in zip(bars["compute"].x, bars["compute"].y, strict=True) if y == 1) == pytest.approx(8.0)
    assert set(bars["waiting for others"].y) == {0, 2, 3, 4}
    cut = {bar.name: bar for bar in figures.decentralized_timeline(found, until_s=3.0).data}
    assert len(cut["compute"].x) == 5


def test_words_say_what_happened(run):
    lines = list(answer_decentralized(run))
    assert lines[0].startswith("4\u2009000 minibatches by fedavg on 5 partitions take")
    assert "times less than BSP" in lines[0]
    assert "within the 5.0" in lines[1]
    assert "on which hill_climbing settles, loses" in lines[1]
    assert "hill_climbing moved theta: 200 from minibatch 0, 100 from minibatch 800" in lines[2]
    failing = simulate(small(failures=[Failure(partition=0, at_s=3.0)]))
    assert any(line.startswith("Partition 0 failed; after minibatch") for line in answer_decentralized(failing))
    assert not any("Accuracy" in line for line in answer_decentralized(failing))


def test_a_row_says_its_value():
    words = list(what_if_lines(what_if(small(), "bandwidth", (1.25e6,))))
    words += what_if_lines(what_if(small(), "skew", (0.5,), MODEL))
    assert words[0].startswith("links of 1.25 MB/s: ")
    assert words[1].startswith("skew 0.5: ") and "accuracy 8" in words[1]
