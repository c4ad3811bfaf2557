"""FLOP of every kind of layer against what torch counts in a forward pass."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from sim.specs import Model
from tests.specs.layers import layer, linear

SMALL = {"hidden": 64, "heads": 4, "vocab": 256, "seq": 32}
EXPERTS = {"experts": 8, "experts_per_token": 2, "moe_ffn": 24}
MLA = {"head_dim": 8, "rope_head_dim": 4, "v_head_dim": 12, "kv_lora_rank": 20}
SSM = {"ssm_heads": 8, "ssm_head_dim": 16, "ssm_groups": 2, "ssm_state": 24, "ssm_chunk": 8}
MODERN = {"norm": "rmsnorm", "gated_mlp": True, "ffn": 96}
MODELS = {
    "gpt": Model(layers=1, **SMALL),
    "llama": Model(layers=1, kv_heads=2, **SMALL, **MODERN),
    "qwen3": Model(layers=1, kv_heads=1, head_dim=24, qk_norm=True, **SMALL, **MODERN),
    "window": Model(layers=4, window=8, global_every=2, **SMALL, **MODERN),
    "mixtral": Model(layers=1, **SMALL, **MODERN, **EXPERTS),
    "qwen2-moe": Model(layers=2, shared_ffn=40, shared_gate=True, moe_every=2, **SMALL, **MODERN, **EXPERTS),
    "ungated experts": Model(layers=1, **SMALL, **EXPERTS),
    "deepseek": Model(
        layers=2, dense_layers=1, shared_ffn=24, q_lora_rank=16, mtp_layers=1, **SMALL, **MODERN, **EXPERTS, **MLA
    ),
    "deepseek-lite": Model(layers=1, **SMALL, **MODERN, **MLA),
    "bert": Model(family="encoder", layers=1, **SMALL),
    "t5": Model(family="encoder-decoder", layers=2, encoder_layers=1, encoder_seq=48, head_dim=24, **SMALL, **MODERN),
    "nemotron": Model(layers=4, pattern="M*-E", moe_latent=16, shared_ffn=40, **SMALL, **EXPERTS, **SSM),
    "recurrent": Model(layers=2, pattern="LG", **SMALL),
}
LAYERS = [(name, block) for name, model in MODELS.items() for block in model.blocks]


def counted(run) -> int:
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize(("name", "block"), LAYERS, ids=[f"{name}-{block.letter}" for name, block in LAYERS])
def test_a_layer_does_what_it_is_said_to_do(name, block):
    def run():
        layer(block, torch.empty(block.seq, block.model.hidden), torch.empty(block.model.encoder_seq, 64))

    expected = block.seq * (2 * block.active_products + block.core_flop("palm"))
    assert counted(run) == expected


def test_every_letter_is_counted():
    assert {block.letter for _, block in LAYERS} == set("TWXNCPM*-ELG")


def test_bert_with_its_head():
    m = MODELS["bert"]

    def run():
        (block,) = m.blocks
        x = layer(block, torch.empty(m.seq, m.hidden), torch.empty(0, m.hidden))
        linear(linear(x, m.hidden), m.vocab)

    assert 3 * counted(run) == m.flop_per_sample()


def test_vit_with_patches_and_classifier():
    m = Model(family="vit", layers=1, hidden=64, heads=4, image_size=32, patch=8, classes=10)

    def run():
        (block,) = m.blocks
        patches = functional.conv2d(torch.empty(1, 3, 32, 32), torch.empty(64, 3, 8, 8), stride=8).flatten(2)[0].T
        x = layer(block, torch.cat([torch.empty(1, 64), patches]), torch.empty(0, 64))
        linear(x[:1], m.classes)

    assert m.seq == 17
    assert 3 * counted(run) == m.flop_per_sample()


def test_llama_with_logits_but_for_the_mask():
    m = MODELS["llama"]

    def run():
        (block,) = m.blocks
        linear(layer(block, torch.empty(m.seq, m.hidden), torch.empty(0, m.hidden)), m.vocab)

    (block,) = m.blocks
    masked = m.seq * (block.core_flop("palm") - block.core_flop())
    assert counted(run) - masked == m.flop_per_sample() / 3


@pytest.mark.parametrize(("window", "seq"), [(0, 64), (16, 64), (64, 64), (100, 64), (1, 64)])
def test_keys_are_the_mask_s(window, seq):
    """The mean number of keys of the mask itself; the formulas leave out the half key of the diagonal."""
    rows, columns = torch.arange(seq)[:, None], torch.arange(seq)[None]
    seen = (columns <= rows) & ((columns > rows - window) if window else True)
    model = Model(layers=1, hidden=64, heads=4, window=window, seq=seq)
    (block,) = model.blocks
    assert block.keys() == pytest.approx(seen.sum(1).float().mean().item(), abs=0.51)
    assert block.keys("palm") == seq
