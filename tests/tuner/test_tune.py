"""The tuner: the space is complete, the winner is the brute-force optimum, reasons add up."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.engine.assembly import TERMS
from sim.engine.step import simulate
from sim.plans.notes import notes
from sim.specs import Cluster, InputError, Links, Model, Offload, Plan
from sim.specs.catalog import models
from sim.specs.job import Tune
from sim.specs.resized import resized
from sim.specs.rules import divisors
from sim.tuner.baseline import textbook
from sim.tuner.explain import TERM_NAMES
from sim.tuner.ranking import same_order, weighed
from sim.tuner.score import bounds
from sim.tuner.space import ORDERS, build_space, default_knobs
from sim.tuner.tune import _Request, tune
from tests.full import FULL, full

SMALL = Model(name="small", layers=12, hidden=2048, heads=16, seq=1024)


@pytest.fixture(scope="module")
def found(gpt3, h100s):
    """A search that several tests look at."""
    return tune(gpt3, h100s, 128, top=2)


def every_plan(model, cluster, global_batch):
    """Yield every legal, distinct plan one by one, by the rules of `Plan.on` alone."""
    meshes = divisors(cluster.gpus)
    for tp, pp, v, mb in product(meshes, meshes, divisors(model.layers), [2**i for i in range(7)]):
        for zero, recompute, sp in product(range(4), ("none", "full"), (False, True)):  # dense: selective is none
            try:
                plan = Plan(
                    tp=tp, pp=pp, virtual_stages=v, global_batch=global_batch, micro_batch=mb,
                    zero=zero, recompute=recompute, sequence_parallel=sp,
                )  # fmt: skip
                placed = plan.on(model, cluster)
            except InputError:
                continue
            if zero == 0 or placed.dp > 1:
                yield plan


@pytest.mark.slow
def test_space_is_every_legal_plan():
    cluster = Cluster.of("a100-sxm-40gb", nodes=1)
    space = build_space(SMALL, cluster, 32)
    assert int(space.allowed.sum()) == sum(1 for _ in every_plan(SMALL, cluster, 32))
    assert int(space.allowed.sum()) + sum(space.excluded.values()) == space.asked


def test_context_parallelism_is_tried_where_sequences_are_long():
    """Parts of fewer than 8,192 tokens are tried only where somebody lists them."""
    cluster = Cluster.of("a100-sxm-40gb", nodes=1)
    sizes = (2048, 8192, 16_384, 131_072)
    tried = {seq: default_knobs(resized(SMALL, {"seq": seq}), cluster)["cp"] for seq in sizes}
    assert tried == {2048: [1], 8192: [1], 16_384: [1, 2], 131_072: [1, 2, 4, 8]}


@pytest.mark.parametrize(
    ("model", "knobs"),
    [(replace(SMALL, seq=48), {"cp": [2]}), (replace(models["t5-base"], encoder_seq=510), {"tp": [4, 12]})],
    ids=["part of the sequence", "encoder"],
)
def test_space_keeps_what_sequence_parallelism_must_divide(model, knobs):
    """tp of 16 divides 48 tokens and not the 24 of each part; tp of 4 the decoder's 512 and not the encoder's 510."""
    cluster = Cluster.of("a100-sxm-40gb", nodes=4)
    space = build_space(model, cluster, 96, {"tp": [16], "micro_batch": [1]} | knobs)
    for at in np.argwhere(space.allowed).tolist():
        space.plan(*at).on(model, cluster)
    assert any("(sequence parallelism)" in reason for reason in space.excluded)
    assert int(space.allowed.sum()) + sum(space.excluded.values()) == space.asked


@pytest.mark.slow
@pytest.mark.parametrize(("device", "memory"), [full("a100-sxm-40gb", None), full("l4", None), ("a100-sxm-40gb", 8e9)])
def test_winner_is_the_brute_force_optimum(device, memory):
    cluster = Cluster.of(device, gpus_per_node=4, memory_bytes=memory)
    steps = [simulate(SMALL, cluster, plan) for plan in every_plan(SMALL, cluster, 16)]
    best = min(s.step_time_s for s in steps if s.fits == "yes")
    found = tune(SMALL, cluster, 16, {"unequal_stages": [False]}, top=20)
    assert found.gap == 0
    assert min(r.step.step_time_s for r in found.plans) == best
    assert found.certified == found.same_order
    assert found.proof == ("certified" if found.certified else "contention changes the order")
    assert found.best.step.step_time_s <= best or not found.certified  # stages may differ, which none of these do
    assert found.feasible == sum(s.fits == "yes" for s in steps)


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ([1, 2, 3], [1.1, 2.1, 2.9], True),
        ([1, 2, 3], [1.1, 3.0, 2.9], False),
        ([1, 1 + 1e-8, 3], [1.2, 1.1, 2.9], True),
        ([1, 2, 3], [1.1, 3 + 1e-7, 3], True),
        ([1, 1 + 1e-7, 2], [2.2, 1.1, 2.1], False),
    ],
)
def test_plans_of_equal_time_have_no_order_that_could_change(before, after, same):
    assert same_order(np.array(before), np.array(after)) == same


@pytest.mark.slow
@given(
    st.sampled_from(["llama2-7b", "gpt-22b", "llama3.2-1b"]), st.sampled_from([1, 2, 8]), st.sampled_from([64, 96, 256])
)
@settings(max_examples=10 if FULL else 1)
def test_order_and_feasibility(name, nodes, batch):
    try:
        found = tune(models[name], Cluster.of("a100-sxm-80gb", nodes=nodes), batch, top=5)
    except InputError:
        assume(False)
    times = [r.contended_s for r in found.plans]
    assert times == sorted(times)
    assert times[0] == simulate(models[name], found.cluster, found.best.plan, "events").step_time_s
    assert all(r.step.fits == "yes" for r in found.plans)
    assert found.baseline is None or found.speedup >= 1
    assert sum(found.excluded.values()) + found.feasible == found.space.asked


@pytest.mark.slow
def test_knobs_are_kept(gpt3, h100s):
    found = tune(gpt3, h100s, 128, knobs={"tp": [8], "recompute": ["full"], "virtual_stages": [1]}, top=4)
    assert {r.plan.virtual_stages for r in found.plans} == {1}
    assert {(each.tp, each.recompute) for r in found.plans for each in r.plan.stages or (r.plan,)} == {(8, "full")}


@pytest.mark.parametrize(
    ("knobs", "path"),
    [({"micro_batch": [1], "pp": [1]}, "micro_batch"), ({"sequence_parallel": [False], "tp": [2]}, "sequence_parallel"),
     ({"virtual_stages": [2], "pp": [2]}, "virtual_stages")],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_knobs_are_kept_by_unequal_stages_too(knobs, path):
    knobs |= {"zero": [0], "recompute": ["none"], "offload_optimizer": [0.0], "offload_activations": [0.0]}
    request = _Request(SMALL, Tune(global_batch=16, knobs=knobs, target="any"), None, 20, np.inf, lambda *_: None)
    space = request.space(Cluster.of("a100-sxm-40gb", gpus_per_node=4))
    found = request.any_unequal(space, np.inf)
    assert (found is None) == (path != "micro_batch")
    assert not found or {stage.micro_batch for _, plan in found.found for stage in plan.stages} == {1}


@pytest.mark.slow
def test_memory_objective_finds_the_smallest(gpt3, h100s, found):
    fastest = found.best.step
    smallest = tune(gpt3, h100s, 128, objective="memory_headroom", top=1).best.step
    assert smallest.peak_memory_bytes < fastest.peak_memory_bytes
    assert smallest.step_time_s > fastest.step_time_s


@pytest.mark.slow
def test_too_large_a_model_names_the_nearest_miss(gpt3):
    with pytest.raises(InputError, match=r"cluster\.memory_bytes.*smallest plan still needs .* GB") as caught:
        tune(gpt3, Cluster.of("l4", nodes=1), 8)
    assert caught.value.path == "cluster.memory_bytes"


def test_what_fits_as_allocated_is_told_with_reserve_and_context():
    """It read as if 19.3 GB were more than 24.2."""
    with pytest.raises(InputError, match=r"'15\.0 GB'.* needs \S+ GB allocated, up to \S+ GB of a device") as caught:
        tune(SMALL, Cluster.of("l4", nodes=1, gpus_per_node=1, memory_bytes=15e9), 8, knobs={"recompute": ["full"]})
    allocated, most = map(float, re.findall(r"(\S+) GB (?:allocated|of a device)", caught.value.allowed))
    assert allocated < 15 < most


def test_no_legal_plan_names_the_reason(gpt3, h100s):
    with pytest.raises(InputError, match="does not divide the attention heads"):
        tune(gpt3, h100s, 128, knobs={"tp": [64]})


def test_textbook_plan_is_the_heuristic(gpt3, h100s):
    plan = textbook(gpt3, h100s, 1024).plan
    assert (plan.tp, plan.zero, plan.micro_batch, plan.virtual_stages) == (8, 1, 1, 1)
    assert plan.pp > 1
    small = textbook(SMALL, h100s, 1024).plan
    assert (small.tp, small.pp) == (1, 1)


@pytest.mark.slow
def test_textbook_plan_shards_experts_along_tp_where_all_devices_are_in_it():
    experts = Model(name="e", layers=12, hidden=6144, heads=48, seq=1024, experts=4, experts_per_token=2, moe_ffn=16384)
    plan = textbook(experts, Cluster.of("a100-sxm-80gb", nodes=1, memory_bytes=44e9), 16).plan
    assert (plan.tp, plan.ep, plan.zero) == (8, 4, 1)  # each expert is on two devices; ZeRO-0 would not fit
    dense = Model(name="d", layers=12, hidden=6144, heads=48, seq=1024)
    alone = textbook(dense, Cluster.of("a100-sxm-80gb", nodes=1, memory_bytes=22e9), 16).plan
    assert (alone.tp, alone.zero) == (8, 0)


def test_why_speaks_of_time_memory_and_every_knob(found):
    why = found.plans[-1].why
    assert "a step: " in why[0]
    assert "computing" in why[0]
    assert "pipeline rank " in why[1]
    words = ("tp", "pp", "number of virtual stages", "ZeRO stage", "recompute", "micro-batch")
    assert all(any(f"another {word} (" in line for line in why) for word in words)


def test_ranked_plans_say_what_binds_what_follows_and_how_sure(found):
    assert all(any(" binds" in line for line in r.why) for r in found.plans)
    assert ["the next plan takes" in str(r.why) for r in found.plans] == [True, False]
    assert (
        sum(r.p_best for r in found.plans) == pytest.approx(1) and found.plans[0].p_best == found.robustness.p_best[0]
    )
    assert found.elasticities[0].name == "matrix_flop_per_s"
    assert weighed(found.plans, "memory_headroom") == (found.plans, None)


@pytest.mark.slow
def test_out_of_budget_is_said():
    """Messages dominate, so the closed form's favourite is not the bound's."""
    model = Model(layers=8, hidden=1024, heads=16, vocab=128, seq=8192, norm="rmsnorm")
    cluster = Cluster.of("l4", nodes=2, gpus_per_node=4, links=Links(inter_bytes_per_s_per_node=1e8))
    found = tune(model, cluster, 8, budget_s=0)
    assert len(found.plans) == 1
    assert not found.certified
    assert 0 < found.gap <= 1


@pytest.mark.slow
def test_certificate_holds_on_a_slow_network():
    """Messages dominate here, and the closed form is far off: the bound must not be fooled."""
    model = Model(layers=8, hidden=1024, heads=16, vocab=128, seq=8192, norm="rmsnorm")
    cluster = Cluster.of("l4", nodes=2, gpus_per_node=4, links=Links(inter_bytes_per_s_per_node=1e8))
    found = tune(model, cluster, 8)
    steps = [simulate(model, cluster, plan) for plan in every_plan(model, cluster, 8)]
    best = min(s.step_time_s for s in steps if s.fits == "yes")
    assert min(p.step.step_time_s for p in found.plans) <= best / (1 - found.gap)
    assert found.best.step.step_time_s <= best or not found.certified  # stages may differ, which none of these do


@pytest.mark.slow
def test_schedule_is_a_knob(h100s):
    found = tune(SMALL, h100s, 1024, knobs={"schedule": ["gpipe"], "pp": [2, 4]}, top=3)
    assert {r.plan.schedule for r in found.plans} == {"gpipe"}
    with pytest.raises(InputError, match="no schedule with pp > 1"):
        tune(SMALL, h100s, 1024, knobs={"schedule": ["none"], "pp": [2]})


def test_a_schedule_without_pipeline_counts_once():
    cluster = Cluster.of("a100-sxm-40gb", nodes=1)
    named = build_space(SMALL, cluster, 32, {"schedule": ["none", "1f1b", "gpipe"], "virtual_stages": [1]})
    free = build_space(SMALL, cluster, 32, {"virtual_stages": [1]})
    with_gpipe = int((named.rows["pp"] > 1).sum()) - int((free.rows["pp"] > 1).sum())
    assert int((named.rows["pp"] == 1).sum()) == int((free.rows["pp"] == 1).sum())
    assert with_gpipe == int((free.rows["pp"] > 1).sum())
    assert int(named.allowed.sum()) + sum(named.excluded.values()) == named.asked


def test_pieces_are_kept_and_only_of_sequence_parallelism():
    kept = Plan(global_batch=32, tp=2, tp_comm_overlap=True)
    knobs = {"tp": [1, 2], "pp": [1], "unequal_stages": [False]}
    found = tune(SMALL, Cluster.of("a100-sxm-40gb", nodes=1), 32, knobs, plan=kept, top=5)
    plans = [r.plan for r in found.plans]
    assert all(plan.tp_comm_overlap and plan.sequence_parallel == (plan.tp > 1) for plan in plans)
    assert {plan.tp for plan in plans} == {1, 2}
    assert found.space.excluded["tp_comm_overlap without sequence parallelism"] > 0


def test_exchanges_are_hidden_where_passes_alternate():
    """And no other way: pipelines of one chunk a rank, and full recompute, are left out with a reason."""
    mixture = replace(SMALL, experts=8, experts_per_token=2, moe_ffn=1024)
    knobs = {"tp": [1], "ep": [4], "pp": [1, 2], "virtual_stages": [1, 2], "unequal_stages": [False]}
    kept = Plan(global_batch=64, ep=4, ep_overlap=True)
    found = tune(mixture, Cluster.of("a100-sxm-40gb", nodes=1), 64, knobs, plan=kept, top=50)
    plans = [r.plan for r in found.plans]
    assert all(plan.ep_overlap and plan.recompute != "full" for plan in plans)
    assert {(plan.pp, plan.virtual_stages) for plan in plans} == {(1, 1), (2, 2)}
    for reason in ("ep_overlap in an order that pairs no passes", "ep_overlap with full recompute"):
        assert found.space.excluded[reason] > 0


def test_every_term_has_words():
    assert set(TERM_NAMES) == set(TERMS)


@pytest.mark.slow
def test_settings_of_the_plan_are_kept(h100s):
    kept = {"gradient_dtype": "bf16", "overlap_dp": False, "precision": "fp16", "tp_overlap": False}
    kept["offload"] = Offload(activations=0.01, weights=0.01, gradients=0.01)
    kept |= {"software_year": 2026.5, "optimizer_barrier": False}
    knobs = {"unequal_stages": [False]}
    best = tune(SMALL, h100s, 1024, knobs, top=1, plan=Plan(global_batch=1024, **kept), target="any").best.plan
    assert {name: getattr(best, name) for name in kept} == kept


@pytest.mark.parametrize(
    ("target", "stated", "law", "told"),
    [
        ("torchtitan", {}, "torch", True),
        ("torchtitan-0.3", {"framework": "megatron"}, "megatron", False),
        ("megatron", {}, "megatron", False),
    ],
)
def test_torchtitans_plans_are_searched_by_torchs_memory_law(target, stated, law, told):
    found = tune(
        SMALL, Cluster.of("h100-sxm-80gb"), 32, {"pp": [1], "tp": [1]}, plan=Plan(global_batch=32, **stated),
        target=target, top=1,
    )  # fmt: skip
    assert {found.best.plan.framework, found.baseline.plan.framework} == {law}
    assert found.assumed == ((f"plan.framework = torch (target {target})",) if told else ())


def test_deepspeeds_pipelines_are_searched_as_they_stand_still(h100s):
    knobs = {"tp": [1], "pp": [4], "virtual_stages": [1], "schedule": ["1f1b"], "zero": [1], "micro_batch": [1]}
    knobs |= {"recompute": ["none"], "unequal_stages": [False]}
    free, held = (tune(SMALL, h100s, 256, knobs, target=target, top=1) for target in ("any", "deepspeed"))
    assert held.assumed[0] == "plan.blocking_sends = True (target deepspeed)"
    assert held.best.plan.blocking_sends and not free.best.plan.blocking_sends
    assert held.best.plan.but(blocking_sends=False, overlap_dp=True) == free.best.plan
    assert held.best.step.step_time_s > free.best.step.step_time_s
    assert not any("blocking_sends" in line for line in notes(held.best.step, "deepspeed"))


@pytest.mark.parametrize(
    ("change", "stated", "overlapping"),
    [
        ({"zero": [0]}, {}, False),
        ({"zero": [1]}, {}, True),
        ({"zero": [2]}, {}, True),
        ({"zero": [1], "pp": [2]}, {}, False),
        ({"zero": [1]}, {"gradient_dtype": "fp32"}, False),
        ({"zero": [3]}, {"gradient_dtype": "fp32"}, True),
        ({"zero": [3]}, {"overlap_dp": False}, False),
    ],
    ids=str,
)
def test_gradients_that_deepspeed_reduces_after_the_backward_pass_are_searched_so(h100s, change, stated, overlapping):
    plan = Plan(global_batch=256, **{"gradient_dtype": "bf16"} | stated)
    knobs = {"tp": [1], "pp": [1], "micro_batch": [1], "recompute": ["none"], "unequal_stages": [False]} | change
    found = tune(SMALL, h100s, 256, knobs, plan=plan, target="deepspeed", top=1)
    best = found.best
    assert best.plan.overlap_dp == overlapping
    told = any(line.startswith("plan.overlap_dp = False where") for line in found.assumed)
    assert told == (plan.overlap_dp and not overlapping)
    assert not any("overlap_dp" in line for line in notes(best.step, "deepspeed"))
    assert bounds(found.space)[found.space.allowed].min() <= best.step.step_time_s


def test_one_search_for_deepspeed_sets_plans_that_overlap_beside_plans_that_do_not(h100s):
    knobs = {"tp": [1], "pp": [1], "micro_batch": [1], "recompute": ["none"], "zero": [1, 2], "unequal_stages": [False]}
    found = tune(SMALL, h100s, 256, knobs, target="deepspeed", top=2)
    assert {one.plan.zero: one.plan.overlap_dp for one in found.plans} == {1: False, 2: True}
    scored = np.sort(found.scores.step_time_s[found.space.allowed])
    assert scored == pytest.approx(sorted(one.step.step_time_s for one in found.plans), rel=1e-3)


def test_whether_ranks_wait_follows_from_each_schedule(h100s):
    """torchtitan clips before any rank updates, ZB-H1 does not."""
    knobs = {"schedule": ["1f1b", "zb-h1"], "pp": [2], "zero": [2]}
    untied, barrier = replace(SMALL, tied_embeddings=False), {"optimizer_barrier": True}
    spaces = [build_space(untied, h100s, 1024, knobs, kept, "torchtitan") for kept in ({}, barrier)]
    left = [{ORDERS[code] for code in s.rows["schedule"][s.allowed.any(axis=(1, 2, 3))]} for s in spaces]
    assert left == [{"1f1b"}, {"1f1b", "zb-h1"}]
    job = Plan(global_batch=1024)
    assert "optimizer_barrier" not in tune(SMALL, h100s, 1024, knobs, plan=job, target="any", top=1).space.kept


@pytest.mark.parametrize(
    "kept", [{}, {"framework": "torch"}, {"optimizer_barrier": False}, {"optimizer_barrier": True}]
)
def test_a_space_asks_one_plan_whether_ranks_wait_with_each_schedule(gpt3, h100s, kept, monkeypatch):
    """A plan of each schedule would take longer to make than the rest of the space."""
    plan = Plan(global_batch=64, schedule="zb-h1", pp=2, **kept)
    assert [plan.barrier(name) for name in ORDERS] == [plan.but(schedule=name).optimizer_barrier for name in ORDERS]
    made = []
    monkeypatch.setattr(Plan, "__post_init__", lambda self, old=Plan.__post_init__: (made.append(self), old(self))[1])
    build_space(gpt3, h100s, 64, {"tp": [8]}, kept)
    assert len(made) <= 1


def test_groups_of_microbatches_are_left_to_the_search(h100s):
    with pytest.raises(InputError, match=r"plan\.microbatch_group_size: got 8; allowed: left out"):
        tune(SMALL, h100s, 1024, plan=Plan(global_batch=1024, pp=4, virtual_stages=2, microbatch_group_size=8))
    # A plan file states the usual groups too, and may start a search.
    usual = Plan(global_batch=1024, pp=4, virtual_stages=2, microbatch_group_size=4)
    assert _Request(SMALL, Tune(global_batch=1024), usual, 1, 0.0, lambda *_: None).plan == usual


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"knobs": {"foo": [1]}}, "tune.knobs.foo"),
        ({"knobs": {"tp": [2.7]}}, "tune.knobs.tp.0"),
        ({"knobs": {"tp": None}}, "tune.knobs.tp"),
        ({"knobs": {"tp": {"max": 0}}}, "tune.knobs.tp.max"),
        ({"knobs": {"tp": {"min": 3, "max": 3}}}, "tune.knobs.tp"),
        ({"target": "jax"}, "target"),
        ({"deadline_days": 3}, "tune.deadline_days"),
        ({"objective": "gpus_for_deadline", "deadline_days": 3}, "training"),
        ({"knobs": {"tp": [0]}}, "tune.knobs.tp"),
        ({"knobs": {"recompute": ["foo"]}}, "tune.knobs.recompute"),
        ({"knobs": ["tp"]}, "knobs"),
        ({"objective": "speed"}, "objective"),
        ({"top": 0}, "top"),
        ({"budget_s": float("nan")}, "budget_s"),
        ({"budget_s": -1}, "budget_s"),
        ({"global_batch": "64"}, "global_batch"),
    ],
)
def test_bad_arguments(gpt3, h100s, arguments, path):
    with pytest.raises(InputError) as caught:
        tune(gpt3, h100s, **{"global_batch": 128} | arguments)
    assert caught.value.path == path


def test_cost_needs_a_price(gpt3):
    with pytest.raises(InputError, match=r"cluster\.usd_per_gpu_hour"):
        tune(gpt3, Cluster.of("b200", nodes=4), 128, objective="cost")


def test_what_the_jobs_plan_says_of_searched_knobs_is_named():
    """Not what is kept, nor fixed among the knobs, nor left out."""
    stated = Plan(global_batch=32, tp=2, micro_batch=4, sequence_parallel=False, precision="bf16", overlap_dp=False)
    found = tune(SMALL, Cluster.of("a100-sxm-40gb", nodes=1), 32, {"micro_batch": [4], "pp": [1]}, plan=stated, top=1)
    (line,) = found.assumed
    assert line == "plan.tp, plan.sequence_parallel: searched, whatever the job says (tune.knobs holds one fixed)"
    assert not tune(SMALL, Cluster.of("a100-sxm-40gb", nodes=1), 32, {"tp": [1], "pp": [1]}, top=1).assumed
    counted = stated.but(tp=1, sequence_parallel=None, dp=2, recompute="full", recompute_layers=1)
    knobs = {"micro_batch": [4], "pp": [1], "recompute": ["none"]}
    searched, follows = tune(SMALL, Cluster.of("a100-sxm-40gb", nodes=1), 32, knobs, plan=counted, top=1).assumed
    assert searched.startswith("plan.recompute_layers: searched") and follows.startswith("plan.dp: what tp, pp and cp")
