"""Knobs that are searched only where they are listed: schedules without closed form, copies of shards, precisions."""

import numpy as np
import pytest

import sim
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Offload, Plan
from sim.specs.catalog import models
from sim.specs.pipelines import ASYNCHRONOUS
from sim.tuner.score import bounds, score_members
from sim.tuner.search import Search
from sim.tuner.space import ORDERS, PRECISIONS, SPLIT, build_space, default_knobs
from sim.tuner.staged import search_stages
from sim.tuner.tune import tune
from tests.costs.hosts import hostless

SMALL = Model(name="small", layers=24, hidden=2048, heads=16, vocab=50_304, seq=2048)
NODE = Cluster.of("a100-sxm-80gb", nodes=1)
H100S = Cluster.of("h100-sxm-80gb", nodes=2)
SHAPES = {"pp": [2, 4], "tp": [1], "micro_batch": [1, 2], "sequence_parallel": [False], "recompute": ["none"]}
ONE = {"unequal_stages": [False]}


def each(space, most=25):
    """Yield configurations of a space with what the compiled engine says of them."""
    chosen = np.argwhere(space.allowed)
    for at in map(tuple, chosen[:: max(1, len(chosen) // most)]):
        yield at, simulate(space.model, space.cluster, space.plan(*map(int, at)))


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "l4"])
@pytest.mark.parametrize("schedule", ORDERS[ORDERS.index("looped-bfs") :])
def test_no_order_beats_its_bound(schedule, device):
    """Nor needs less memory than the score; PipeDream and 2BW have a closed form: their slowest rank, or a cycle. That
    of 2BW leaves out that backwards with ZeRO's reductions wait for those of the step before."""
    cluster = Cluster.of(device, nodes=1, gpus_per_node=8)
    space = build_space(SMALL, cluster, 64, SHAPES | {"schedule": [schedule], "zero": [0, 1, 3]})
    least, scores = bounds(space), score_members(space)
    assert space.allowed.any()
    for at, step in each(space):
        assert least[at] <= step.step_time_s * (1 + 1e-7)
        assert scores.peak_memory_bytes[at] <= step.peak_memory_bytes * (1 + 1e-9)
        if schedule in ASYNCHRONOUS:
            queued = schedule == "2bw" and step.plan.zero > 1
            assert scores.step_time_s[at] == pytest.approx(step.step_time_s, rel=5e-3 if queued else 1e-3)
            assert scores.peak_memory_bytes[at] == pytest.approx(step.peak_memory_bytes, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "cluster", "given", "near"),
    [
        (SMALL, NODE, {"tp": [2, 4], "micro_batch": [1, 2, 4]}, 0.9),
        (SMALL, H100S, {"tp": [8], "recompute": ["none", "full"]}, 0.9),
        (models["deepseek-v2"], Cluster.of("h100-sxm-80gb", nodes=4), {"ep": [8, 16], "micro_batch": [1]}, 0.5),
    ],
)
def test_no_fused_pairs_beat_their_bound(model, cluster, given, near):
    """Whatever hides of what they send; chunks of different layers (DeepSeek's first is dense) have a looser one."""
    space = build_space(model, cluster, 64, SHAPES | {"pp": [2]} | given | {"schedule": ["dualpipev"], "zero": [0, 1]})
    least = bounds(space)
    ratios = [least[at] / step.step_time_s for at, step in each(space)]
    assert near < min(ratios)
    assert max(ratios) <= 1 + 1e-7


def test_backwards_that_run_whole_beside_others_in_two_parts_beat_no_bound():
    """What ZeRO-2 and 3 send beside a whole one hides better than beside either part."""
    given = {"tp": [1, 2], "pp": [2], "micro_batch": [1], "recompute": ["none", "full"]}
    slow = Cluster.of("l4", nodes=4)
    space = build_space(models["llama3-8b"], slow, 64, given | {"schedule": ["dualpipev"], "zero": [2, 3]})
    least = bounds(space)
    assert 0.8 < max(least[at] / step.step_time_s for at, step in each(space)) <= 1 + 1e-7


def test_a_head_that_hides_copies_beside_whole_backwards_beats_no_bound():
    """It makes them shorter, and no backward in two parts: left out, that made the bound 3 % longer than the step."""
    moved = Offload(activations=1.0, gradients=1.0)
    given = SHAPES | {"pp": [2], "virtual_stages": [2], "zero": [0, 1], "schedule": ["dualpipev"]}
    slow = Cluster.of("l4", nodes=2, gpus_per_node=8)
    space = build_space(SMALL, slow, 256, given, {"framework": "torch", "offload": moved})
    least = bounds(space)
    assert 0.95 < max(least[at] / step.step_time_s for at, step in each(space)) <= 1 + 1e-7


def test_copies_that_only_their_own_rank_waits_for_lengthen_its_work():
    """A backward waits for half its time; left out of the rank's work, that made the bound 45 - 52 % too short."""
    moved = Offload(optimizer=1.0, activations=0.5, weights=0.5, gradients=0.5)
    given = SHAPES | {"pp": [4], "micro_batch": [4], "virtual_stages": [2], "zero": [0, 1], "schedule": ["dualpipev"]}
    space = build_space(SMALL, Cluster.of("a100-sxm-40gb", nodes=4), 256, given, {"offload": moved})
    least = bounds(space)
    assert all(0.75 < least[at] / step.step_time_s <= 1 + 1e-7 for at, step in each(space))


@pytest.mark.parametrize(
    ("schedule", "near"),
    [("interleaved-zb", 0.92), ("zbv", 0.94), ("v-half", 0.86), ("v-min", 0.74), ("dualpipev", 0.93)],
)
@pytest.mark.parametrize("batch", [4, 8, 16])
def test_few_microbatches_fill_and_drain_a_pipeline(schedule, near, batch):
    """The first rank waits for its first gradient, and the last one for its first microbatch: scores were up to 42 %
    too short, so that these orders seemed the fastest."""
    given = {"pp": [4], "micro_batch": [1], "virtual_stages": [2, 3], "zero": [0], "recompute": ["none", "full"]}
    space = build_space(SMALL, NODE, batch, SHAPES | given | {"schedule": [schedule]})
    least = bounds(space)
    assert all(near < least[at] / step.step_time_s <= 1 + 1e-7 for at, step in each(space))


def test_chunks_that_take_more_microbatches_in_turn_than_ranks_beat_no_bound():
    """36 in 4 rounds of 9 on 8 ranks, whose first one runs 18 forwards before its first backward; of 32 it runs 16."""
    given = SHAPES | {"pp": [8], "micro_batch": [1], "virtual_stages": [2, 3], "zero": [0]}
    space = build_space(SMALL, NODE, 36, given | {"schedule": ["interleaved-zb"]})
    least = bounds(space)
    assert all(0.97 < least[at] / step.step_time_s <= 1 + 1e-7 for at, step in each(space))


def test_a_mixed_cluster_is_bounded_by_the_faster_host():
    """That of an A100 takes longer to issue kernels than an H200's, and the bound was of the slower one."""
    groups = [{"device": device, "nodes": 1, "gpus_per_node": 8} for device in ("h200-sxm-141gb", "a100-sxm-80gb")]
    given = {"pp": [2], "tp": [8], "ep": [8], "micro_batch": [1], "virtual_stages": [2], "zero": [2]}
    given |= {"recompute": ["full"], "sequence_parallel": [False], "schedule": ["v-half"]}
    moved = Offload(activations=0.25, weights=0.25)
    space = build_space(models["qwen3-30b-a3b"], Cluster.of(groups=groups), 32, given, {"offload": moved})
    least = bounds(space)
    assert all(0.9 < least[at] / step.step_time_s <= 1 + 1e-7 for at, step in each(space))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (SMALL, {"schedule": ["interleaved-zb"], "virtual_stages": [2], "tp": [4]}),
        (SMALL, {"schedule": ["zbv"], "virtual_stages": [2], "tp": [4]}),
        (SMALL, {"schedule": ["v-half"], "virtual_stages": [2], "tp": [2]}),
        (SMALL, {"schedule": ["gpipe"], "tp": [4]}),
        (SMALL, {"schedule": ["zb-h1"], "tp": [4]}),
        (models["qwen3-30b-a3b"], {"schedule": ["2bw"], "tp": [4], "ep": [1, 2]}),
        (models["qwen3-30b-a3b"], {"schedule": ["v-half"], "virtual_stages": [2], "tp": [8], "ep": [1, 2]}),
    ],
)
@pytest.mark.parametrize("moved", [Offload(weights=0.25, activations=1.0), Offload(weights=1.0, activations=0.1)])
def test_copies_on_a_mixed_cluster_beat_no_bound(model, given, moved):
    """A device with the best of both computes beside fewer of its copies, and these slow its collectives: it was slower
    than either, and bounds of such plans too long."""
    groups = [{"device": device, "nodes": 1, "gpus_per_node": 8} for device in ("h200-sxm-141gb", "h100-sxm-80gb")]
    common = {"pp": [2], "micro_batch": [1], "zero": [0, 1, 3], "recompute": ["none"], "sequence_parallel": [False]}
    space = build_space(model, Cluster.of(groups=groups), 64, common | given, {"offload": moved})
    least = bounds(space)
    assert all(0.7 < least[at] / step.step_time_s <= 1 + 1e-7 for at, step in each(space))


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-1p"])
def test_what_a_split_backward_waits_for_its_host_counts_once(schedule):
    """Waiting takes most of these steps: with its weight half counted twice they seemed 15 - 30 % longer."""
    given = {"pp": [2, 4], "tp": [1], "micro_batch": [1], "zero": [1], "recompute": ["none"], "schedule": [schedule]}
    space = build_space(Model(layers=8, hidden=512, heads=8, vocab=8192, seq=128), H100S, 256, given)
    scores = score_members(space).step_time_s
    for at, step in each(space):
        assert step.breakdown_s["other"] > 0.4 * step.step_time_s
        assert scores[at] == pytest.approx(step.step_time_s, rel=0.03)


@pytest.mark.parametrize("schedule", ["zb-h2", "zb-2p"])
def test_a_last_rank_that_ends_last_beats_no_bound(schedule, tmp_path):
    """Its head takes longer than all layers, and it reduces no gradients of an embedding."""
    model = Model(layers=4, hidden=256, heads=4, seq=96, vocab=250_000)
    given = {"tp": [1], "pp": [2], "micro_batch": [1], "zero": [0, 1], "recompute": ["none"]}
    cluster = Cluster.of("a100-sxm-40gb", gpus_per_node=4, profile=hostless("a100-sxm-40gb", tmp_path / "own"))
    space = build_space(model, cluster, 12, given | {"schedule": [schedule]})
    least = bounds(space)
    assert 0.99 < max(least[at] / step.step_time_s for at, step in each(space)) <= 1 + 1e-7


def test_orders_that_are_scored_by_a_bound_of_their_memory_do_not_hide_a_smaller_plan():
    model = Model(layers=12, hidden=1024, heads=8, seq=512, vocab=50_000)
    given = {"micro_batch": [1], "virtual_stages": [2, 3], "zero": [1], "schedule": ["interleaved", "dualpipev"]}
    space = build_space(model, Cluster.of("a100-sxm-40gb", gpus_per_node=4), 32, SHAPES | given)
    search = Search(space, score_members(space), bounds(space), "memory_headroom", 1, np.inf, lambda *_: None)
    (least,), gap = search.confirm()
    assert gap == 0
    assert least.peak_memory_bytes == min(step.peak_memory_bytes for _, step in each(space))


@pytest.mark.parametrize("layers", [(1, 11, 11, 1), (11, 1, 11, 1), (1, 1, 11, 11), (6, 6, 6, 6)])
@pytest.mark.parametrize("schedule", ASYNCHRONOUS)
def test_without_flush_the_slowest_rank_sets_the_pace(schedule, layers):
    """Without data parallelism: beside 2BW's reductions, ways through last backwards of several ranks are longer."""
    given = {"tp": 2, "pp": 4, "micro_batch": 2, "schedule": schedule, "stage_layers": layers}
    step = simulate(SMALL, NODE, Plan(global_batch=64, **given))
    slowest = max(range(4), key=lambda r: int(step.timeline.busy()[r]))
    work = step.timeline.busy()[slowest] * 1e-9 * step.placed.microbatches / step.timeline.schedule.microbatches
    assert step.step_time_s - step.breakdown_s["straggler"] == pytest.approx(work, rel=2e-3)


@pytest.mark.parametrize("schedule", ["2bw", "pipedream", "zbv", "dualpipev", "looped-bfs", "interleaved-zb"])
def test_a_listed_schedule_is_searched_to_its_best(schedule):
    knobs = SHAPES | ONE | {"schedule": [schedule], "zero": [0, 1]}
    found = tune(SMALL, NODE, 64, knobs, target="any", top=2)
    brute = min(step.step_time_s for _, step in each(found.space, 10**6) if step.fits == "yes")
    assert found.gap == 0
    assert min(r.step.step_time_s for r in found.plans) == pytest.approx(brute)
    assert found.best.plan.schedule == schedule


def test_schedules_compete():
    knobs = SHAPES | ONE | {"schedule": ["1f1b", "zb-h1", "zbv", "2bw"], "virtual_stages": [1, 2]}
    every = tune(SMALL, NODE, 64, knobs, target="any", top=1).best
    assert every.plan.schedule == "2bw"  # no bubble
    runnable = tune(SMALL, NODE, 64, knobs, target="torch", top=1).best
    assert runnable.plan.schedule in ("zb-h1", "zbv")
    assert every.contended_s < runnable.contended_s


@pytest.mark.parametrize(
    ("listed", "alone"),
    [
        (["1f1b", "zb-h1"], ["none"]),
        (["gpipe", "zb-h1"], ["gpipe", "zb-h1"]),
        (["zb-h2", "zb-1p", "zb-2p"], ["zb-h2", "zb-2p"]),
    ],
)
def test_without_a_pipeline_1f1b_stands_for_all_schedules(listed, alone):
    space = build_space(SMALL, NODE, 64, SHAPES | {"pp": [1, 2], "micro_batch": [1], "zero": [0], "schedule": listed})
    plans = [space.plan(row, 0, 0, 0) for row in range(len(space.allowed))]
    assert [plan.schedule for plan in plans if plan.pp == 1] == alone
    assert [plan.schedule for plan in plans if plan.pp == 2] == listed
    assert sum(space.excluded.values()) + space.allowed.sum() == space.asked


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "l4"])
def test_without_a_pipeline_split_orders_that_stand_for_each_other_are_one_plan(device):
    cluster = Cluster.of(device, nodes=1, gpus_per_node=8)
    steps = [
        simulate(SMALL, cluster, Plan(schedule=ORDERS[code], global_batch=64, micro_batch=2, zero=2)) for code in SPLIT
    ]
    assert len({(step.step_time_s, step.peak_memory_bytes) for step in steps}) == 1


def test_orders_that_cannot_be_are_counted():
    space = build_space(SMALL, NODE, 8, {"schedule": ["2bw", "dualpipev"], "pp": [8], "micro_batch": [4, 8]})
    assert not space.allowed.any()
    assert space.excluded["microbatches or ranks that the schedule cannot have"] > 0
    assert sum(space.excluded.values()) == space.asked


def test_two_copies_are_refused():
    with pytest.raises(InputError, match=r"tune\.knobs\.schedule: got 'dualpipe'; .*two copies"):
        tune(SMALL, NODE, 64, {"schedule": ["dualpipe"]})


def test_copies_of_shards_are_searched():
    knobs = ONE | {"tp": [1], "pp": [1], "fsdp_shard": [0, 4, 8, 16], "zero": [0, 3], "virtual_stages": [1]}
    found = tune(SMALL, H100S, 64, knobs, target="any", top=3)
    space, scores, least = found.space, found.scores, bounds(found.space)
    for at, step in each(space, 60):
        assert least[at] <= step.step_time_s * (1 + 1e-9)
        assert scores.peak_memory_bytes[at] == pytest.approx(step.peak_memory_bytes, rel=1e-6)
    equal = knobs | {"zero": [3], "fsdp_shard": [4, 8], "unequal_stages": [False]}  # stages of their own have no copies
    sharded = tune(SMALL, H100S, 64, equal, target="any", top=1).best
    assert sharded.plan.fsdp_shard in (4, 8)
    assert any("share a copy" in line for line in sharded.why)
    assert sum(space.excluded.values()) + int(space.allowed.sum()) == space.asked


def test_a_kept_number_of_copies_has_no_plans_without_zero():
    kept = Plan(global_batch=64, fsdp_shard=8, zero=3)
    found = tune(SMALL, H100S, 64, {"tp": [1], "pp": [1]}, target="any", top=5, plan=kept)
    assert {r.plan.fsdp_shard for r in found.plans} == {8}
    assert all(r.plan.zero > 0 for r in found.plans)
    assert found.unequal is None


@pytest.mark.slow
def test_precisions_are_searched():
    knobs = ONE | {"precision": ["bf16", "fp8"], "pp": [1, 2], "tp": [1, 2], "virtual_stages": [1]}
    found = tune(SMALL, H100S, 64, knobs, target="any", top=3)
    least = bounds(found.space)
    seen = set()
    for at, step in each(found.space, 40):
        seen.add(step.plan.precision)
        assert least[at] <= step.step_time_s * (1 + 1e-9)
        assert found.scores.step_time_s[at] == pytest.approx(step.step_time_s, rel=0.3)
        assert found.scores.peak_memory_bytes[at] == pytest.approx(step.peak_memory_bytes, rel=1e-6)
    assert seen == {"bf16", "fp8"} <= set(PRECISIONS)
    assert found.best.plan.precision == "fp8"
    assert any("another precision (bf16)" in line for line in found.best.why)
    plain = tune(SMALL, H100S, 64, ONE | {"pp": [1, 2], "tp": [1, 2], "virtual_stages": [1]}, target="any", top=1)
    assert plain.best.plan.precision == "bf16"
    assert found.best.step.step_time_s < plain.best.step.step_time_s


def test_unequal_stages_take_the_listed_precision():
    knobs = default_knobs(SMALL, H100S) | {"precision": ["bf16", "fp8"], "pp": [2], "tp": [1]}
    found = search_stages(SMALL, H100S, 64, knobs, {}, "techniques", 30).found
    assert found[0][1].precision == "fp8"
    assert {plan.precision for _, plan in found} <= {"bf16", "fp8"}
    assert simulate(SMALL, H100S, found[0][1]).step_time_s == pytest.approx(found[0][0], rel=0.04)


@pytest.mark.parametrize(("device", "name"), [("a100-sxm-80gb", "fp8"), ("h100-sxm-80gb", "fp32")])
def test_a_precision_without_units_is_refused(device, name):
    with pytest.raises(InputError, match=rf"tune\.knobs\.precision: got '{name}'"):
        tune(SMALL, Cluster.of(device), 64, {"precision": [name]})


def test_sequence_parallelism_is_a_knob():
    one, other = (
        tune(SMALL, NODE, 64, ONE | {"tp": [4], "pp": [1], "sequence_parallel": [on]}, top=1).best
        for on in (True, False)
    )
    assert (one.plan.sequence_parallel, other.plan.sequence_parallel) == (True, False)
    assert sim.simulate(SMALL, NODE, other.plan).peak_memory_bytes > one.step.peak_memory_bytes * 0.9
