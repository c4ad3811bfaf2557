"""The terms of a step at the edges: shared tables, short runs without flush, sizes out of proportion."""

import pytest

from sim.costs.profile import Profile
from sim.engine.clock import MOST_S, tick_array, to_ticks
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Offload, Plan

MODEL = Model(name="small", layers=8, hidden=1024, heads=16, vocab=50_304, seq=1024, tied_embeddings=True)
A100 = Cluster.of("a100-sxm-80gb", nodes=1)


def of(engine="path", model=MODEL, cluster=A100, **given):
    return simulate(model, cluster, Plan(**{"global_batch": 16, "micro_batch": 1} | given), engine=engine)


@pytest.mark.parametrize(
    "more", [{"pp": 4}, {"pp": 2, "zero": 1}, {"pp": 4, "tp": 2}, {"pp": 4, "schedule": "pipedream"}]
)
def test_a_shared_table_is_reduced_once(more):
    """What one engine calls "other" the other does not count for data parallelism too."""
    tied = MODEL.but(tied_embeddings=True) if hasattr(MODEL, "but") else MODEL
    path, events = (of(engine, tied, **more) for engine in ("path", "events"))
    assert all(value >= 0 for value in events.breakdown_s.values())
    assert sum(events.breakdown_s.values()) == pytest.approx(events.step_time_s)
    assert events.breakdown_s["compute"] == pytest.approx(path.breakdown_s["compute"], rel=0.02)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("engine", ["path", "events"])
def test_short_runs_without_flush_reach_their_steady_state(engine, pp, batch):
    cluster = Cluster.of("a100-sxm-80gb", nodes=1, gpus_per_node=pp, domain_gpus=pp)
    found = of(engine, cluster=cluster, pp=pp, global_batch=batch, schedule="pipedream")
    assert found.step_time_s > 0


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_without_flush_no_rank_is_idle_for_less_than_nothing(share):
    """Warm-up, whose copies follow each other and are waited for longer, is no part of a step."""
    model = Model(name="m", layers=16, hidden=4096, heads=32, vocab=1024, seq=4096)
    given = {"pp": 4, "schedule": "pipedream", "micro_batch": 4, "global_batch": 96}
    cluster = Cluster(device="h100-nvl", nodes=1, gpus_per_node=4)
    found = of(model=model, cluster=cluster, offload=Offload(activations=share), **given)
    assert found.breakdown_s["offload"] > 0
    assert found.breakdown_s["bubble"] == pytest.approx(0, abs=1e-6)


def test_sizes_out_of_proportion_are_refused():
    for times in (2.0, float("inf"), float("nan"), -2.0):
        with pytest.raises(InputError, match="out of proportion"):
            tick_array([0.0, times * MOST_S])
    assert to_ticks(MOST_S) == tick_array([MOST_S])[0] == 10**15
    huge = Model(name="huge", layers=8, hidden=1024, heads=16, vocab=50_304, seq=10_000_000)
    for engine in ("path", "events"):
        with pytest.raises(InputError, match="out of proportion"):
            of(engine, huge, micro_batch=100_000, global_batch=800_000)


def test_an_interval_of_what_is_saved_is_in_order():
    low, high = Profile.interval80(-2.0, 0.1)
    assert low < -2.0 < high < 0
    assert Profile.interval80(2.0, 0.1) == pytest.approx((-high, -low))


def test_parts_are_sent_where_there_are_only_parts():
    """With sequence parallelism no rank holds the whole of a boundary, whatever the framework would do with it."""
    cluster = Cluster.of("a100-sxm-80gb", nodes=4)
    whole, parts = (
        of(cluster=cluster, tp=8, pp=4, sequence_parallel=True, scatter_gather=given) for given in (False, True)
    )
    assert whole.breakdown_s["pp"] == parts.breakdown_s["pp"]
    without = [
        of(cluster=cluster, tp=8, pp=4, sequence_parallel=False, scatter_gather=given) for given in (False, True)
    ]
    assert without[0].breakdown_s["pp"] != without[1].breakdown_s["pp"]
