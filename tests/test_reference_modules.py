"""The reference networks have the parameter counts of the models they stand for (config.json dimensions)."""

import pytest
import torch

from tests import reference_modules as ref

LITE = {"q_lora": None, "kv_lora": 512, "nope": 128, "rope": 64, "value_dim": 128}
LITE_MOE = {"ffn": 1408, "experts": 64, "top": 6, "shared_ffn": 2816}
MODELS = {
    "GPT-2": (lambda: ref.GPT(12, 768, 12, 50_257, 1024), 124_439_808),
    "Llama-3-8B": (lambda: ref.Llama(32, 4096, 32, 8, 14_336, 128_256), 8_030_261_248),
    "Mixtral-8x7B": (
        lambda: ref.Llama(32, 4096, 32, 8, 0, 32_000, moe={"ffn": 14_336, "experts": 8, "top": 2}),
        46_702_792_704,
    ),
    "Qwen3-8B": (lambda: ref.Llama(36, 4096, 32, 8, 12_288, 151_936, 128, qk_norm=True), 8_190_735_360),
    "DeepSeek-V2-Lite": (
        lambda: ref.Llama(27, 2048, 16, 16, 10_944, 102_400, latent=LITE, moe=LITE_MOE, dense_layers=1),
        15_706_484_224,
    ),
    "BERT base": (lambda: ref.BertModel(12, 768, 12, 3072, 30_522, 512), 109_514_298),
    "T5 base": (lambda: ref.T5(12, 12, 768, 12, 64, 3072, 32_128), 222_903_552),
    "ViT-B/16": (lambda: ref.ViT(12, 768, 12, 3072), 86_567_656),
    "ResNet-50": (ref.ResNet, 25_557_032),
    "Mamba2-130m": (lambda: ref.Mamba2(24, 768, 50_288), 128_989_632),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameter_counts(name):
    make, parameters = MODELS[name]
    with torch.device("meta"):
        assert sum(p.numel() for p in make().parameters()) == parameters


def test_latent_attention_of_deepseek_v3():
    """arXiv 2412.19437, section 4.2: ranks 1536 and 512, 128 heads of 128 + 64."""
    with torch.device("meta"):
        made = ref.LatentAttention(7168, 128, 1536, 512, 128, 64, 128)
    h, width = 7168, 128 * (128 + 64)
    expected = h * 1536 + 1536 + 1536 * width + h * (512 + 64) + 512 + 512 * 128 * 256 + 128 * 128 * h
    assert sum(p.numel() for p in made.parameters()) == expected


def test_window_mask_sees_the_last_keys_only():
    seen = ref.window_mask(5, 2).int().tolist()
    assert seen == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize("latent", [None, {"q_lora": 8, "kv_lora": 8, "nope": 4, "rope": 4, "value_dim": 6}])
def test_decoders_are_causal(latent):
    torch.manual_seed(0)
    model = ref.Llama(2, 16, 4, 2, 24, 11, latent=latent).eval()
    tokens = torch.randint(11, (1, 9))
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % 11
    a, b = model(tokens), model(changed)
    assert torch.allclose(a[:, :6], b[:, :6], atol=1e-6)
    assert not torch.allclose(a[:, 6:], b[:, 6:], atol=1e-6)


def test_mamba2_is_causal():
    torch.manual_seed(0)
    model = ref.Mamba2(2, 16, 11, state=4, head_dim=8).eval()
    tokens = torch.randint(11, (1, 9))
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % 11
    assert torch.allclose(model(tokens)[:, :6], model(changed)[:, :6], atol=1e-6)
