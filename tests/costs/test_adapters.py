"""Low-rank adapters (LoRA): what they compute, keep, train and send, against modules of plain torch."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from calibration.tracing.trace import trace
from sim.checkpointing.state import state_of
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.adapters import ADAPTED
from tests import reference_modules as ref
from tests.costs.test_memory import saved_bytes

SEQ, HIDDEN, HEADS, FFN, VOCAB, RANK = 32, 64, 4, 96, 100, 4
MODEL = Model(
    layers=2, hidden=HIDDEN, heads=HEADS, kv_heads=2, ffn=FFN, vocab=VOCAB, seq=SEQ, norm="rmsnorm", gated_mlp=True,
    positions="rope", tied_embeddings=False, bias=False, adapter_rank=RANK,
)  # fmt: skip
LINEARS = {
    "qkv": ("attention.q", "attention.k", "attention.v"),
    "attention out": ("attention.out",),
    "mlp up": ("mlp.gate", "mlp.up"),
    "mlp down": ("mlp.down",),
}
"""Products of the model by those of a block of the network."""


class Adapted(nn.Module):
    """A frozen product and its adapter (arXiv 2106.09685, equation 3)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.low = nn.Linear(frozen.in_features, RANK, bias=False)
        self.high = nn.Linear(RANK, frozen.out_features, bias=False)

    def forward(self, x):
        return self.frozen(x) + 2.0 * self.high(self.low(x))


def network(on):
    made = ref.Llama(2, HIDDEN, HEADS, 2, FFN, VOCAB).requires_grad_(False)
    for block in made.blocks:
        for path in (path for product in ADAPTED[on] for path in LINEARS[product]):
            parent, name = path.split(".")
            held = getattr(block, parent)
            setattr(held, name, Adapted(getattr(held, name)))
    return made


def apart(on):
    """Adapters that the network has beyond the model's: one for each of queries, keys, values, gate and up."""
    return 2 + (on == "all")


@pytest.fixture(scope="module", params=["qkv", "attention", "all"])
def pair(request):
    made = network(request.param)
    table = trace(made, lambda batch: (torch.zeros(batch, SEQ, dtype=torch.long),), dtype=torch.bfloat16)
    return request.param, table, replace(MODEL, adapters_on=request.param)


def test_parameters_and_those_trained(pair):
    on, table, model = pair
    more = model.layers * apart(on) * RANK * HIDDEN
    assert table.parameters == model.parameters + more
    assert sum(layer.count * layer.trainable_parameters for layer in table.layers) == model.trained_parameters + more


def test_a_block_saves_these_bytes(pair):
    """Beside them the SiLU that a fused SwiGLU computes again."""
    on, table, model = pair
    *_, block = (layer for layer in table.layers if layer.name.startswith("blocks"))
    assert block.saved_bytes == (0, saved_bytes(model, "bf16") + 2 * SEQ * (FFN + apart(on) * RANK))


@pytest.mark.parametrize("phase", ["forward", "backward_input", "backward_weight"])
def test_products_of_a_block_by_phase(pair, phase):
    on, table, model = pair
    *_, block = (layer for layer in table.layers if layer.name.startswith("blocks"))
    traced = sum(op.count * op.flop(1, phase) for op in block.ops(phase) if op.kind == "gemm")
    step = simulate(model, Cluster.of("h100-sxm-80gb", nodes=1), Plan(global_batch=8, framework="torch"))
    names = [product for products in LINEARS for product in (products, f"{products} adapter")]
    own = [op for op in step.operations if op.phase == phase and op.name.startswith(tuple(names))]
    products = sum(op.flop for op in own)
    # Each adapter that is apart reads as many columns again.
    assert traced == products + apart(on) * 2 * SEQ * RANK * HIDDEN


def test_model_flop_are_those_of_its_products():
    """Forward and gradients of what products read; those of the adapters' weights alone."""
    step = simulate(MODEL, Cluster.of("h100-sxm-80gb", nodes=1), Plan(global_batch=8, framework="torch"))
    made = sum(op.count * op.flop for op in step.operations)
    attention = sum(op.count * op.flop for op in step.operations if op.name.startswith("attention backward"))
    core = attention / 2.5  # recomputed scores are no model FLOP
    assert MODEL.flop_per_sample() == pytest.approx(made - attention + 2 * core)


def large(**given):
    usual = {
        "layers": 8,
        "hidden": 6144,
        "heads": 48,
        "vocab": 32_000,
        "seq": 4096,
        "norm": "rmsnorm",
        "gated_mlp": True,
    }
    return Model(**usual | given)


@pytest.mark.parametrize(
    "given",
    [
        {"tp": 2, "sequence_parallel": True}, {"pp": 2, "schedule": "1f1b", "zero": 1}, {"recompute": "full"},
        {"framework": "torch", "zero": 3}, {"framework": "torch", "recompute": "selective"},
        {"micro_batch": 2, "cp": 2},
        {"pp": 4, "schedule": "zb-h1"}, {"tp": 2, "precision": "fp8"},
    ],
    ids=str,
)  # fmt: skip
def test_steps_of_any_plan_are_faster_and_smaller(given):
    plan = Plan(**{"global_batch": 32, "micro_batch": 1} | given)
    cluster = Cluster.of("h100-sxm-80gb", nodes=1)
    whole, step = (simulate(large(adapter_rank=rank), cluster, plan) for rank in (0, 16))
    assert 0.55 < step.step_time_s / whole.step_time_s < 0.95
    assert step.peak_memory_bytes < whole.peak_memory_bytes


def test_gradients_of_adapters_alone_are_reduced():
    plan, cluster = Plan(global_batch=16, micro_batch=1, overlap_dp=False), Cluster.of("h100-sxm-80gb", nodes=1)
    whole, step = (simulate(large(adapter_rank=rank), cluster, plan) for rank in (0, 16))
    assert 0 < step.breakdown["dp"] < whole.breakdown["dp"] / 20


def test_optimizer_states_and_checkpoints_are_the_adapters():
    plan = Plan(global_batch=8, pp=2, schedule="1f1b")
    cluster = Cluster.of("h100-sxm-80gb", nodes=1)
    model = large(adapter_rank=16)
    state = state_of(simulate(model, cluster, plan))
    assert state.total_bytes == model.trained_parameters * (2 + 12)
    assert state.total_bytes < state_of(simulate(large(), cluster, plan)).total_bytes / 100


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"pattern": "MMMMMMMM"}, "adapter_rank"), ({"pattern": "L" * 8}, "adapter_rank"),
        ({"kv_lora_rank": 64, "rope_head_dim": 32}, "adapter_rank"), ({"adapter_rank": 8192}, "adapter_rank"),
        ({"family": "vit", "seq": 197, "vocab": 1000}, "adapter_rank"), ({"mtp_layers": 1}, "adapter_rank"),
        ({"experts": 8, "adapters_on": "all"}, "adapters_on"), ({"adapters_on": "head"}, "adapters_on"),
    ],
)  # fmt: skip
def test_networks_without_room_for_adapters_are_refused(given, path):
    with pytest.raises(InputError) as error:
        large(**{"adapter_rank": 8} | given)
    assert error.value.path.endswith(path)


def test_experts_may_lie_between_adapters():
    model = large(adapter_rank=16, experts=8, ffn=2048)
    cluster = Cluster.of("h100-sxm-80gb", nodes=1)
    step = simulate(model, cluster, Plan(global_batch=32, ep=4))
    assert not [op for op in step.operations if op.phase == "backward_weight" and "adapter" not in op.name]
    assert step.step_time_s < simulate(replace(model, adapter_rank=0), cluster, Plan(global_batch=32, ep=4)).step_time_s


def test_what_is_assumed_of_adapters_is_said():
    said = [[text for text in large(adapter_rank=rank).assumptions if text.startswith("adapters: ")] for rank in (0, 8)]
    assert [len(texts) for texts in said] == [0, 1]


def test_where_adapters_stand_means_nothing_without_any():
    assert "model.adapters_on = all is ignored: no layer has an adapter" in large(adapters_on="all").assumptions
