"""Plans of unequal stages: equal stages are the uniform plan, and each stage costs what its own plan says."""

from itertools import pairwise

import numpy as np
import pytest

from sim.costs.run_level import run_level
from sim.engine.placed import crossings, slowest, stage_groups
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, NodeGroup, Offload, Plan, StagePlan
from sim.specs.catalog import models

LLAMA = models["llama2-7b"]
NODES = Cluster.of("a100-sxm-80gb", nodes=4, gpus_per_node=4)
PAIR = Cluster.of("a100-sxm-80gb", nodes=2)
ENGINES = ("path", "events")
UNEQUAL = (
    StagePlan(layers=7, tp=2, dp=2, micro_batch=2, zero=1, recompute="full", recompute_layers=3),
    StagePlan(layers=8, tp=1, dp=4, zero=3),
    StagePlan(layers=8, tp=1, dp=4, offload=Offload(optimizer=0.5, activations=0.25)),
    StagePlan(layers=9, tp=4, dp=1, micro_batch=4, recompute="selective"),
)


def plan(*stages, **more):
    return Plan(global_batch=64, stages=stages, **more)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize(
    "own",
    [
        {"zero": 1},
        {"zero": 3, "recompute": "full"},
        {"recompute": "selective", "recompute_layers": 3},
        {"offload": Offload(optimizer=0.7, activations=0.5)},
    ],
    ids=str,
)
def test_equal_stages_are_the_uniform_plan(engine, schedule, own):
    uniform = Plan(tp=2, pp=4, dp=2, global_batch=64, schedule=schedule, **own)
    stages = plan(*[StagePlan(layers=8, tp=2, dp=2, **own)] * 4, schedule=schedule)
    one, other = (simulate(LLAMA, NODES, p, engine) for p in (uniform, stages))
    assert other.step_time_s == one.step_time_s
    assert other.hfu == pytest.approx(one.hfu)
    assert dict(other.breakdown_s) == pytest.approx(dict(one.breakdown_s))
    assert [m.peak_bytes for m in other.memory] == pytest.approx([m.peak_bytes for m in one.memory])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("tp", "pp", "dp"), [(4, 4, 1), (1, 16, 1), (2, 4, 2)])
def test_equal_stages_are_the_uniform_plan_where_few_messages_leave_a_node(engine, blocking, tp, pp, dp):
    uniform = Plan(tp=tp, pp=pp, dp=dp, global_batch=64, blocking_sends=blocking)
    stages = plan(*[StagePlan(layers=32 // pp, tp=tp, dp=dp)] * pp, blocking_sends=blocking)
    one, other = (simulate(LLAMA, PAIR, p, engine) for p in (uniform, stages))
    assert other.step_time_s == one.step_time_s


@pytest.mark.parametrize(
    ("more", "leave"),
    [
        ({"virtual_stages": 2}, [2, 4, 6]),  # and from the last rank to the first
        ({"virtual_stages": 2, "schedule": "zbv"}, [2, 6]),
        ({"schedule": "dualpipe"}, [2]),
    ],
    ids=str,
)
def test_of_a_pipeline_over_two_nodes_the_messages_between_these_are_slow(more, leave):
    send = slowest(LLAMA, PAIR, Plan(tp=4, pp=4, global_batch=64, **more).on(LLAMA, PAIR), run_level())["send"]
    assert np.flatnonzero(send > send.min()).tolist() == leave
    assert len(set(send)) == 2


def test_pipelines_that_share_nodes_leave_them_at_the_same_boundaries():
    placed = Plan(tp=1, pp=4, dp=4, rank_order="tp-cp-pp-dp", global_batch=64).on(LLAMA, PAIR)
    assert np.ndim(slowest(LLAMA, PAIR, placed, run_level())["send"]) == 0  # two whole pipelines in each node
    placed = Plan(tp=1, pp=16, dp=1, global_batch=64).on(LLAMA, PAIR)
    assert np.argmax(slowest(LLAMA, PAIR, placed, run_level())["send"]) == 8


@pytest.mark.parametrize("engine", ENGINES)
def test_unequal_stages_run(engine):
    step = simulate(LLAMA, NODES, plan(*UNEQUAL), engine)
    assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s)
    assert step.placed.gpus == 16
    assert step.placed.microbatches == 16
    assert step.breakdown_s["offload"] >= 0


def test_each_stage_costs_what_its_own_plan_says():
    whole = plan(*UNEQUAL).on(LLAMA, NODES)
    costs = slowest(LLAMA, NODES, whole, run_level())
    for s in range(4):
        alone = slowest(LLAMA, NODES, whole.at(s), run_level())
        for name in ("forward_compute", "saved_bytes", "recompute"):
            assert costs[name][s] == np.ravel(alone[name] + np.zeros(4))[s]


def test_the_faster_stage_never_makes_the_step_slower():
    times = []
    for repeated in (9, 4, 1):
        last = StagePlan(layers=9, tp=4, dp=1, micro_batch=4, recompute="full", recompute_layers=repeated)
        times.append(simulate(LLAMA, NODES, plan(*UNEQUAL[:3], last)).step_time_s)
    assert all(a >= b for a, b in pairwise(times))


@pytest.mark.parametrize("framework", ["megatron", "torch"])
def test_some_layers_recompute_a_share(framework):
    def peak(**more):
        return simulate(LLAMA, NODES, Plan(tp=2, pp=2, global_batch=64, framework=framework, **more))

    none, all_of_them = peak(), peak(recompute="full")
    some = [peak(recompute="full", recompute_layers=n) for n in (4, 8, 12)]
    assert peak(recompute="full", recompute_layers=16).step_time_s == all_of_them.step_time_s
    recompute = [s.breakdown_s["recompute"] for s in (*some, all_of_them)]
    assert np.diff([0, *recompute]) == pytest.approx([recompute[-1] / 4] * 4, rel=1e-6)
    saved = [s.memory[0].peak_bytes for s in (none, *some, all_of_them)]
    four = saved[1] - saved[2]  # layers, of two microbatches each
    # What one layer brings back stands beside all that the others keep, or comes when they are behind.
    one = {"megatron": [four - four / 8, four, four, four], "torch": [four, four, four, four - four / 8]}[framework]
    assert -np.diff(saved) == pytest.approx(one)


def test_messages_leave_the_node_where_the_next_stage_does():
    placed = plan(*UNEQUAL).on(LLAMA, PAIR)
    assert crossings(PAIR, placed) == [True, False, True, False]
    costs = slowest(LLAMA, PAIR, placed, run_level())
    assert costs["send"][2] > costs["send"][3]


def test_stages_of_a_mixed_cluster_run_on_their_own_devices():
    both = (NodeGroup(device="h100-sxm-80gb", nodes=1), NodeGroup(device="a100-sxm-80gb", nodes=1))
    mixed = Cluster(groups=both)
    placed = plan(*UNEQUAL).on(LLAMA, mixed)
    assert stage_groups(placed, [8, 8]).tolist() == [[True, True, False, False], [False, False, True, True]]
    costs = slowest(LLAMA, mixed, placed, run_level())
    alone = slowest(LLAMA, PAIR, placed, run_level())
    assert costs["forward_compute"][0] < alone["forward_compute"][0]
    assert costs["forward_compute"][3] == alone["forward_compute"][3]
    told = simulate(LLAMA, mixed, plan(*UNEQUAL)).assumptions
    assert [text.split(":")[0] for text in told if text.startswith("profile ")] == [f"profile {g.device}" for g in both]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"tp": 2}, "tp"),
        ({"zero": 1}, "zero"),
        ({"recompute": "full"}, "recompute"),
        ({"stage_layers": (8, 8, 8, 8)}, "stage_layers"),
        ({"virtual_stages": 2}, "virtual_stages"),
        ({"pp": 3}, "pp"),
    ],
)
def test_what_stages_say_is_not_said_twice(change, path):
    with pytest.raises(InputError) as error:
        plan(*UNEQUAL, **change)
    assert error.value.path == path


@pytest.mark.parametrize(
    ("stages", "more", "path"),
    [
        (UNEQUAL[:3], {}, "plan.stages"),
        ((*UNEQUAL[:3], StagePlan(layers=8, tp=4, micro_batch=4)), {}, "plan.stages"),
        ((*UNEQUAL[:3], StagePlan(layers=9, tp=4, micro_batch=2)), {}, "plan.stages.3.micro_batch"),
        (
            (*UNEQUAL[:3], StagePlan(layers=9, tp=4, micro_batch=4, recompute_layers=2)),
            {},
            "plan.stages.3.recompute_layers",
        ),
        (UNEQUAL, {"schedule": "zbv"}, "plan.schedule"),
        (UNEQUAL, {"schedule": "2bw"}, "plan.schedule"),
        (UNEQUAL, {"ep": 2}, "plan.ep"),
    ],
)
def test_illegal_stages_are_refused(stages, more, path):
    with pytest.raises(InputError) as error:
        plan(*stages, **more).on(LLAMA, NODES)
    assert error.value.path == path


def test_context_parallel_ranks_count_among_the_devices_of_stages():
    with pytest.raises(InputError, match=r"got '32 GPUs'; allowed: tp x dp x cp 2 over all stages that add up to 16"):
        plan(*UNEQUAL, cp=2).on(LLAMA, NODES)


def test_recompute_layers_need_a_kind():
    with pytest.raises(InputError, match=r"plan\.recompute_layers"):
        simulate(LLAMA, NODES, Plan(tp=2, pp=2, global_batch=64, recompute_layers=2))


def test_faster_devices_beside_slower_ones_make_no_step_slower():
    """What a fast device does not hide behind its short compute is not added to a slow one's long compute."""
    first, last = (StagePlan(layers=n, tp=1, dp=16, zero=3, recompute="full") for n in (20, 12))
    plans = Plan(tp=4, global_batch=64, zero=3, recompute="full"), Plan(global_batch=64, pp=2, stages=(first, last))
    nodes = {"h100-sxm-80gb": 1, "a100-sxm-80gb": 3}  # the first stage has some of both
    mixed = Cluster.of(groups=[{"device": device, "nodes": n} for device, n in nodes.items()])
    slow = Cluster.of("a100-sxm-80gb", nodes=4)
    for own in plans:
        times = [simulate(models["llama3-8b"], cluster, own).step_time_s for cluster in (mixed, slow)]
        assert times[0] <= times[1] * (1 + 1e-9)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_what_a_fast_device_reduces_is_under_way_while_a_slow_one_computes(zero):
    """H100s on PCIe compute faster than A100s and reduce slower: a step of both takes hardly longer than the slower
    one's, and no less (but beside the forward of its only microbatch nothing is reduced)."""
    small = Model(name="small", layers=24, hidden=2048, heads=16, vocab=50_304, seq=2048)
    own = Plan(global_batch=32, micro_batch=2, zero=zero, recompute="full")
    groups = [{"device": device, "nodes": 1} for device in ("h100-pcie-80gb", "a100-sxm-80gb")]
    mixed = simulate(small, Cluster.of(groups=groups), own).step_time_s
    alone = [simulate(small, Cluster.of(g["device"], nodes=2), own).step_time_s for g in groups]
    assert max(alone) * (1 - 1e-8) <= mixed <= 1.06 * max(alone)


@pytest.mark.parametrize(
    ("schedule", "chunks", "slow"),
    [
        ("interleaved", 2, [True, False, True, False]),
        ("zbv", 2, [True, False, False, True]),
        ("dualpipe", 1, [True, True]),
    ],
)
def test_chunks_run_on_the_devices_of_the_ranks_that_the_schedule_gives_them(schedule, chunks, slow):
    """A rank of A100s and one of H100s: the second turn of a V begins where the first ends, and a copy at the end."""
    mixed = Cluster.of(groups=[{"device": device, "nodes": 1} for device in ("a100-sxm-80gb", "h100-sxm-80gb")])
    own = Plan(tp=8, pp=2, global_batch=16, schedule=schedule, virtual_stages=chunks, zero=0)
    costs = slowest(LLAMA, mixed, own.on(LLAMA, mixed), run_level())
    old = slowest(LLAMA, PAIR, own.on(LLAMA, PAIR), run_level())
    assert (costs["forward_compute"] == old["forward_compute"]).tolist() == slow
    assert (costs["head_forward_compute"] == old["head_forward_compute"]) == slow[-1]
