"""Each policy against what the published system allocated in the same states (83 calls)."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from sim.cluster.policies import policy
from sim.cluster.policies.finish_time_fairness import FinishTimeFairnessPerf
from sim.cluster.policies.min_total_duration import NEAR
from sim.cluster.policies.optimising import Optimising, proportional
from sim.cluster.state import NO_PAIRS, Floats
from tests.cluster.recorded import Recorded, replayed, runs
from tests.cluster.states import a_state, assert_within

ROUNDED = 1e-7
"""Recorded shares have nine decimals, sums of them fewer."""
CONES = 2e-5
"""Of second-order cones: its equations are regularised a little differently."""


@dataclass(frozen=True, eq=False)
class Compared:
    """Our shares for a recorded call, with `gavel_parity` and without; the objectives of a policy that has one."""

    call: Recorded
    published: Floats
    clean: Floats
    objectives: tuple[float, float, float] | None
    """At the recorded shares, at ours with parity, at ours without."""


@cache
def compared() -> list[Compared]:
    """Return all calls, those of a run by one policy that remembers."""
    found = []
    for run in runs():
        like, clean = policy(run[0].policy, gavel_parity=True), policy(run[0].policy)
        for call in run:
            one, other = like.allocate(call.state), clean.allocate(call.state)
            objectives = None
            if isinstance(like, Optimising):
                objectives = tuple(like.objective(call.state, shares) for shares in (call.shares, one, other))
            found.append(Compared(call, one, other, objectives))
    return found


@pytest.mark.slow
def test_every_policy_that_was_recorded_is_there():
    assert len(compared()) == 83
    assert sum(one.call.known for one in compared()) == 75
    assert len({one.call.policy for one in compared()}) == 15


def test_shares_are_the_recorded_ones():
    """All 75, jobs that nothing holds back too: the solver's path is the published one."""
    for one in compared():
        if one.call.known:
            most = CONES if "finish" in one.call.policy else ROUNDED
            assert np.abs(one.published - one.call.shares).max() < most, str(one.call)


def test_objectives_are_those_of_the_recorded_shares():
    for one in compared():
        if one.call.known and one.objectives:
            recorded, ours, _ = one.objectives
            assert ours == pytest.approx(recorded, rel=2e-6 if "finish" in one.call.policy else 1e-6), str(one.call)


def test_no_recorded_shares_are_better_than_ours():
    for one in compared():
        if one.call.known and one.objectives:
            recorded, _, clean = one.objectives
            worse = clean - recorded if policy(one.call.policy).minimises else recorded - clean
            assert worse <= 1e-6 * abs(recorded), str(one.call)


def test_only_the_bisected_makespan_is_not_the_best():
    """Of all recorded shares: up to the 5 % at which the bisection stops."""
    losses = {}
    for one in compared():
        if one.call.known and one.objectives:
            recorded, _, clean = one.objectives
            losses.setdefault(one.call.policy, []).append(abs(recorded / clean - 1))
    best = {name for name, each in losses.items() if max(each) < 1e-6}
    assert set(losses) - best == {"min_total_duration", "min_total_duration_perf"}
    assert 0.03 < max(losses["min_total_duration"]) < NEAR - 1


def test_water_fills_to_the_recorded_levels():
    for one in compared():
        if "water" in one.call.policy:
            state = one.call.state
            rates = state.steps_per_s if policy(one.call.policy).aware else np.ones_like(state.steps_per_s)

            def levels(shares, state=state, rates=rates):
                return (rates * shares).sum(axis=1) / proportional(state, rates)

            assert levels(one.published) == pytest.approx(levels(one.call.shares), abs=1e-7)
            assert levels(one.clean) == pytest.approx(levels(one.call.shares), abs=1e-7)


def test_shares_are_within_every_limit():
    """But those of FIFO with parity, which promises devices many times over."""
    for one in compared():
        assert_within(one.call.state, one.clean)
        if one.call.policy != "fifo":
            assert_within(one.call.state, one.published)


@pytest.mark.parametrize("name", ["B_artifact15_2-0-4__fifo__seed0", "F2_static30_single_3-3-3__fifo__seed0"])
def test_fifo_allocates_like_a_whole_recorded_run(name):
    first = next(run[0] for run in runs() if run[0].policy == "fifo" and name.startswith(run[0].tag))
    queue = policy("fifo", gavel_parity=True)
    calls = replayed(name)
    assert len(calls) > 4
    for given in calls:
        rows = [int(job) for job in sorted(given)]
        state = replace(
            first.state,
            ids=np.array(rows),
            steps_per_s=first.state.steps_per_s[rows],
            scale=first.state.scale[rows],
            steps_left=first.state.steps_left[rows],
            waited_s=first.state.waited_s[rows],
            weights=first.state.weights[rows],
            pairs=NO_PAIRS,
        )
        recorded = [[given[job].get(name, 0.0) for name in state.types] for job in rows]
        assert queue.allocate(state).tolist() == recorded


def test_finish_time_fairness_remembers_what_a_job_would_have_had_alone():
    fair = FinishTimeFairnessPerf()
    state = a_state([[4.0], [4.0]], [1], left=400.0)
    fair.allocate(state)
    assert fair.alone_s(state) == pytest.approx([200.0, 200.0])
    later = replace(state, steps_left=np.array([200.0, 400.0]), waited_s=np.array([50.0, 50.0]))
    fair.allocate(later)
    assert fair.alone_s(later) == pytest.approx([100 + 100, 0 + 200])
