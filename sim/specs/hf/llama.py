"""Dense decoders with RMSNorm, rotary positions and a gated MLP: Llama, Mistral, Qwen, Gemma, Phi-3, Granite, GLM,
EXAONE, OLMo, ERNIE, Hunyuan, SmolLM, Seed-OSS."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sim.specs.fields import InputError
from sim.specs.hf.keys import Config, Reader, flag, layer_count, need, number, only, pattern


def base(config: Config, vocab: int, seq: int, tied: bool = False) -> dict[str, Any]:
    """Return what the family shares; `vocab`, `seq` and `tied` are the config class's defaults."""
    attention_bias = flag(config, "attention_bias", False)
    return {
        "layers": layer_count(config),
        "hidden": need(config, "hidden_size"),
        "heads": need(config, "num_attention_heads"),
        "head_dim": config.get("head_dim"),
        "kv_heads": config.get("num_key_value_heads"),
        "ffn": need(config, "intermediate_size"),
        "gated_mlp": True,
        "vocab": config.get("vocab_size", vocab),
        "seq": config.get("max_position_embeddings", seq),
        "norm": "rmsnorm",
        "dropout": config.get("attention_dropout", 0.0),
        "tied_embeddings": flag(config, "tie_word_embeddings", tied),
        "bias": attention_bias,
        "mlp_bias": flag(config, "mlp_bias", False),
        "positions": "rope",
    }


def windowed(raw: dict[str, Any], config: Config, window: int, local: Callable[[int], bool]) -> dict[str, Any]:
    """Return `raw` with a sliding `window` (0: none) on the layers that `local`, or `layer_types`, names."""
    return raw | {"window": window, "pattern": pattern(config, raw["layers"], lambda i: window > 0 and local(i))}


def _llama(config: Config) -> dict[str, Any]:
    return base(config, 32_000, 2_048)


def _mistral(config: Config) -> dict[str, Any]:
    raw = base(config, 32_000, 131_072)
    raw["kv_heads"] = config.get("num_key_value_heads", 8)
    return windowed(raw, config, number(config, "sliding_window", 4_096), lambda i: True)


def qwen_window(config: Config) -> int:
    """Return the sliding window of a Qwen config, 0 where it is switched off."""
    return number(config, "sliding_window", 4_096) if flag(config, "use_sliding_window", False) else 0


def _qwen2(config: Config) -> dict[str, Any]:
    raw = base(config, 151_936, 32_768) | {"qkv_bias": True}
    raw["kv_heads"] = config.get("num_key_value_heads", 32)
    first = number(config, "max_window_layers", 28)
    return windowed(raw, config, qwen_window(config), lambda i: i >= first)


def _qwen3(config: Config) -> dict[str, Any]:
    raw = _qwen2(config) | {"qkv_bias": flag(config, "attention_bias", False), "qk_norm": True}
    return raw | {"head_dim": config.get("head_dim", 128)}


def _gemma(config: Config, every: int = 1, vocab: int = 256_000, seq: int = 8_192) -> dict[str, Any]:
    raw = base(config, vocab, seq, tied=True) | {"head_dim": config.get("head_dim", 256)}
    if every == 1:
        raw["kv_heads"] = config.get("num_key_value_heads", 16)
        return raw
    raw |= {"kv_heads": config.get("num_key_value_heads", 4), "block_norms": 4}
    return windowed(raw, config, number(config, "sliding_window", 4_096), lambda i: (i + 1) % every > 0)


def _gemma3(config: Config) -> dict[str, Any]:
    only(config, use_bidirectional_attention=False)
    written = {"num_attention_heads": 8} | dict(config)  # published configs leave it to the class
    every = number(config, "sliding_window_pattern", 6)
    return _gemma(written, max(every, 2), 262_208, 131_072) | {"qk_norm": True}


def _phi3(config: Config) -> dict[str, Any]:
    raw = base(config, 32_064, 4_096) | {"dropout": config.get("resid_pdrop", 0.0)}
    return windowed(raw, config, number(config, "sliding_window", 0), lambda i: True)


def unrotated(rotates: list[bool]) -> tuple[str, ...]:
    """Return what to say of a model in which only the layers that `rotates` names have rotary positions."""
    if all(rotates):
        return ()
    return (f"model.positions = rope (counted in every layer; {rotates.count(False)} of {len(rotates)} have none)",)


def rotating(config: Config, layers: int) -> list[bool]:
    """Return which layers have rotary positions: `no_rope_layers` is 1 for those, 0 for the others."""
    held = config.get("no_rope_layers")
    if not held:
        every = number(config, "no_rope_layer_interval", 4, least=1)
        return [(i + 1) % every > 0 for i in range(layers)]
    if not isinstance(held, list) or len(held) != layers:
        raise InputError("no_rope_layers", held, f"a list of num_hidden_layers = {layers} numbers, 0 or 1")
    return [bool(each) for each in held]


def _smollm3(config: Config) -> dict[str, Any]:
    raw, window = base(config, 128_256, 32_768, tied=True), 0
    if flag(config, "use_sliding_window", False):
        window = number(config, "sliding_window", 0)
    rotates = rotating(config, raw["layers"])
    raw |= {"kv_heads": config.get("num_key_value_heads", 4), "notes": unrotated(rotates)}
    return windowed(raw, config, window, lambda i: not rotates[i])


def _seed_oss(config: Config) -> dict[str, Any]:
    return base(config, 155_136, 524_288) | {
        "kv_heads": config.get("num_key_value_heads", 8),
        "head_dim": config.get("head_dim", 128),
        "qkv_bias": flag(config, "attention_bias", True),
        "bias": flag(config, "attention_out_bias", False),
        "dropout": config.get("residual_dropout", 0.1),
    }


def _ernie(config: Config) -> dict[str, Any]:
    only(config, use_bias=False)
    return base(config, 103_424, 131_072, tied=True) | {
        "kv_heads": config.get("num_key_value_heads", 2),
        "head_dim": config.get("head_dim", 128),
    }


def _glm(config: Config, norms: int) -> dict[str, Any]:
    """Read GLM-4: biases on queries, keys and values alone; the 2025 models (`glm4`) have four norms a block."""
    return base(config, 151_552, 131_072) | {
        "kv_heads": config.get("num_key_value_heads", 2),
        "head_dim": config.get("head_dim", 128),
        "qkv_bias": flag(config, "attention_bias", True),
        "bias": False,
        "block_norms": norms,
    }


def _glm4v(config: Config) -> dict[str, Any]:
    only(config, attention_bias=True)
    return _glm({"max_position_embeddings": 32_768, **config}, norms=4)


def _cwm(config: Config) -> dict[str, Any]:
    raw = base(config, 128_256, 131_072) | {"head_dim": config.get("head_dim", 128)}
    raw["kv_heads"] = config.get("num_key_value_heads", 8)
    return windowed(raw, config, number(config, "sliding_window", 8_192), lambda i: i % 4 > 0)


def _exaone4(config: Config) -> dict[str, Any]:
    """Read EXAONE 4: norms behind the sub-layers; with a window the layers without one have no rotary positions."""
    raw = base(config, 102_400, 2_048) | {"kv_heads": config.get("num_key_value_heads", 32), "qk_norm": True}
    window = number(config, "sliding_window", 4_096)
    raw = windowed(raw, config, window, lambda i: (i + 1) % number(config, "sliding_window_pattern", 4, least=1) > 0)
    return raw | {"notes": unrotated([letter == "W" or not window for letter in raw["pattern"]])}


def whole_norms(raw: dict[str, Any], config: Config) -> dict[str, Any]:
    """Return `raw` with norms of queries and keys over all heads: OLMo 2, OLMoE."""
    only(config, clip_qkv=None)
    return raw | {"qk_norm": True, "whole_qk_norm": True}


def _olmo2(config: Config) -> dict[str, Any]:
    return whole_norms(base(config, 50_304, 2_048), config)


def _olmo3(config: Config) -> dict[str, Any]:
    return windowed(_olmo2(config), config, number(config, "sliding_window", 4_096), lambda i: (i + 1) % 4 > 0)


def _hunyuan(config: Config) -> dict[str, Any]:
    only(config, use_qk_norm=True, use_cla=False)
    return base(config, 290_943, 2_048) | {"qk_norm": True}


def _ministral3(config: Config) -> dict[str, Any]:
    raw = base(config, 131_072, 262_144) | {"head_dim": config.get("head_dim", 128)}
    raw["kv_heads"] = config.get("num_key_value_heads", 8)
    return windowed(raw, config, number(config, "sliding_window", 0), lambda i: True)


def _qwen_vl(config: Config) -> dict[str, Any]:
    """Read the text part of Qwen2-VL and Qwen2.5-VL: a Qwen2."""
    known = {"vocab_size": 152_064, "num_key_value_heads": 8, "max_window_layers": 80}
    return _qwen2(known | dict(config))


def _qwen3_vl(config: Config) -> dict[str, Any]:
    return _qwen3({"max_position_embeddings": 128_000} | dict(config))


READERS: dict[str, Reader] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": partial(_gemma, every=2),
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "granite": _llama,  # its multipliers have no parameters
    "smollm3": _smollm3,
    "seed_oss": _seed_oss,
    "ernie4_5": _ernie,
    "glm": partial(_glm, norms=2),
    "glm4": partial(_glm, norms=4),
    "glm4v_text": _glm4v,
    "cwm": _cwm,
    "exaone4": _exaone4,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "hunyuan_v1_dense": _hunyuan,
    "ministral3": _ministral3,
    "qwen2_vl_text": _qwen_vl,
    "qwen2_5_vl_text": _qwen_vl,
    "qwen3_vl_text": _qwen3_vl,
}
