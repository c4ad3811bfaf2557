"""Decoder blocks with cross-attention: saved bytes against saved-tensor hooks, and their operations."""

from functools import lru_cache

import pytest
import torch
from torch.nn.functional import gelu, scaled_dot_product_attention, softmax

from calibration.tracing.trace import trace
from sim.costs import inputs
from sim.costs.algebra import Interpreted
from sim.costs.layers.block import block
from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, symbol_values
from sim.specs import Cluster, Model, Plan
from tests import reference_modules as ref
from tests.costs.test_memory import saved_bytes
from tests.full import full
from tests.reference_modules.heads import merge_heads, split_heads

SEQ, ENCODER, HIDDEN, HEADS, FFN, VOCAB = 32, 16, 64, 4, 96, 100


class Attention(ref.T5Attention):
    """Fused, or over stored scores with dropout where there is one."""

    eager, dropout = True, 0.0

    def forward(self, x, memory, bias):
        q, k, v = split_heads(self.q(x), self.heads), *(split_heads(f(memory), self.heads) for f in (self.k, self.v))
        if not self.eager:
            return self.out(merge_heads(scaled_dot_product_attention(q, k, v, is_causal=bias is not None)))
        scores = q @ k.transpose(-1, -2)
        weights = softmax(scores if bias is None else scores + bias, dim=-1)
        return self.out(merge_heads(dropped(weights, self.dropout) @ v))


class Decoder(ref.T5Layer):
    dropout = 0.0

    def forward(self, x, bias, memory=None):
        if self.cross is None:
            return super().forward(x, bias, memory)
        y = self.norms[0](x)
        x = x + dropped(self.attention(y, y, bias), self.dropout)
        x = x + dropped(self.cross(self.norms[1](x), memory, None), self.dropout)
        y = self.norms[2](x)
        return x + dropped(self.down(gelu(self.gate(y)) * self.up(y)), self.dropout)


def dropped(x, p):
    return torch.native_dropout(x, p, True)[0] if p else x


def decoder(**given):
    """Return a network of one layer that attends to an encoder's output."""
    return Model(
        layers=1, pattern="C", encoder_seq=ENCODER, hidden=HIDDEN, heads=HEADS, ffn=FFN, vocab=VOCAB, seq=SEQ,
        norm="rmsnorm", gated_mlp=True, positions="relative", **given,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "dropout"), [("eager", 0.1), ("flash", 0.0), full("eager", 0.0), full("flash", 0.1)]
)
def test_a_decoder_block_saves_these_bytes(attention, dropout):
    """Beside them the GELU that a fused gated MLP computes again; a fused kernel makes the masks of its scores again.

    The first such block keeps the encoder's output too, for all of them.
    """
    made = ref.T5(2, 2, HIDDEN, HEADS, HIDDEN // HEADS, FFN, VOCAB, gated=True)
    for layer in made.decoder:
        layer.__class__, layer.dropout = Decoder, dropout
        for part in (layer.attention, layer.cross):
            part.__class__, part.eager, part.dropout = Attention, attention == "eager", dropout
    lengths = (ENCODER, SEQ)
    table = trace(made, lambda b: tuple(torch.zeros(b, n, dtype=torch.long) for n in lengths), ["encoder", "decoder"])
    (found,) = (layer for layer in table.layers if layer.name == "decoder.1")
    expected = saved_bytes(decoder(attention=attention, dropout=dropout), "bf16")
    assert found.saved_bytes == (0, expected + 2 * SEQ * FFN)


@lru_cache
def operations(attention, dropout, quantity):
    """Return FLOP, or bytes, of the operations of a decoder block by name."""
    model, cluster = decoder(attention=attention, dropout=dropout), Cluster.of("h100-sxm-80gb")
    placed = Plan(global_batch=8).on(model, cluster)
    values = inputs.model_values(model) | inputs.cluster_values(cluster, load_profile("h100-sxm-80gb"))
    values |= inputs.plan_values(model, placed, cluster) | symbol_values(RunLevel())
    held = {op.name: getattr(op, quantity) for op in block(Structure.of(model).kinds[0], 0)}
    return {name: float(x) for name, x in Interpreted(held)(values).items()}


def test_stored_scores_of_cross_attention_are_those_of_all_of_the_encoders_output():
    flop, moved = (operations("eager", 0.1, quantity) for quantity in ("flop", "bytes"))
    scores = HEADS * SEQ * ENCODER
    each = [flop[f"cross {part} forward"] for part in ("scores", "context")]
    assert each == [2 * scores * HIDDEN / HEADS] * 2
    assert sum(each) == operations("flash", 0.1, "flop")["cross attention forward"]
    assert moved["cross softmax"] == 2 * 2 * scores
    assert moved["cross attention dropout"] == (2 + 1 + 2) * scores


def test_the_residual_of_cross_attention_has_the_blocks_dropout():
    element = SEQ * HIDDEN
    found = [operations("flash", dropout, "bytes")["cross residual"] for dropout in (0.0, 0.1)]
    assert found == [3 * 2 * element, (3 * 2 + 1) * element]
