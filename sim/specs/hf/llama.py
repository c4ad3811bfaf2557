"""Dense decoders with RMSNorm, rotary positions and a gated MLP: Llama, Mistral, Qwen, Gemma, Phi-3."""

from collections.abc import Callable
from functools import partial
from typing import Any

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


READERS: dict[str, Reader] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": partial(_gemma, every=2),
    "gemma3_text": _gemma3,
    "phi3": _phi3,
}
