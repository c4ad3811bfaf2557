"""Saved bytes of grouped queries, experts and latent attention against saved-tensor hooks, in bf16 and fp32.

The hooks see a network in plain torch whose kernels CUDA has fused (`calibration.tracing`). What it saves beyond the
formulas is counted: the SiLU that a fused SwiGLU computes again, and what a fused or hand-written permutation, router
or projection does without.
"""

import pytest
import torch

from calibration.tracing.trace import trace
from sim.specs import Model
from tests import reference_modules as ref
from tests.costs.test_memory import saved_bytes
from tests.full import full

SEQ, HIDDEN, HEADS, FFN, VOCAB = 32, 64, 4, 96, 100
EXPERTS, TOP, MOE_FFN, SHARED = 4, 2, 32, 48
LATENT = {"q_lora": 24, "kv_lora": 16, "nope": 8, "rope": 4, "value_dim": 8}
ROUTED = SEQ * TOP


def grouped(e):
    """Nothing beside the MLP's SiLU."""
    return {"kv_heads": 2}, {}, e * SEQ * FFN


def normed(e):
    """Norms of every head's queries and keys keep what they read, and a statistic a row."""
    return {"kv_heads": 2, "qk_norm": True}, {"qk_norm": True}, e * SEQ * FFN


def whole_normed(e):
    """The same of all heads at once, with one statistic a row."""
    return {"kv_heads": 2, "qk_norm": True, "whole_qk_norm": True}, {"qk_norm": "whole"}, e * SEQ * FFN


def experts(e, shared=0):
    """`index_add` keeps the weighted rows; 64-bit numbers of tokens, rows and chosen experts; weights of the rows, and
    probabilities in the data type where ours are in fp32."""
    model = {"experts": EXPERTS, "experts_per_token": TOP, "moe_ffn": MOE_FFN, "kv_heads": 2, "shared_ffn": shared}
    silu = e * (ROUTED * MOE_FFN + SEQ * shared)
    routing = 3 * 8 * ROUTED + e * ROUTED + (e - 4) * SEQ * EXPERTS
    network = {"moe": {"ffn": MOE_FFN, "experts": EXPERTS, "top": TOP, "shared_ffn": shared}}
    return model, network, silu + e * ROUTED * HIDDEN + routing


def latent(e):
    """Views keep whole storages: the latent with its rotary part, the values with the keys they were made with."""
    model = {
        "q_lora_rank": LATENT["q_lora"], "kv_lora_rank": LATENT["kv_lora"], "rope_head_dim": LATENT["rope"],
        "head_dim": LATENT["nope"], "v_head_dim": LATENT["value_dim"],
    }  # fmt: skip
    views = e * SEQ * (LATENT["rope"] + HEADS * LATENT["nope"])
    return model, {"latent": LATENT}, e * SEQ * FFN + views


CASES = {
    "grouped": grouped,
    "normed": normed,
    "whole normed": whole_normed,
    "experts": experts,
    "shared experts": lambda e: experts(e, SHARED),
    "latent": latent,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), full("fp32", torch.float32)])
def test_a_block_saves_these_bytes(name, precision, dtype):
    given, network, beside = CASES[name](dtype.itemsize)
    model = Model(
        layers=2, hidden=HIDDEN, heads=HEADS, ffn=FFN, vocab=VOCAB, seq=SEQ, norm="rmsnorm", gated_mlp=True,
        positions="rope", tied_embeddings=False, bias=False, qkv_bias=False, mlp_bias=False, **given,
    )  # fmt: skip
    made = ref.Llama(2, HIDDEN, HEADS, 2, FFN, VOCAB, **network)
    table = trace(made, lambda batch: (torch.zeros(batch, SEQ, dtype=torch.long),), dtype=dtype)
    (block,) = (layer for layer in table.layers if layer.name == "blocks.0")
    assert table.parameters == model.parameters
    assert block.saved_bytes == (0, saved_bytes(model, precision) + beside)


class SideBySide(ref.LlamaBlock):
    """Attention and MLP read the same hidden state, through a norm each or one for both."""

    def forward(self, x, angles):
        own = self.norm1(x)
        return x + self.attention(own, angles) + self.mlp(self.norm2(x) if self.norm2 else own)


@pytest.mark.parametrize("norms", [1, 2])
def test_a_block_whose_halves_stand_side_by_side(norms):
    model = Model(
        layers=2, hidden=HIDDEN, heads=HEADS, kv_heads=2, ffn=FFN, vocab=VOCAB, seq=SEQ, norm="rmsnorm",
        gated_mlp=True, positions="rope", tied_embeddings=False, bias=False, qkv_bias=False, mlp_bias=False,
        parallel_block=True, block_norms=norms,
    )  # fmt: skip
    made = ref.Llama(2, HIDDEN, HEADS, 2, FFN, VOCAB)
    for block in made.blocks:
        block.__class__ = SideBySide
        block.norm2 = block.norm2 if norms == 2 else None
    table = trace(made, lambda batch: (torch.zeros(batch, SEQ, dtype=torch.long),), dtype=torch.bfloat16)
    (block,) = (layer for layer in table.layers if layer.name == "blocks.0")
    assert table.parameters == model.parameters
    assert block.saved_bytes == (0, saved_bytes(model, "bf16") + 2 * SEQ * FFN)
