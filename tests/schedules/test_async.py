"""PipeDream and 2BW: order, versions of the weights found by walking the order against the papers' formulas."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.schedules import IllegalScheduleError, Kind, Shape, build, most_versions, versions

UNIT = {Kind.F: 1, Kind.B: 2, Kind.OPTIMIZER: 1}


@st.composite
def replicated(draw):
    replicas = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    return Shape(sum(replicas), max(replicas) + draw(st.integers(0, 40)), replicas=replicas)


def two_bw(p, m, groups):
    return build("2bw", Shape(p, m * groups, group=m))


@given(replicated())
def test_every_microbatch_meets_every_stage_once_on_its_replica(shape):
    order = build("pipedream", shape)
    found = Counter((a.stage, a.kind, a.microbatch) for rank in order.actions for a in rank)
    kinds = (Kind.F, Kind.B, Kind.OPTIMIZER)
    assert set(found.values()) == {1}
    assert len(found) == len(kinds) * len(shape.replicas) * shape.microbatches
    for rank, actions in enumerate(order.actions):
        for a in actions:
            assert rank == order.rank_of[a.stage] + a.microbatch % shape.replicas[a.stage]
    assert run_path(order, Durations.uniform(order.stages, UNIT)).makespan > 0  # no deadlock


@given(replicated())
def test_declared_versions_and_staleness_are_those_walked(shape):
    order = build("pipedream", shape)
    uses = versions(order)
    for rank in range(order.ranks):
        mine = [use for (r, _), use in uses.items() if r == rank]
        assert max(use.staleness for use in mine) == order.staleness[rank]
        assert most_versions(order)[rank] <= order.weight_versions[rank]
        if len(mine) > 2 * order.staleness[rank]:  # else the pipeline drains before it is full
            assert most_versions(order)[rank] == order.weight_versions[rank]


@pytest.mark.parametrize("replicas", [(1, 1, 1, 1), (2, 1, 1), (2, 2), (4, 2, 1, 1), (6, 3, 3)])
def test_warm_up_is_workers_behind_over_replicas(replicas):
    order = build("pipedream", Shape(sum(replicas), 100, replicas=replicas))
    for stage, several in enumerate(replicas):
        behind = (sum(replicas[stage:]) - several) // several
        assert order.weight_versions[order.rank_of[stage]] == behind + 1
        assert order.peak_in_flight()[order.rank_of[stage]] == behind + 1


def test_warm_up_of_the_first_stage_is_noam():
    """Where the replicas do not divide the workers the first stage admits ceil(workers / replicas) each."""
    order = build("pipedream", Shape(16, 60, replicas=(15, 1)))
    assert order.peak_in_flight() == [2] * 15 + [1]
    assert order.weight_versions == (2,) * 15 + (1,)
    assert order.rank_of == (0, 15)


@given(st.integers(1, 6), st.integers(1, 40))
def test_pipedream_uses_what_is_newest_and_keeps_it(p, m):
    """Stage s's microbatch k (from 0) uses version max(k - (p - 1 - s), 0) both ways, and makes version k + 1."""
    for (rank, k), use in versions(build("pipedream", Shape(p, m))).items():
        assert use == (max(k - (p - 1 - rank), 0), max(k - (p - 1 - rank), 0), k + 1, k)


@given(st.integers(1, 6), st.integers(1, 40))
def test_vertical_sync_uses_one_version_on_all_stages(p, m):
    """w(t + 1) = w(t) - lr grad f(w(t - p + 1)) on every stage (arXiv 1806.03377, section 3.3)."""
    order = build("pipedream", Shape(p, m, vertical_sync=True))
    assert {(use.forward, use.backward, use.updates_to) for use in versions(order).values()} == {
        (max(k - (p - 1), 0), max(k - (p - 1), 0), k + 1) for k in range(m)
    }
    assert all(n == p or m < 2 * p for n in most_versions(order))
    assert order.texts() == build("pipedream", Shape(p, m)).texts()


@given(st.integers(2, 6), st.integers(0, 5), st.integers(1, 6))
def test_two_bw_uses_the_published_version(p, beyond, groups):
    """arXiv 2006.09503, section 3.1: microbatch k (from 1) uses version max(floor((k - 1) / m) - 1, 0)."""
    m = p + beyond
    order = two_bw(p, m, groups)
    for (_, k), use in versions(order).items():
        assert use.forward == use.backward == max(k // m - 1, 0)
        assert use.updates_to == k // m + 1
        assert use.staleness == (1 if k >= m else 0)
    assert most_versions(order) == list(order.weight_versions) == [min(groups, 2)] * p
    assert order.peak_in_flight() == [p - r for r in range(p)]


def test_two_bw_never_uses_what_does_not_exist_yet():
    assert all(use.forward <= use.newest for use in versions(two_bw(4, 4, 8)).values())


def test_without_stashing_a_backward_meets_other_weights_than_its_forward():
    uses = versions(build("pipedream", Shape(4, 12)), stashing=False)
    assert [uses[r, 8].backward - uses[r, 8].forward for r in range(4)] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("name", "shape", "field"),
    [
        ("pipedream", Shape(2, 4, 2), "virtual_stages"),
        ("pipedream", Shape(3, 4, replicas=(1, 1)), "replicas"),
        ("pipedream", Shape(2, 4, replicas=(2, 0)), "replicas"),
        ("pipedream", Shape(4, 2, replicas=(3, 1)), "microbatches"),
        ("pipedream", Shape(4, 9, replicas=(3, 1), vertical_sync=True), "vertical_sync"),
        ("2bw", Shape(1, 4), "ranks"),
        ("2bw", Shape(2, 4, 2), "virtual_stages"),
        ("2bw", Shape(4, 8, group=2), "microbatch_group_size"),
        ("2bw", Shape(4, 6), "microbatches"),
        ("2bw", Shape(2, 4, replicas=(1, 1)), "replicas"),
        ("1f1b", Shape(2, 4, vertical_sync=True), "vertical_sync"),
    ],
)
def test_refusals(name, shape, field):
    with pytest.raises(IllegalScheduleError) as caught:
        build(name, shape)
    assert caught.value.field == field
