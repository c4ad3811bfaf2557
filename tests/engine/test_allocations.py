"""A step as allocations and frees: the sum of the memory law, tensor by tensor, and what the allocator makes of it."""

from dataclasses import replace

import pytest

from sim.costs.layers.structure import BlockKind, Structure
from sim.costs.tensors import forward_order, layer_tensors, pieces, tensor_model
from sim.engine.allocations import allocations, replay_allocator
from sim.engine.allocator import AllocatorSettings
from sim.engine.placed import slowest
from sim.engine.step import simulate
from sim.schedules import SCHEDULES
from sim.specs import Cluster, InputError, Model, Offload, Plan
from sim.specs.catalog import models

H100S = Cluster.of("h100-sxm-80gb", nodes=4)


def step_of(model="llama3-8b", **plan):
    return simulate(models[model], H100S, Plan(**{"tp": 4, "pp": 4, "global_batch": 32} | plan))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["llama3-8b", "gpt-22b", "mixtral-8x7b", "deepseek-v2"])
def test_tensors_of_a_layer_sum_to_the_law(name, recompute):
    model = models[name]
    plan = Plan(tp=4, global_batch=32, recompute=recompute)
    step = simulate(model, H100S, plan)
    structure = Structure.of(model)
    sizes = slowest(model, H100S, step.placed, step.level, tensor_model)
    for k, kind in enumerate(structure.kinds):
        made = layer_tensors(structure, k, sizes, recompute)
        assert sum(made.kept) == pytest.approx(float(sizes[f"kept_{k}"]), abs=len(made.kept))
        assert sum(made.rebuilt) == pytest.approx(float(sizes[f"rebuilt_{k}"]), abs=20)
        assert sum(made.gradients) == pytest.approx(float(sizes[f"gradient_{k}"]), abs=4)
        assert recompute == "full" or len(made.kept) >= len(forward_order(kind)) // 2
        fused = isinstance(kind, BlockKind) and not kind.eager and (kind.mixer, kind.mlp) == ("attention", "dense")
        assert bool(made.rebuilt) == (recompute == "full" or (recompute == "selective" and not fused))


def test_eager_attention_keeps_probabilities_their_mask_and_what_was_dropped():
    model = Model(layers=4, hidden=1024, heads=16, seq=1024, attention="eager", dropout=0.1)
    step = simulate(model, H100S, Plan(tp=4, pp=4, global_batch=32))
    structure = Structure.of(model)
    kept = layer_tensors(structure, 0, slowest(model, H100S, step.placed, step.level, tensor_model), "none").kept
    scores = 16 / 4 * 1024**2
    named = dict(zip((n for _, n in forward_order(structure.kinds[0])), kept, strict=True))
    assert [named[n] for n in ("softmax", "score mask", "dropped softmax")] == [2 * scores, scores, 2 * scores]
    assert named["query"] == named["value"] == 2 * 1024 * 1024 / 4


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"recompute": "full", "zero": 1},
        {"recompute": "selective", "virtual_stages": 2},
        {"zero": 2, "gradient_dtype": "bf16"},
        {"schedule": "gpipe", "global_batch": 64},
        {"framework": "torch", "cross_entropy": "fused"},
    ],
)
def test_bytes_asked_for_peak_where_the_memory_law_says(plan):
    step = step_of(**plan)
    for held in step.memory:
        found = replay_allocator(step, held.rank)
        assert found.requested_peak_bytes == pytest.approx(held.peak_bytes, rel=1e-5)
        assert found.requested_peak_bytes <= found.allocated_peak_bytes <= found.reserved_peak_bytes
        assert 1 <= found.reserved_over_allocated < 1.15


@pytest.mark.parametrize("framework", ["megatron", "torch"])
def test_gathered_weights_lie_on_a_stream_of_their_own(framework):
    step = step_of("llama3-8b", tp=1, pp=1, zero=3, framework=framework, recompute="full")
    found = replay_allocator(step)
    assert found.requested_peak_bytes == pytest.approx(step.peak_memory_bytes, rel=1e-5)
    assert {s.stream for s in found.segments} == {0, 1}


def test_gradients_that_are_not_in_shards_yet_are_there_too():
    """PyTorch's FSDP2 lets go of what a layer's gradients were reduced from one layer later."""
    step = step_of("mixtral-8x7b", tp=1, pp=1, zero=3, framework="torch", recompute="full")
    assert replay_allocator(step).requested_peak_bytes == pytest.approx(step.peak_memory_bytes, rel=1e-5)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-20b"])
def test_few_layers_a_stage_have_fewer_neighbours(name, layers, recompute):
    """One has none above it whose gradients wait and none ahead to gather, two never both at once."""
    model = replace(models[name], layers=4 * layers, pattern="T" * 4 * layers)
    plan = Plan(pp=4, global_batch=32, zero=3, framework="torch", recompute=recompute)
    step = simulate(model, H100S, plan)
    for held in step.memory:
        assert replay_allocator(step, held.rank).requested_peak_bytes == pytest.approx(held.peak_bytes, rel=1e-4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_ends_with_what_it_began_with(name):
    chunks = SCHEDULES[name].chunks // SCHEDULES[name].copies
    step = step_of(schedule=name, virtual_stages=chunks, global_batch=32 if name != "pipedream" else 16)
    found = replay_allocator(step, 1)
    states = sum(step.memory[1].fixed.values()) + step.profile.memory.workspace_bytes
    assert found.requested[-1] == pytest.approx(states, rel=1e-6)
    assert found.requested_peak_bytes == pytest.approx(step.memory[1].peak_bytes, rel=0.02)


def test_events_are_the_same_every_time_and_moments_come_with_the_first_update():
    step = step_of()
    once, twice = allocations(step, 0, 1), allocations(step, 0, 2)
    assert twice[: len(once)] == once and allocations(step, 0, 2) == twice
    moments = 2 / 3 * step.memory[0].fixed["optimizer"]
    last = [size for action, _, size, _ in once[-200:] if action == "alloc"]
    assert sum(last) >= moments
    late = [size for action, _, size, _ in twice if action == "alloc"]
    assert sum(late) < 2 * sum(size for action, _, size, _ in once if action == "alloc")


def test_expandable_segments_reserve_less_than_separate_ones():
    step = step_of("llama3-8b", tp=1, pp=1, zero=3, framework="torch", recompute="full")
    apart, together = (replay_allocator(step, settings=AllocatorSettings(expandable_segments=e)) for e in (False, True))
    assert together.reserved_peak_bytes < apart.reserved_peak_bytes
    assert together.requested_peak_bytes == apart.requested_peak_bytes


def test_a_capacity_that_is_too_small_is_told():
    step = step_of()
    enough = replay_allocator(step).reserved_peak_bytes
    settings = AllocatorSettings(capacity_bytes=0.8 * enough)
    assert replay_allocator(step, settings=settings).failed_at is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": 4}, "rank: got 4; allowed: a pipeline rank, 0 to 3"),
        ({"steps": 0}, "steps: got 0; allowed: 1 to 100"),
    ],
)
def test_what_is_asked_for_is_checked(given, message):
    with pytest.raises(InputError) as caught:
        replay_allocator(step_of(), **given)
    assert str(caught.value) == message


def test_too_many_allocations_are_told_before_all_are_made(monkeypatch):
    monkeypatch.setattr("sim.engine.allocations.MOST_EVENTS", 2_000)
    message = r"allocations: got 'about \d{4} in 2 steps of 16 microbatches'; allowed: at most 2000"
    with pytest.raises(InputError, match=message):
        replay_allocator(step_of())
    assert len(replay_allocator(step_of(global_batch=4)).allocated) <= 2_000


def test_offload_is_not_replayed():
    with pytest.raises(InputError, match=r"plan.offload: .*copies are not replayed"):
        replay_allocator(step_of(offload=Offload(optimizer=0.5)))


def test_pieces():
    assert pieces(10, 4) == (2, 4, 4) and pieces(8, 4) == (4, 4) and pieces(3, 4) == (3,) and pieces(7, 0) == (7,)
    assert pieces(0, 4) == ()


def test_levels_of_a_rank():
    step = step_of()
    levels = step.levels(step.fullest.rank)
    outside = step.profile.memory
    assert levels.allocated_bytes == step.peak_memory_bytes
    assert levels.reserved_bytes == step.peak_memory_bytes * outside.reserved_over_allocated
    assert levels.nvidia_smi_bytes == step.device_memory_bytes
    assert levels.nvidia_smi_bytes - levels.reserved_bytes == outside.context_bytes + outside.communicator_bytes
    assert levels.margin_bytes == step.cluster.memory_bytes - step.device_memory_bytes
    assert any("the profile's constant (no replay)" in text for text in step.assumptions)


def test_the_peak_names_its_action():
    step = step_of()
    for held in step.memory:
        action = held.peak_action
        assert action in step.timeline.schedule.actions[held.rank] and len(held.actions) * 2 == len(held.at_ns)
        assert str(action)[1] == "B"


def test_offload_staging_is_a_category_of_its_own():
    with_room = step_of(offload=Offload(optimizer=0.5, activations=0.5)).memory[0]
    without = step_of().memory[0]
    assert with_room.composition()["offload"] > 0 == without.composition()["offload"]
    assert with_room.composition()["communication"] == without.composition()["communication"]
    assert sum(with_room.composition().values()) == pytest.approx(with_room.peak_bytes)
