"""Decoders with a mixture of experts: Mixtral, Qwen MoE, GPT-OSS, Granite, OLMoE, MiniMax-M2, Phi-3.5, Llama 4, ERNIE,
Hunyuan."""

from collections.abc import Callable
from typing import Any

from sim.specs.blocks import block_letter
from sim.specs.fields import InputError
from sim.specs.hf.keys import Config, Reader, flag, number, only, pattern
from sim.specs.hf.llama import base, qwen_window, rotating, unrotated, whole_norms


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
        "activation_limit": config.get("swiglu_limit", 7.0),
        "router_bias": True,
        "window": window,
        "pattern": pattern(config, raw["layers"], lambda i: window > 0 and (i + 1) % 2 > 0, lambda i: True),
    }


def _granitemoe(config: Config) -> dict[str, Any]:
    raw = base(config, 32_000, 2_048)
    return raw | {
        "experts": config.get("num_local_experts", 8),
        "experts_per_token": config.get("num_experts_per_tok", 2),
        "moe_ffn": raw["ffn"],
        "pattern": "X" * raw["layers"],
    }


def _olmoe(config: Config) -> dict[str, Any]:
    raw = base(config, 50_304, 4_096)
    return whole_norms(raw, config) | {
        "kv_heads": config.get("num_key_value_heads", 16),
        "experts": config.get("num_experts", 64),
        "experts_per_token": config.get("num_experts_per_tok", 8),
        "moe_ffn": raw["ffn"],
        "pattern": "X" * raw["layers"],
    }


def _minimax_m2(config: Config) -> dict[str, Any]:
    """Read MiniMax-M2 without its modules of multi-token prediction, which the library leaves out too."""
    only(config, use_qk_norm=True)
    predicted = number(config, "num_mtp_modules", 0)
    raw = base(config, 200_064, 196_608)
    return whole_norms(raw, config) | {
        "kv_heads": config.get("num_key_value_heads", 8),
        "head_dim": config.get("head_dim", 128),
        "experts": config.get("num_local_experts", 256),
        "experts_per_token": config.get("num_experts_per_tok", 8),
        "moe_ffn": raw["ffn"],
        "shared_ffn": number(config, "shared_intermediate_size", 0),
        "pattern": "X" * raw["layers"],
        "notes": [f"model.mtp_layers = 0 (the config's {predicted} are left out)"] * (predicted > 0),
    }


def _phimoe(config: Config) -> dict[str, Any]:
    """Read Phi-3.5-MoE: LayerNorm, biases in attention and at the head."""
    raw, window = base(config, 32_064, 131_072), number(config, "sliding_window", 0)
    return raw | {
        "kv_heads": config.get("num_key_value_heads", 8),
        "norm": "layernorm",
        "head_bias": flag(config, "lm_head_bias", False),
        "experts": config.get("num_local_experts", 16),
        "experts_per_token": config.get("num_experts_per_tok", 2),
        "moe_ffn": raw["ffn"],
        "window": window,
        "pattern": pattern(config, raw["layers"], lambda i: window > 0, lambda i: True),
    }


def _qwen3_vl_moe(config: Config) -> dict[str, Any]:
    known = {"num_key_value_heads": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 1_408}
    known["num_experts"] = config.get("num_local_experts", 60)  # as the library saves it; published: num_experts
    return _qwen3_moe(known | {"max_position_embeddings": 128_000} | dict(config))


def _llama4(config: Config) -> dict[str, Any]:
    """Read the text part of Llama 4: a shared expert as wide as a routed one, in some layers a wide MLP instead."""
    raw = base({"intermediate_size": 8_192} | dict(config), 202_048, 131_072)
    layers, step = raw["layers"], number(config, "interleave_moe_layer_step", 1, least=1)
    held = config.get("moe_layers")
    held = list(range(step - 1, layers, step)) if held is None else held
    if not isinstance(held, list) or any(type(i) is not int or not 0 <= i < layers for i in held):
        raise InputError("moe_layers", held, f"a list of numbers from 0 to {layers - 1}")
    rotates, chunk = rotating(config, layers), number(config, "attention_chunk_size", 8_192)
    chunked = (
        f"model: attention within chunks of {chunk} tokens is counted as over all of seq: too much where that is longer"
    )
    normed = flag(config, "use_qk_norm", True)
    weightless = "model.qk_norm = False (norms of queries and keys without weights are left out)"
    return raw | {
        "kv_heads": config.get("num_key_value_heads", 8),
        "head_dim": config.get("head_dim", 128),
        "ffn": config.get("intermediate_size_mlp", 16_384),
        "experts": config.get("num_local_experts", 16),
        "experts_per_token": config.get("num_experts_per_tok", 1),
        "moe_ffn": raw["ffn"],
        "shared_ffn": raw["ffn"],
        "pattern": "".join(block_letter(False, i in held) for i in range(layers)),
        "notes": (*unrotated(rotates), *[weightless] * normed, *[chunked] * (chunk > 0)),
    }


def _ernie_moe(config: Config) -> dict[str, Any]:
    """Read ERNIE 4.5: the router's correction is a parameter of the library's."""
    only(config, use_bias=False)
    raw = base(config, 103_424, 131_072, tied=True)
    every, first = number(config, "moe_layer_interval", 1, least=1), number(config, "moe_layer_start_index", 1)
    last = config.get("moe_layer_end_index", -1)
    last = raw["layers"] - 1 if last == -1 else number(config, "moe_layer_end_index")
    width = number(config, "moe_intermediate_size", 1_536)
    return raw | {
        "kv_heads": config.get("num_key_value_heads", 4),
        "experts": config.get("moe_num_experts", 64),
        "experts_per_token": config.get("moe_k", 6),
        "moe_ffn": width,
        "shared_ffn": number(config, "moe_num_shared_experts", 2) * width,
        "router_bias": True,
        "pattern": pattern(config, raw["layers"], moe=lambda i: first <= i <= last and (i + 1) % every == 0),
    }


def _hunyuan_moe(config: Config) -> dict[str, Any]:
    """Read Hunyuan-A13B: one shared expert; what it lists for every layer has to be one number."""
    only(config, use_qk_norm=True, use_cla=False)
    raw = base(config, 290_943, 2_048)
    visits, width = _alike(config, "moe_topk", 1), _alike(config, "moe_intermediate_size", raw["ffn"])
    only({"moe_intermediate_size": width}, moe_intermediate_size=raw["ffn"])
    only({"num_shared_expert": _alike(config, "num_shared_expert", 1)}, num_shared_expert=1)
    return raw | {
        "qk_norm": True,
        "experts": config.get("num_experts", 1),
        "experts_per_token": visits,
        "moe_ffn": raw["ffn"],
        "shared_ffn": raw["ffn"],
        "pattern": "X" * raw["layers"],
    }


def _alike(config: Config, key: str, default: Any) -> Any:
    """Return the value at `key`, or the one value of a list of equal ones."""
    held = config.get(key, default)
    if not isinstance(held, list):
        return held
    if not held or any(each != held[0] for each in held):
        raise InputError(key, held, "the same number for every layer")
    return held[0]


READERS: dict[str, Reader] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "granitemoe": _granitemoe,
    "olmoe": _olmoe,
    "minimax_m2": _minimax_m2,
    "phimoe": _phimoe,
    "qwen3_vl_moe_text": _qwen3_vl_moe,
    "llama4_text": _llama4,
    "ernie4_5_moe": _ernie_moe,
    "hunyuan_v1_moe": _hunyuan_moe,
}
