"""What PyTorch spends beyond fused kernels: RMS norms in parts, partial results of ring attention added up."""

from dataclasses import replace

import pytest

from sim.costs import volume
from sim.engine.step import simulate
from sim.specs import Cluster, Model, Plan
from sim.specs.catalog import models

NODE = Cluster.of("h100-sxm-80gb", nodes=1)
PLAN = Plan(global_batch=8, zero=3, framework="torch", software_year=2024.9)


def busy(model: Model, plan: Plan) -> float:
    """Return the seconds that kernels take in a step at the rates of the software's own date."""
    return simulate(model, NODE, plan).breakdown_s["compute"]


@pytest.mark.parametrize(
    ("change", "parts"),
    [({}, True), ({"compiled": True}, False), ({"framework": "megatron", "zero": 1}, False)],
)
def test_an_rms_norm_was_a_row_of_kernels_in_pytorch_until_it_had_one(change, parts) -> None:
    model, plan = models["llama3-8b"], replace(PLAN, **change)
    before, after = (busy(model, replace(plan, software_year=year)) for year in (2025.74, 2025.75))
    assert (before / after > 1.05) is parts


def test_a_layer_norm_has_always_been_one_kernel() -> None:
    model = replace(models["llama3-8b"], norm="layernorm", norm_bias=True)
    assert busy(model, replace(PLAN, software_year=2025.74)) == pytest.approx(
        busy(model, replace(PLAN, software_year=2025.75)), rel=1e-3
    )


def test_parts_move_every_intermediate_result() -> None:
    # Forward in bf16: cast 2 + 4, square 4 + 4, mean 4, by the root 4 + 4, by the weight 4 + 4, cast 4 + 2.
    assert volume.composite_norm("forward", 2) == 6 + 8 + 4 + 8 + 8 + 6
    # Backward: cast; dx and dw of the weight (8, 12 and its sum 4); the same of the root; the square's factor and
    # product (8 + 8); the sum of both ways to x (12); cast.
    assert volume.composite_norm("backward", 2) == 6 + (8 + 12 + 4) + (8 + 12 + 4) + 16 + 12 + 6


def test_ring_attention_adds_partial_results_up_in_pytorch() -> None:
    model, same = models["llama3-8b"], {"zero": 1, "cross_entropy": "autograd", "fused_wgrad": True}
    for cp, more in ((1, False), (2, True), (8, True)):
        plans = [Plan(global_batch=8, cp=cp, framework=name, **same) for name in ("torch", "megatron")]
        torch, megatron = (busy(model, plan) for plan in plans)
        assert (torch > 1.005 * megatron) is more
        assert torch >= megatron
