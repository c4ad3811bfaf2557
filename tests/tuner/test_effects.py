"""What one parameter does to time, memory and price: against simulations of hardware that has it."""

from dataclasses import replace

import pytest

from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.tuner.effects import effects
from sim.tuner.elasticity import elasticities

MODEL = Model(name="small", layers=8, hidden=2048, heads=16, seq=1024)
PLAN = Plan(tp=2, pp=4, global_batch=64, micro_batch=4)


def on(memory_bytes=80e9, **more):
    return simulate(MODEL, Cluster.of("h100-sxm-80gb", memory_bytes=memory_bytes, **more), PLAN)


def named(found):
    return {e.name: e for e in found}


def test_a_price_changes_the_cost_by_itself_and_a_rate_as_it_changes_the_time():
    step = on()
    found, timed = named(effects(step, 0.25, "cost")), named(effects(step, 0.25))
    assert found.keys() == timed.keys() | {"price"}
    assert all(found[name] == timed[name] for name in timed)
    assert {e.name: e.better for e in timed.values() if e.name != "memory_size"} == {
        e.name: e.better_s / step.step_time_s - 1 for e in elasticities(step, 0.25)
    }
    cheaper = on(usd_per_gpu_hour=step.cluster.usd_per_gpu_hour / 1.25)
    assert found["price"].better == pytest.approx(cheaper.usd_per_1e9_tokens / step.usd_per_1e9_tokens - 1)


def test_a_memory_of_another_size_fits_as_a_simulation_says():
    full = on().device_memory_bytes
    step = on(full / 1.05)
    assert step.fits != "yes"
    for target in ("step_time", "memory"):
        size = named(effects(step, 0.25, target))["memory_size"]
        assert size.fits == tuple(on(full / 1.05 * f).fits for f in (1.25, 1 / 1.25)) == ("yes", "no")
        assert (size.better, size.worse) == pytest.approx((0, 0) if target == "step_time" else (1 / 1.25 - 1, 0.25))


def test_kinds_of_bytes_weigh_what_they_are_of_the_peak():
    step = on()
    found, small = (named(effects(step, c, "memory")) for c in (0.25, 1e-4))
    assert found.keys() == {k for k, b in step.fullest.composition().items() if b} | {"memory_size"}
    for kind, effect in small.items():
        slope = (effect.worse - effect.better) / 2e-4
        assert abs(effect.elasticity) == pytest.approx(abs(slope), rel=1e-3), kind
    held = found["activations"]
    every = replace(step, memory=tuple(replace(m, activations=m.activations / 1.25) for m in step.memory))
    assert held.better == pytest.approx(every.device_memory_bytes / step.device_memory_bytes - 1)


def test_a_cost_needs_a_price():
    free = simulate(MODEL, Cluster.of("b200"), PLAN)
    with pytest.raises(InputError, match="usd_per_gpu_hour"):
        effects(free, target="cost")
    assert effects(free, target="memory")


def test_devices_of_several_sizes_have_no_size_to_change():
    groups = [{"device": "h100-sxm-80gb", "nodes": 1}, {"device": "a100-sxm-40gb", "nodes": 1}]
    step = simulate(MODEL, Cluster.of(groups=groups), replace(PLAN, tp=4))
    assert "memory_size" not in named(effects(step, 0.25, "memory"))


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-h2"])
def test_faster_products_make_no_step_slower_that_waits_for_its_host(schedule):
    """Weight gradients are reduced beside as long a pass, whatever of it is kernels and what waiting for the host."""
    model = Model(layers=24, hidden=1536, heads=16, vocab=32_000, seq=1024)
    plan = Plan(pp=4, zero=2, schedule=schedule, recompute="full", global_batch=128, micro_batch=1)
    step = simulate(model, Cluster.of("h200-sxm-141gb", nodes=1), plan)
    assert step.breakdown_s["other"] > 0.5 * step.step_time_s
    assert max(effect.better for effect in effects(step)) < 1e-4
