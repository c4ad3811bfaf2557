"""Laws of division on states by chance."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.policies import policy
from sim.cluster.policies.optimising import proportional
from tests.cluster.states import assert_within, random_state

STATES = st.builds(random_state, st.integers(0, 10**6), st.integers(1, 14))
PROGRAMS = (
    "max_min_fairness_packed",
    "max_min_fairness_water_filling_packed",
    "finish_time_fairness_packed",
    "min_total_duration_packed",
    "max_sum_throughput_normalized_by_cost_packed_SLOs",
    "hierarchical",
)
FEW = settings(max_examples=25)


@FEW
@given(STATES, st.sampled_from(PROGRAMS), st.booleans())
def test_every_limit_is_kept(state, name, published):
    if not published or name.startswith(("max_min_fairness_p", "max_sum")):
        assert_within(state, policy(name, gavel_parity=published).allocate(state))


@FEW
@given(STATES, st.floats(1e-3, 1e3))
def test_faster_jobs_have_the_same_worth(state, factor):
    fast = replace(state, steps_per_s=state.steps_per_s * factor)
    fair = policy("max_min_fairness_perf")
    one, other = (fair.objective(at, fair.allocate(at)) for at in (state, fast))
    assert one == pytest.approx(other, rel=1e-6, abs=1e-9)
    assert fair.objective(fast, fair.allocate(state)) == pytest.approx(one, rel=1e-6, abs=1e-9)


@FEW
@given(STATES)
def test_knowing_types_and_pairs_never_costs(state):
    aware = policy("max_min_fairness_perf")
    knows, blind = (aware.objective(state, kind.allocate(state)) for kind in (aware, policy("max_min_fairness")))
    assert knows >= blind - 1e-6
    packed = policy("max_min_fairness_packed")
    alone = aware.allocate(state)
    assert packed.objective(state, packed.allocate(state)) >= packed.objective(state, alone) - 1e-6


@FEW
@given(STATES, st.integers(0, 2))
def test_one_more_device_never_costs(state, at):
    more = replace(state, devices=state.devices + 4 * (np.arange(3) == at))
    span = policy("min_total_duration_perf")
    able = span.program(state).able
    if able.any() and (span.program(more).able == able).all():
        assert span.objective(more, span.allocate(more)) <= span.objective(state, span.allocate(state)) * (1 + 1e-6)


@FEW
@given(STATES)
def test_water_filling_is_no_worse_at_any_rank(state):
    """Sorted, its levels are above those of max-min where they differ first."""
    fill, least = policy("max_min_fairness_water_filling_perf"), policy("max_min_fairness_perf")
    able = least.program(state).able
    reference = proportional(state, state.steps_per_s)

    def levels(shares):
        got = (state.steps_per_s * shares[: state.jobs]).sum(axis=1)
        return np.sort((state.scale / state.weights * got)[able] / reference[able])

    ours, theirs = levels(fill.allocate(state)), levels(least.allocate(state))
    differ = np.flatnonzero(np.abs(ours - theirs) > 1e-4 * (1 + theirs))
    assert not len(differ) or ours[differ[0]] > theirs[differ[0]]
