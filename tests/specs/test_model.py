"""Parameter counts and FLOP against published figures."""

from dataclasses import replace

import pytest

from sim.specs import Model
from sim.specs.catalog import models

# Sources: Meta Llama 2 and 3 model cards (HF safetensors totals), HF gpt2-xl; Narayanan et al. 2021 Table 1.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "gpt2-xl": 1_557_611_200,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_parameters_are_exact(name, parameters):
    assert models[name].parameters == parameters


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "billions"),
    [
        (24, 2304, 24, 1.7),
        (36, 4096, 32, 7.5),
        (60, 10240, 80, 76.1),
        (80, 12288, 96, 145.6),
        (128, 25600, 160, 1008.0),
    ],
)
def test_parameters_of_ptdp_table_1(layers, hidden, heads, billions):
    model = Model(layers=layers, hidden=hidden, heads=heads, vocab=51200, seq=2048)
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.06)


def test_flop_is_ptdp_equation_3():
    """Equation 3 counts recompute; without it F = 72 B s l h^2 (1 + s/6h + V/12lh), no causal discount."""
    m = models["gpt3-175b"]
    s, layers, h, vocab = m.seq, m.layers, m.hidden, m.vocab
    published = 72 * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    causal = 72 * layers * h**2 * s / (6 * h) / 2
    assert m.flop_per_token() == pytest.approx(published - causal, rel=1e-12)


def test_palm_convention():
    m = models["llama3-8b"]
    assert m.flop_per_token("palm") == 6 * m.parameters + 12 * m.layers * m.query_width * m.seq


def test_palm_convention_counts_the_parameters_that_an_encoders_tokens_pass():
    """Its layers, and keys and values of cross-attention."""
    decoder, encoder = 100, 300
    m = replace(models["t5-base"], seq=decoder, encoder_seq=encoder)
    encoding, decoding = m.blocks
    keys_and_values = 12 * 2 * m.hidden * m.kv_width
    core = 12 * m.query_width * 12 * (encoder**2 + decoder * (decoder + encoder))
    moved = 12 * encoding.parameters + keys_and_values
    assert decoding.encoding_parameters * 12 == keys_and_values
    assert m.flop_per_sample("palm") == 6 * (m.parameters * decoder + moved * (encoder - decoder)) + core


def test_grouped_query_widths():
    m = models["llama3-70b"]
    assert (m.query_width, m.kv_width, m.head_dim) == (8192, 1024, 128)
