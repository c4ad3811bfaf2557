"""Decoders with a mixture of experts: Mixtral, Qwen MoE, DeepSeek (multi-head latent attention), Kimi K2, GPT-OSS."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sim.specs.fields import InputError
from sim.specs.hf.keys import Config, Reader, flag, need, number, only, pattern
from sim.specs.hf.llama import base, qwen_window


def _mixtral(config: Config) -> dict[str, Any]:
    raw = base(config, 32_000, 131_072)
    window = number(config, "sliding_window", 0)
    return raw | {
        "kv_heads": config.get("num_key_value_heads", 8),
        "experts": config.get("num_local_experts", 8),
        "experts_per_token": config.get("num_experts_per_tok", 2),
        "moe_ffn": raw["ffn"],
        "window": window,
        "pattern": pattern(config, raw["layers"], lambda i: window > 0, lambda i: True),
    }


def _sparse(config: Config) -> Callable[[int], bool]:
    """Return which layers of a Qwen MoE have experts: one in `decoder_sparse_step`, without `mlp_only_layers`."""
    step, dense = number(config, "decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or step < 1:
        raise InputError("mlp_only_layers", dense, "a list of layer numbers, and decoder_sparse_step of 1 or more")
    return lambda i: i not in dense and (i + 1) % step == 0


def _qwen2_moe(config: Config) -> dict[str, Any]:
    raw, window = base(config, 151_936, 32_768), qwen_window(config)
    first = number(config, "max_window_layers", 28)
    return raw | {
        "kv_heads": config.get("num_key_value_heads", 16),
        "qkv_bias": flag(config, "qkv_bias", True),
        "experts": config.get("num_experts", 60),
        "experts_per_token": config.get("num_experts_per_tok", 4),
        "moe_ffn": config.get("moe_intermediate_size", 1_408),
        "shared_ffn": config.get("shared_expert_intermediate_size", 5_632),
        "shared_gate": True,
        "window": window,
        "pattern": pattern(config, raw["layers"], lambda i: window > 0 and i >= first, _sparse(config)),
    }


def _qwen3_moe(config: Config) -> dict[str, Any]:
    raw, window = base(config, 151_936, 32_768), qwen_window(config)
    return raw | {
        "kv_heads": config.get("num_key_value_heads", 4),
        "qk_norm": True,
        "experts": config.get("num_experts", 128),
        "experts_per_token": config.get("num_experts_per_tok", 8),
        "moe_ffn": config.get("moe_intermediate_size", 768),
        "window": window,
        "pattern": pattern(config, raw["layers"], lambda i: window > 0, _sparse(config)),
    }


V2 = {"moe_intermediate_size": 1_407, "n_routed_experts": 64, "n_shared_experts": 2, "vocab_size": 102_400}
V3 = {"moe_intermediate_size": 2_048, "n_routed_experts": 256, "n_shared_experts": 1, "vocab_size": 129_280}
V2 |= {"first_k_dense_replace": 0, "max_position_embeddings": 2_048, "num_nextn_predict_layers": 0}
V3 |= {"first_k_dense_replace": 3, "max_position_embeddings": 4_096, "num_nextn_predict_layers": 1}
V3 |= {"num_experts_per_tok": 8}


def _deepseek(config: Config, defaults: dict[str, int]) -> dict[str, Any]:
    """Read DeepSeek-V2 and V3; the router's correction bias is a buffer of theirs, not a parameter."""
    only(config, attention_bias=False, moe_layer_freq=1, mlp_bias=False)
    config = defaults | dict(config)
    raw = base(config, 0, 0)
    routed, dense = number(config, "n_routed_experts"), number(config, "first_k_dense_replace")
    if config.get("num_key_value_heads") not in (None, raw["heads"]):
        raise InputError("num_key_value_heads", config["num_key_value_heads"], "num_attention_heads: it has no groups")
    predict = "num_mtp_layers" if "num_mtp_layers" in config else "num_nextn_predict_layers"
    return raw | {
        "kv_heads": None,
        "head_dim": number(config, "qk_nope_head_dim", 128),
        "rope_head_dim": number(config, "qk_rope_head_dim", 64),
        "v_head_dim": number(config, "v_head_dim", 128),
        "q_lora_rank": number(config, "q_lora_rank", 1_536),
        "kv_lora_rank": number(config, "kv_lora_rank", 512),
        "experts": routed,
        "experts_per_token": need(config, "num_experts_per_tok") if routed else None,
        "moe_ffn": config["moe_intermediate_size"],
        "shared_ffn": number(config, "n_shared_experts") * number(config, "moe_intermediate_size"),
        "dense_layers": dense,
        "pattern": pattern(config, raw["layers"], moe=lambda i: routed > 0 and i >= dense),
        "mtp_layers": number(config, predict),
    }


def _gpt_oss(config: Config) -> dict[str, Any]:
    raw, window = base(config, 201_088, 131_072), number(config, "sliding_window", 128)
    bias = flag(config, "attention_bias", True)
    return raw | {
        "head_dim": config.get("head_dim", 64),
        "kv_heads": config.get("num_key_value_heads", 8),
        "bias": bias,
        "mlp_bias": True,
        "sinks": True,
        "experts": config.get("num_local_experts", 128),
        "experts_per_token": config.get("num_experts_per_tok", 4),
        "moe_ffn": raw["ffn"],
        "router_bias": True,
        "window": window,
        "pattern": pattern(config, raw["layers"], lambda i: window > 0 and (i + 1) % 2 > 0, lambda i: True),
    }


READERS: dict[str, Reader] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": partial(_deepseek, defaults=V2),
    "deepseek_v3": partial(_deepseek, defaults=V3),
    "kimi_k2": partial(_deepseek, defaults=V3 | {"num_nextn_predict_layers": 0}),
    "gpt_oss": _gpt_oss,
}
