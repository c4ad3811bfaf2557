"""Elasticities: those of finite differences of whole simulations, and a sum that is known."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.costs.offload import offload_walked
from sim.engine.sensitivity import MODELS
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Links, Model, Offload, Plan
from sim.specs.catalog import models
from sim.tuner.elasticity import CHANGE, PARAMETERS, elasticities
from tests.engine.test_sensitivity import MIXED, MODEL, NODES, PLANS
from tests.full import FULL

KERNELS = {
    "matrix_flop_per_s": {"rate": ("gemm",)},
    "attention_flop_per_s": {"rate": ("attention",)},
    "memory_bytes_per_s": {"bandwidth": ("",)},
}
LATENCIES = ("intra_alpha", "intra_alpha_rank", "inter_alpha", "intra_fill_s")


def with_parameter(name: str, factor: float, folder: Path) -> Cluster:
    """Return two nodes of H100 with one of `PARAMETERS` multiplied."""
    profile = json.loads((files("sim.catalog") / "profiles/h100-sxm-80gb/profile.json").read_text("utf-8"))
    for model in profile["models"]:
        for parameter, ops in KERNELS.get(name, {}).items():
            if parameter in model["parameters"] and model["op"].startswith(ops):
                model["parameters"][parameter] *= factor
        if name == "launch_s":
            model["parameters"]["t0"] *= factor
    if name == "link_latency_s":
        profile["collectives"] |= {k: v * factor for k, v in profile["collectives"].items() if k in LATENCIES}
    (folder / "profile.json").write_text(json.dumps(profile))
    usual = NODES.links
    links = {n: getattr(usual, n) for n in ("intra_bytes_per_s", "inter_bytes_per_s_per_node")}
    links["host_bytes_per_s"] = NODES.host_bytes_per_s
    return Cluster.of(
        "h100-sxm-80gb", nodes=2, profile=str(folder),
        links=Links(**{n: v * (factor if n == name else 1) for n, v in links.items()}),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("plan", [name for name in PLANS if name != "mixed"])
def test_they_are_finite_differences_of_the_simulation(plan, tmp_path):
    own = PLANS[plan][1]
    found = {e.name: e for e in elasticities(simulate(MODEL, with_parameter("", 1.0, tmp_path), own))}
    for name, e in found.items():
        if name in ("step_overhead_s", "launch_s"):
            continue  # partly run-level: their sum with the others is tested below
        h = 1e-3
        up, down = (simulate(MODEL, with_parameter(name, f, tmp_path), own).step_time_s for f in (1 + h, 1 - h))
        slope = (up - down) / (up + down) / h
        assert e.elasticity == pytest.approx(slope, abs=3e-4), name
        better = simulate(MODEL, with_parameter(name, 1 / (1 + CHANGE) if e.is_time else 1 + CHANGE, tmp_path), own)
        if plan != "no barrier":  # its order follows from the durations
            assert e.better_s == pytest.approx(better.step_time_s, rel=1e-6), name


def euler(step) -> float:
    """Return the elasticities of times less those of rates."""
    return sum((1 if e.is_time else -1) * e.elasticity for e in elasticities(step))


@pytest.mark.parametrize("plan", PLANS)
def test_all_of_it_twice_as_fast_takes_half_as_long(plan):
    cluster, own = PLANS[plan]
    assert euler(simulate(MODEL, cluster, own)) == pytest.approx(1, abs=1e-9)


@pytest.mark.slow
@given(
    st.sampled_from(sorted(models)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 1, 2, 3]), st.sampled_from(["none", "selective", "full"]), st.booleans(),
)  # fmt: skip
@settings(max_examples=20 if FULL else 2, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_the_sum_holds_for_every_family_of_models(name, tp, pp, zero, recompute, overlap):
    try:
        step = simulate(
            models[name], NODES,
            Plan(tp=tp, pp=pp, zero=zero, recompute=recompute, overlap_dp=overlap, global_batch=64),
        )  # fmt: skip
    except InputError:
        return
    assert euler(step) == pytest.approx(1, abs=1e-9)


@pytest.mark.slow
def test_all_of_it_counts_where_a_device_waits_for_its_host_too():
    alone = Cluster.of("h200-sxm-141gb", nodes=1)
    step = simulate(models["gpt2"], alone, Plan(global_batch=64, micro_batch=2, framework="torch", recompute="full"))
    assert euler(step) == pytest.approx(1, abs=1e-9)


def test_what_is_not_used_has_no_effect_and_what_is_has_a_sign():
    cluster = Cluster.of("h100-sxm-80gb", nodes=1)
    found = {e.name: e for e in elasticities(simulate(MODEL, cluster, Plan(tp=2, global_batch=64)))}
    assert list(found) == sorted(found, key=lambda n: -abs(found[n].elasticity)) and set(found) == set(PARAMETERS)
    assert found["host_bytes_per_s"].elasticity == found["inter_bytes_per_s_per_node"].elasticity == 0
    assert all(e.elasticity >= 0 if e.is_time else e.elasticity <= 0 for e in found.values())
    assert all(e.better_s <= e.worse_s for e in found.values())
    moved = elasticities(simulate(MODEL, cluster, Plan(tp=2, global_batch=64, offload=Offload(activations=1.0))))
    assert next(e for e in moved if e.name == "host_bytes_per_s").elasticity < 0


def test_a_plan_without_copies_does_not_wait_for_the_model_of_copies(monkeypatch):
    """It takes seconds to write out, which a reader of the first tornado would wait for."""
    asked = []
    monkeypatch.setitem(MODELS, "offload", lambda structure: asked.append(structure) or offload_walked(structure))
    step = simulate(MODEL, NODES, Plan(tp=2, global_batch=64))
    assert elasticities(step, 0.37) and not asked  # a change that nobody has asked for before
    elasticities(simulate(MODEL, NODES, Plan(tp=2, global_batch=64, offload=Offload(activations=1.0))), 0.37)
    assert asked


def test_on_a_mixed_cluster_the_slowest_devices_count():
    plan = PLANS["mixed"][1].but(framework="torch")
    slow = elasticities(simulate(MODEL, Cluster.of("a100-sxm-80gb", nodes=2), plan))
    mixed = elasticities(simulate(MODEL, MIXED, plan))
    # Compute is A100's on its ranks, and the pipeline goes at its pace.
    assert mixed[0].name == slow[0].name == "matrix_flop_per_s"
    assert mixed[0].elasticity == pytest.approx(slow[0].elasticity, abs=0.1)


def test_a_tiny_model_is_bound_by_what_a_step_takes_at_least():
    tiny = Model(layers=2, hidden=64, heads=2, seq=64)
    found = elasticities(simulate(tiny, Cluster.of("h100-sxm-80gb", nodes=1, gpus_per_node=1), Plan(global_batch=1)))
    assert [each.name for each in found[:2]] == ["step_overhead_s", "launch_s"]
    assert sum(each.elasticity for each in found[:2]) > 0.95 and found[0].elasticity > 0.65
