"""Tornadoes: a bar on either side of a step, the longest on top, and what flips whether the plan fits."""

from dataclasses import replace

import pytest

from sim.engine.step import Step
from sim.report import figures
from sim.specs import InputError
from sim.tuner.effects import effects
from sim.tuner.elasticity import elasticities
from tests.report.test_figures import legend


@pytest.mark.slow
def test_every_row_of_a_tornado_has_its_name(step: Step) -> None:
    known = [replace(one, title=f"{one.title} {n}") for one in elasticities(step) for n in range(3)]
    figure = figures.tornado(step, known=known)
    assert len(figure.data[0].y) == 8 and figure.layout.yaxis.dtick == 1


def test_a_tornado_has_a_bar_on_each_side_the_longest_on_top(step: Step) -> None:
    found = elasticities(step)
    figure = figures.tornado(step)
    better, worse = figure.data
    assert all(b <= 0 <= w for b, w in zip(better.x, worse.x, strict=True))
    assert list(better.x) == sorted(better.x) or better.x[0] == min(better.x)
    assert better.x[0] == pytest.approx(100 * (found[0].better_s / step.step_time_s - 1))
    assert better.y[0].startswith(found[0].title) and "host link" not in " ".join(better.y)
    assert figures.tornado(step, "dark", found).data[0].x == better.x
    assert figure.layout.xaxis.range[1] >= 1.4 * max(worse.x)  # its number has to fit beside it


def test_a_tornado_of_a_larger_change_is_wider(step: Step) -> None:
    ends = [max(abs(x) for bar in figures.tornado(step, change=c).data for x in bar.x) for c in (0.1, 0.5)]
    assert ends[1] > 2 * ends[0]
    assert figures.tornado(step, change=0.5).data[0].name == "50\u00a0% better"
    with pytest.raises(InputError, match="change"):
        figures.tornado(step, change=0.0)


def test_a_tornado_shows_what_flips_whether_the_plan_fits(step: Step, overfull: Step) -> None:
    assert not any("fits" in name for name in figures.tornado(step).data[0].y)
    for target in ("memory", "step_time"):
        flips = [n for n in figures.tornado(overfull, change=4.0, target=target).data[0].y if "fits" in n]
        assert any(n.startswith("memory size") and n.endswith("<br>fits: yes if better") for n in flips)
        assert not any("worse" in n for n in flips)  # it does not fit as it is


def test_a_tornado_has_the_eight_largest_effects_and_what_flips_whether_the_plan_fits(overfull: Step) -> None:
    known = [replace(one, title=f"{one.title} {n}") for one in elasticities(overfull, 4.0) for n in range(3)]
    every = {e.title: max(abs(e.better), abs(e.worse)) for e in effects(overfull, 4.0, known=known)}
    drawn = [name.split(" (")[0] for name in figures.tornado(overfull, known=known).data[0].y]
    assert sorted(drawn) == sorted([*sorted(every, key=lambda title: -every[title])[:8], "memory size"])
    assert every["memory size"] == 0 and len(every) > 20


def test_a_tornado_of_two_plans_has_the_bars_of_the_other_as_outlines(step: Step, long_step: Step) -> None:
    figure, alone = figures.tornado(step, reference=long_step), figures.tornado(long_step)
    assert legend(figure) == ["10\u00a0% better", "10\u00a0% worse", "A"]
    for bar, outline, own in zip(figure.data[:2], figure.data[2:], alone.data, strict=True):
        outlined = dict(zip(bar.customdata, outline.x, strict=True))
        for x, a, *texts in zip(bar.x, outline.x, bar.text, outline.text, strict=True):
            assert abs(x) < 0.05 or not texts[abs(x) >= abs(a)]  # the number is beyond both
        assert {name: outlined[name] for name in own.customdata} == pytest.approx(
            dict(zip(own.customdata, own.x, strict=True))
        )
    assert figure.data[2].marker.color == "rgba(0,0,0,0)"
    reach = max(abs(x) for bar in figure.data for x in bar.x)
    assert figure.layout.xaxis.range[1] >= reach
