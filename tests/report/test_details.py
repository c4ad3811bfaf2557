"""What a click opens says the same as the step."""

import re

import numpy as np
import pytest

import sim
from sim.report.details import (
    MEANS,
    action_at,
    action_card,
    action_named,
    multiplier_words,
    selection_card,
    term_card,
)  # fmt: skip
from sim.report.theme import TERMS
from sim.schedules import Kind

from .conftest import CLUSTER, model


def numbers(html, column):
    """Return the values (s) in a column of the first table."""
    rows = re.findall(r"<tr class=\"\">(.*?)</tr>", html.partition("<table>")[2].partition("</table>")[0])
    cells = [re.findall("<td>(.*?)</td>", row)[column] for row in rows]
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
    return [float(value) * scale[unit] for value, unit in map(str.split, cells)]


def test_every_instant_belongs_to_the_action_that_fills_it(step):
    timeline = step.timeline
    for i in range(len(timeline.graph)):
        middle = (timeline.start[i] + timeline.end[i]) / 2 - timeline.zero
        if timeline.end[i] > timeline.start[i]:
            assert action_at(step, int(timeline.graph.rank[i]), middle * 1e-9) == i
            assert action_at(step, int(timeline.graph.rank[i]), (timeline.start[i] - timeline.zero) * 1e-9) == i
    assert action_at(step, 3, 0.0) is None
    assert all(
        action_named(step, int(timeline.graph.rank[i]), timeline.schedule.label(timeline.graph.action(i))) == i
        for i in range(len(timeline.graph))
    )
    assert action_named(step, 0, "idle") is None


@pytest.mark.parametrize("kind", [Kind.F, Kind.B])
def test_parts_of_a_pass_sum_to_what_it_takes(step, kind):
    timeline = step.timeline
    index = int(np.flatnonzero((timeline.graph.kind == kind) & (timeline.graph.stage == 3))[2])
    card = action_card(step, index)
    took = (timeline.end[index] - timeline.start[index]) * 1e-9
    assert sum(numbers(card, 1)) == pytest.approx(took, rel=0.01)
    assert "stage 3" in card
    assert ("critical path" in card) or ("without delaying" in card)


def test_memory_of_the_fullest_rank_at_its_peak(step):
    held = step.fullest
    index = action_at(step, held.rank, (int(held.at_ns[held.peak_index]) - step.timeline.zero) * 1e-9)
    told = re.search(r"holds ([\d.]+) GB", action_card(step, index))
    assert float(told[1]) == pytest.approx(held.peak_bytes / 1e9, rel=0.15)  # the pass begins before its peak


@pytest.mark.parametrize("term", TERMS)
def test_every_term_has_a_meaning(step, term):
    card = term_card(step, term)
    assert MEANS[term].split(";", maxsplit=1)[0].split(",", maxsplit=1)[0] in card
    assert TERMS[term].label in card


@pytest.mark.slow
def test_selected_configurations_come_fastest_first(tuned):
    fits = np.flatnonzero((tuned.space.allowed & tuned.scores.fits).ravel()).tolist()
    card = selection_card(tuned, fits)
    assert f"{len(fits)} configurations selected" in card
    times = numbers(card, 1)
    assert times == sorted(times)
    assert times[0] == pytest.approx(tuned.scores.step_time_s.ravel()[fits].min(), rel=0.01)


def test_a_multiplier_is_told_apart_from_the_others():
    plan = sim.Plan(tp=8, pp=4, virtual_stages=2, global_batch=64)
    nodes = sim.Cluster.of("h100-sxm-80gb", nodes=16)
    fast = sim.Cluster.of("h100-sxm-80gb", nodes=16, links=sim.Links(inter_bytes_per_s_per_node=800e9))
    one, two = (sim.simulate(model(), c, plan) for c in (nodes, fast))
    words = multiplier_words(two, one, "network", 2.0)
    assert words.startswith("network 2x saves")
    assert "data parallel (dp)" in words
    assert "costs" in multiplier_words(one, two, "network", 0.5)
    assert "changes neither" in multiplier_words(one, one, "network", 1.2)
    tight = sim.simulate(model(), sim.Cluster.of("h100-sxm-80gb", memory_bytes=2e9), sim.Plan(tp=2, global_batch=64))
    wide = sim.simulate(model(), CLUSTER, sim.Plan(tp=2, global_batch=64))
    assert "fits: no → yes" in multiplier_words(wide, tight, "memory", 40.0)
