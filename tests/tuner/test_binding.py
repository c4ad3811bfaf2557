"""What binds: each claim is checked against a simulation of the plan that it names."""

import re

import pytest

from sim.engine.step import simulate
from sim.specs import Cluster, Model, Plan
from sim.tuner.binding import binding, lacking_bytes
from sim.tuner.explain import against

MODEL = Model(layers=16, hidden=4096, heads=32, seq=2048)
CLUSTER = Cluster.of("a100-sxm-80gb", nodes=1)


def test_memory_binds_where_a_faster_plan_does_not_fit():
    tight = Cluster.of("a100-sxm-80gb", nodes=1, memory_bytes=20e9)
    step = simulate(MODEL, tight, Plan(tp=2, pp=2, recompute="full", global_batch=64, micro_batch=4))
    (text,) = (b.text for b in binding(step) if b.kind == "memory")
    told = r"recompute (\w+) instead of full: −([\d.]+)\u00a0% time, but pipeline rank 0 lacks ([\d.]+) GB"
    kind, less, lacks = re.search(told, text).groups()
    other = simulate(MODEL, tight, step.plan.but(recompute=kind))
    assert other.fits != "yes" and lacking_bytes(other) / 1e9 == pytest.approx(float(lacks), rel=1e-2)
    assert 100 * (1 - other.step_time_s / step.step_time_s) == pytest.approx(float(less), abs=0.6)


def test_the_room_is_what_the_search_asks():
    fitting = simulate(MODEL, CLUSTER, Plan(tp=8, recompute="full", global_batch=64))
    assert fitting.fits == "yes" and lacking_bytes(fitting) < 0


def test_the_batch_binds_where_it_ends_the_micro_batch():
    """Larger micro-batches go on helping, and there are no more samples."""
    small = Model(layers=4, hidden=512, heads=8, seq=256)
    step = simulate(small, CLUSTER, Plan(tp=1, global_batch=16, micro_batch=2))
    found = {b.kind: b.text for b in binding(step)}
    assert "micro-batch 1 instead of 2: +" in found["batch"] and "4 is not legal" in found["batch"]


def test_what_must_divide_binds_where_more_would_help():
    step = simulate(MODEL, CLUSTER, Plan(tp=2, pp=4, virtual_stages=4, recompute="full", global_batch=8))
    found = {b.kind: b.text for b in binding(step)}
    assert "number of virtual stages 2 instead of 4" in found["divisibility"] and "layers = 16" in found["divisibility"]


def test_else_only_time_is_left():
    roomy = Cluster.of("a100-sxm-80gb", nodes=1, gpus_per_node=1)
    step = simulate(Model(layers=2, hidden=4096, heads=32, seq=2048), roomy, Plan(global_batch=1))
    assert [b.kind for b in binding(step)] == ["time"] and "computing" in binding(step)[0].text


def test_the_next_plan_is_told_by_cause():
    first = simulate(MODEL, CLUSTER, Plan(tp=1, pp=4, virtual_stages=4, recompute="selective", global_batch=64))
    second = simulate(MODEL, CLUSTER, Plan(tp=8, recompute="full", global_batch=64))
    words = against(first, second)
    assert "tensor-parallel communication" in words and "recomputing activations" in words and "(+" in words
    assert "; with contention, which ranks, +1.00 s" in against(second, first, 1.0)
    assert all("contention" not in told for told in (words, against(first, second, 1.0), against(second, first, -1.0)))
    assert "(−" in against(second, first) and "nothing of note" in against(first, first)
