"""What is saved of a plan: every byte once, by whom, and how long it takes by the links it goes over."""

from dataclasses import replace

import numpy as np
import pytest

import sim
from sim.checkpointing import state_of, times
from sim.specs import Checkpointing, Cluster, InputError, Links, Storage

GPT3 = sim.Plan(tp=8, pp=4, virtual_stages=2, global_batch=1024, zero=1, recompute="full", recompute_layers=4)


@pytest.fixture(scope="module")
def gpt3():
    return sim.simulate(sim.models["gpt3-175b"], Cluster.of("h100-sxm-80gb", nodes=16), GPT3)


def step_of(nodes=1, model="llama3-8b", device="h100-sxm-80gb", **plan):
    given = {"tp": 1, "global_batch": 64} | plan
    return sim.simulate(sim.models[model], Cluster.of(device, nodes=nodes), sim.Plan(**given))


def test_gpt3_in_bf16_saves_14_bytes_a_parameter(gpt3):
    held = state_of(gpt3)
    assert held.bytes_per_parameter == 2 + 4 + 8
    assert held.total_bytes == 14 * gpt3.model.parameters
    assert gpt3.model.parameters == pytest.approx(174.6e9, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("writers", ["balanced", "first-replica"])
@pytest.mark.parametrize(
    "nodes, model, plan",
    [
        (1, "llama3-8b", {"tp": 2, "pp": 2}),
        (1, "llama3-8b", {"tp": 1, "zero": 3, "framework": "torch"}),
        (2, "llama3-8b", {"tp": 2, "pp": 2, "zero": 1, "rank_order": "tp-cp-pp-dp"}),
        (2, "mixtral-8x7b", {"tp": 2, "pp": 2, "ep": 4, "zero": 1}),
        (2, "mixtral-8x7b", {"tp": 4, "ep": 2}),
        (2, "llama3-8b", {"tp": 2, "zero": 3, "fsdp_shard": 4}),
        (4, "deepseek-v3", {"tp": 1, "pp": 16, "ep": 2, "stage_layers": (4,) * 13 + (3,) * 3}),
    ],
)
def test_all_ranks_together_write_the_state_once(nodes, model, plan, writers):
    step = step_of(nodes, model, **plan)
    held = state_of(step, writers)
    assert held.rank_bytes.sum() == held.node_bytes.sum() == held.total_bytes
    assert held.parameters == step.model.parameters
    assert len(held.rank_bytes) == step.placed.gpus
    assert held.bytes_per_parameter == (12 if plan.get("framework") == "torch" else 14)


def test_who_writes():
    alone = state_of(step_of(tp=2), "first-replica")
    assert list(np.flatnonzero(alone.rank_bytes)) == [0, 1]  # of eight: one replica's two tensor-parallel ranks
    assert state_of(step_of(tp=2)).writers == 8
    assert np.ptp(state_of(step_of(tp=2)).rank_bytes) <= 14
    sharded = state_of(step_of(tp=2, zero=1), "first-replica")
    assert sharded.writers == 8
    weights, parameters = sharded.rank_bytes[0] - sharded.rank_bytes[-1], sharded.parameters
    assert weights == pytest.approx(2 * parameters / 2, abs=14)
    assert np.ptp(state_of(step_of(tp=2, zero=3), "first-replica").rank_bytes) <= 14


def test_the_order_of_ranks_says_which_node_writes():
    """Pipeline ranks innermost: every node holds a whole replica, and the first node writes it."""
    plan = {"tp": 2, "pp": 4, "nodes": 2}
    inner = state_of(step_of(rank_order="tp-cp-pp-dp", **plan), "first-replica")
    outer = state_of(step_of(rank_order="tp-cp-dp-pp", **plan), "first-replica")
    assert inner.node_bytes[0] == inner.total_bytes
    assert inner.node_bytes[1] == 0
    assert 0.4 < outer.node_bytes[0] / outer.total_bytes < 0.6


def test_unequal_stages_write_their_own():
    stages = [{"layers": 20, "tp": 4, "dp": 1, "micro_batch": 2}, {"layers": 12, "tp": 2, "dp": 2, "micro_batch": 1}]
    made = tuple(sim.StagePlan(**s) for s in stages)
    cluster = Cluster.of("h100-sxm-80gb", nodes=1)
    step = sim.simulate(sim.models["llama3-8b"], cluster, sim.Plan(stages=made, global_batch=8))
    held = state_of(step)
    assert held.rank_bytes.sum() == held.total_bytes
    layer, table = 218_112_000, 128_256 * 4_096
    assert held.rank_bytes[:4].sum() == 14 * (20 * layer + table)
    assert held.rank_bytes[4:].sum() == 14 * (12 * layer + table + 4_096)


def test_times_follow_the_links(gpt3):
    held = state_of(gpt3)
    disk = Storage(read_bytes_per_s=4e9, write_bytes_per_s=2e9, latency_s=0.5)
    made = times(gpt3, Checkpointing(storage=disk, contention=0.2))
    assert made.iteration_s == gpt3.step_time_s
    assert made.update_s == gpt3.breakdown_s["optimizer"]
    assert made.persist_s == pytest.approx(held.node_bytes.max() / 2e9)
    assert made.reload_s == pytest.approx(0.5 + held.node_bytes.max() / 4e9)
    assert made.host_snapshot_s == pytest.approx(held.rank_bytes.max() / gpt3.cluster.host_bytes_per_s)
    assert made.device_snapshot_s == pytest.approx(2 * held.rank_bytes.max() / 3.35e12, rel=0.01)
    assert (made.contention, made.state_bytes) == (0.2, held.total_bytes)
    together = times(gpt3, Checkpointing(storage=replace(disk, shared="cluster")))
    assert together.persist_s == pytest.approx(held.total_bytes / 2e9)
    fast = times(gpt3, Checkpointing(storage=Storage(read_bytes_per_s=1e14, write_bytes_per_s=1e14, shared="cluster")))
    assert fast.persist_s == pytest.approx(held.node_bytes.max() / 400e9)


def test_a_copy_on_the_device_must_fit(gpt3):
    assert times(gpt3).kind == "device"
    assert times(gpt3, writers="first-replica").device_snapshot_s is None
    with pytest.raises(InputError, match="snapshot: got 'device'"):
        times(gpt3, Checkpointing(snapshot="device"), writers="first-replica")


def test_a_stated_size_scales_all(gpt3):
    own, half = times(gpt3), times(gpt3, Checkpointing(state_bytes=7.0 * gpt3.model.parameters))
    assert (half.persist_s, half.host_snapshot_s) == (own.persist_s / 2, own.host_snapshot_s / 2)
    for size in (1e15 - n for n in range(30)):
        assert times(gpt3, Checkpointing(state_bytes=size)).state_bytes == size


def test_on_host_processors_the_copy_is_one_in_memory():
    model = sim.Model(layers=2, hidden=64, heads=2)
    step = sim.simulate(model, Cluster.of("cpu"), sim.Plan(tp=1, global_batch=8))
    held, made = state_of(step), times(step)
    assert held.bytes_per_parameter == 12
    assert made.device_snapshot_s is None
    assert made.host_snapshot_s == pytest.approx(2 * held.rank_bytes.max() / 28.3e9)


def test_a_device_without_a_host_link_is_refused(gpt3):
    step = step_of(device="h100-sxm-80gb")
    bare = replace(step, cluster=_Linkless.of("h100-sxm-80gb"))
    with pytest.raises(InputError, match=r"cluster\.links\.host_bytes_per_s: missing"):
        times(bare)
    stated = Cluster.of("h100-sxm-80gb", links=Links(host_bytes_per_s=1e10))
    assert times(replace(step, cluster=stated)).host_snapshot_s == pytest.approx(state_of(step).rank_bytes.max() / 1e10)


class _Linkless(Cluster):
    host_bytes_per_s = None
    members = property(lambda self: (self,))
