"""What Megatron-Core's experts do beside their products: rows are sorted (`MoEAlltoAllTokenDispatcher`), and biases of
the outputs weighted and added (`TEGroupedMLP._apply_bias`)."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sim.costs import volume
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan

MODEL = Model(
    name="experts", layers=2, hidden=1024, heads=16, vocab=32_000, seq=1024, experts=8, experts_per_token=2,
    moe_ffn=2048, mlp_bias=True,
)  # fmt: skip
CLUSTER = Cluster.of("h100-sxm-80gb", nodes=1)
EXPERTS, ROWS, WIDTH = 4, 256, 512


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write, and those of them that work on the rows of one expert."""

    def __init__(self):
        super().__init__()
        self.bytes, self.launches = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.__name__ != "detach.default":
            held = [t for t in tree_leaves((args, out)) if isinstance(t, torch.Tensor)]
            self.bytes += sum(t.numel() * t.element_size() for t in held)
            self.launches += max(t.numel() for t in held) == ROWS * WIDTH
        return out


def test_bytes_and_launches_are_those_of_pytorch():
    x = torch.randn(EXPERTS * ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    biases = [torch.randn(WIDTH, dtype=torch.bfloat16, requires_grad=True) for _ in range(EXPERTS)]
    weights = torch.rand(EXPERTS * ROWS, 1, requires_grad=True)
    with Traffic() as forward:
        parts = zip(x.split([ROWS] * EXPERTS), biases, weights.split([ROWS] * EXPERTS), strict=True)
        y = torch.cat([t + b * p for t, b, p in parts]).to(x.dtype)
    gradient = torch.ones_like(y)
    with Traffic() as backward:
        torch.autograd.grad(y, [x, *biases, weights], gradient)
    for way, found, launches in (("forward", forward, 2), ("backward", backward, 5)):
        assert found.bytes == pytest.approx(volume.weighted_bias(way, 2) * x.numel(), rel=0.003)
        assert found.launches == launches * EXPERTS


def test_clamped_halves_take_the_bytes_of_pytorch():
    """`weighted_bias_quick_geglu_impl`, before its fused part."""
    x = torch.randn(ROWS, 2 * WIDTH, dtype=torch.bfloat16, requires_grad=True)
    with Traffic() as forward:
        gate, linear = x.chunk(2, -1)
        y = torch.cat((gate.clamp(min=None, max=7.0), linear.clamp(min=-7.0, max=7.0)), -1)
    gradient = torch.ones_like(y)
    with Traffic() as backward:
        torch.autograd.grad(y, [x], gradient)
    for way, found in (("forward", forward), ("backward", backward)):
        assert found.bytes == pytest.approx(volume.clamp(way, 2) * x.numel(), rel=0.003)


def test_clamped_halves_cost_time_and_memory():
    clamped = replace(MODEL, gated_mlp=True, mlp_bias=False, activation_limit=7.0)
    given = {"global_batch": 8, "micro_batch": 1, "ep": 4, "token_dispatcher": "deepep"}
    plan = Plan(**given)
    found = {op.name: op.bytes for op in simulate(clamped, CLUSTER, plan).operations if "clamp" in op.name}
    wide = 2 * 1024 * 2 * 2048
    assert found == {"expert clamp": 8 * wide, "expert clamp dgrad": 15 * wide}
    held, before = (
        simulate(m, CLUSTER, plan).peak_memory_bytes for m in (clamped, replace(clamped, activation_limit=0))
    )
    assert held - before == 2 * 2 * wide  # of both layers, in 16 bits
    again = replace(plan, recompute="selective")
    held, before = (
        simulate(m, CLUSTER, again).peak_memory_bytes for m in (clamped, replace(clamped, activation_limit=0))
    )
    assert held - before <= 2 * wide
    for other in (Plan(**given | {"framework": "torch"}), Plan(**given | {"core_modules": False})):
        assert not [op for op in simulate(clamped, CLUSTER, other).operations if "clamp" in op.name]


@pytest.mark.parametrize(
    ("given", "padded"),
    [
        ({}, 0),
        ({"precision": "fp8"}, 4),
        ({"precision": "fp8", "token_dispatcher": "deepep"}, 4),
        ({"precision": "fp8", "token_dispatcher": "hybridep"}, 0),
    ],
)
def test_rows_of_experts_are_padded_for_products_of_few_bits(given, padded):
    """Twice read and written in either pass; HybridEP delivers them so."""
    plan = Plan(**{"global_batch": 8, "micro_batch": 1, "ep": 4} | given)
    found = [op for op in simulate(MODEL, CLUSTER, plan).operations if op.name.startswith("expert padding")]
    assert sum(op.launches for op in found) == padded
    assert all(op.bytes == 2 * 2 * 2 * 1024 * 2 * 1024 for op in found)


def test_hybrid_ep_sends_the_weights_of_all_experts_and_what_goes_where():
    """As many as there are: DeepEP's exchanges do not grow with experts that nobody chose."""
    found = {
        (name, experts): simulate(
            replace(MODEL, experts=experts),
            CLUSTER,
            Plan(global_batch=8, micro_batch=1, ep=4, token_dispatcher=name),
        ).breakdown_s["ep"]
        for name in ("deepep", "hybridep")
        for experts in (8, 512)
    }
    assert found["deepep", 8] == found["deepep", 512] < found["hybridep", 8] < 1.3 * found["deepep", 8]
    assert found["hybridep", 512] > 1.2 * found["hybridep", 8]


def test_products_of_experts_may_activate_and_cast_what_they_give():
    """Only in Megatron-Core's layers: the activation is gone, and so is what casts its result and its gradient read."""
    given = {"global_batch": 8, "micro_batch": 1, "ep": 4, "precision": "mxfp8"}
    devices, rows, width = Cluster.of("b200", nodes=1), 1024 * 2, 2048
    apart, fused, torch = (
        {op.name: op for op in simulate(MODEL, devices, Plan(**given | more)).operations}
        for more in ({}, {"fused_experts": True}, {"fused_experts": True, "framework": "torch"})
    )
    assert set(apart) - set(fused) == {"expert activation", "expert activation dgrad"}
    less = {name: apart[name].bytes - op.bytes for name, op in fused.items() if op.bytes != apart[name].bytes}
    assert less == pytest.approx({"expert mlp down": 2 * rows * width, "expert mlp up dgrad": 2 * rows * width})
    assert all(fused[name].seconds < apart[name].seconds for name in less)
    assert "expert activation" in torch
    with pytest.raises(InputError, match=r"plan.fused_experts.*false with precision bf16"):
        simulate(MODEL, devices, Plan(**given | {"precision": "bf16", "fused_experts": True}))


def test_selective_recompute_may_repeat_all_that_experts_do():
    """Router, exchanges and products once more, not the attention; what experts save is dropped."""
    given = {"global_batch": 8, "micro_batch": 1, "ep": 4, "recompute": "selective"}
    some, all_ = (simulate(MODEL, CLUSTER, Plan(**given, recompute_experts=on)) for on in (False, True))
    full = simulate(MODEL, CLUSTER, Plan(**given | {"recompute": "full"}))
    assert some.step_time_s < all_.step_time_s < full.step_time_s
    again = all_.breakdown_s["recompute"] - some.breakdown_s["recompute"]
    forward = [op for op in all_.operations if op.phase == "forward" and op.name.startswith(("expert mlp", "router"))]
    assert again > sum(op.seconds * op.count for op in forward)
    rows, width = 1024 * 2, 2048
    saved = 2 * rows * (2 * 1024 + width) + 4 * 1024 * 8  # permuted rows, outputs, what the activation reads; weights
    assert some.peak_memory_bytes - all_.peak_memory_bytes == 2 * saved  # of both layers, when the head runs
    torch = [simulate(MODEL, CLUSTER, Plan(**given, framework="torch", recompute_experts=on)) for on in (False, True)]
    assert torch[0].step_time_s == torch[1].step_time_s


def extra(model=MODEL, **given):
    step = simulate(model, CLUSTER, Plan(**{"global_batch": 8, "micro_batch": 1, "ep": 4} | given))
    return {op.name: op for op in step.operations if op.name.startswith(("expert bias", "sort"))}


def test_every_local_expert_adds_its_own_bias():
    forward, backward = (extra()[name] for name in ("expert bias", "expert bias dgrad"))
    rows = 1024 * 2
    assert (forward.bytes, backward.bytes) == (28 * rows * 1024, 40 * rows * 1024)
    assert (forward.launches, backward.launches) == (2 * 2, 5 * 2)
    assert extra(ep=2)["expert bias"].launches == 2 * 4


@pytest.mark.parametrize("name", ["sort", "sort dgrad"])
def test_rows_are_sorted_for_local_experts_and_back(name):
    """Twice read and written, in 16 bits."""
    found = extra()[name]
    assert (found.bytes, found.launches) == (2 * 2 * 2 * 1024 * 2 * 1024, 2)
    assert name in extra(ep=1)


@pytest.mark.parametrize("given", [{"ep": 8}, {"token_dispatcher": "deepep"}])
def test_one_local_expert_and_tokens_sent_once_need_no_sorting(given):
    assert set(extra(**given)) == {"expert bias", "expert bias dgrad"}


def test_nobody_else_pays_for_them():
    assert set(extra(replace(MODEL, mlp_bias=False))) == {"sort", "sort dgrad"}
    assert not extra(framework="torch")
    assert not extra(core_modules=False)
