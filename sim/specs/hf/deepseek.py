"""DeepSeek, and decoders with its experts (some of them shared), its latent attention, or both: Kimi, GLM, dots.llm1,
Solar, Hunyuan 3, Mistral Small 4, MiniCPM3, Youtu."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sim.specs.fields import InputError
from sim.specs.hf.keys import Config, Reader, flag, listed, need, number, only, pattern
from sim.specs.hf.llama import base

V2 = {"moe_intermediate_size": 1_407, "n_routed_experts": 64, "n_shared_experts": 2, "vocab_size": 102_400}
V3 = {"moe_intermediate_size": 2_048, "n_routed_experts": 256, "n_shared_experts": 1, "vocab_size": 129_280}
V2 |= {"first_k_dense_replace": 0, "max_position_embeddings": 2_048, "num_nextn_predict_layers": 0}
V3 |= {"first_k_dense_replace": 3, "max_position_embeddings": 4_096, "num_nextn_predict_layers": 1}
V3 |= {"num_experts_per_tok": 8}
LITE = {"moe_intermediate_size": 1_536, "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4}
LITE |= {"first_k_dense_replace": 1, "max_position_embeddings": 202_752, "vocab_size": 154_880}
LITE |= {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256}
SMALL4 = {"moe_intermediate_size": 2_048, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 4}
SMALL4 |= {"q_lora_rank": 1_024, "kv_lora_rank": 256, "qk_nope_head_dim": 64}
SMALL4 |= {"max_position_embeddings": 1_048_576, "vocab_size": 131_072}
MINICPM = {"vocab_size": 73_448, "max_position_embeddings": 32_768, "tie_word_embeddings": True}
MINICPM |= {"q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
YOUTU = {"vocab_size": 128_256, "max_position_embeddings": 131_072, "tie_word_embeddings": True}
GLM = {"moe_intermediate_size": 1_408, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8}
GLM |= {"first_k_dense_replace": 1, "max_position_embeddings": 131_072, "vocab_size": 151_552}
GLM |= {"num_key_value_heads": 8, "num_nextn_predict_layers": 1}
DOTS = {"moe_intermediate_size": 1_408, "vocab_size": 152_064, "max_position_embeddings": 2_048}
DOTS |= {"num_key_value_heads": 32}
SOLAR = {"moe_intermediate_size": 1_280, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8}
SOLAR |= {"max_position_embeddings": 131_072, "vocab_size": 196_608, "num_key_value_heads": 8, "head_dim": 128}
HY3 = {"moe_intermediate_size": 1_536, "num_experts": 192, "num_shared_experts": 1, "num_experts_per_tok": 8}
HY3 |= {"first_k_dense_replace": 1, "max_position_embeddings": 131_072, "vocab_size": 120_832}
HY3 |= {"num_key_value_heads": 8, "head_dim": 128}


def _experts(config: Config, layers: int, local: Callable[[int], bool] = lambda i: False) -> dict[str, Any]:
    """Return the experts, and the modules of multi-token prediction with a block of them.

    The first layers are dense, or those that `mlp_layer_types` names. The router's correction bias is a buffer of
    theirs, not a parameter.
    """
    only(config, moe_layer_freq=1, mlp_bias=False)
    routed, dense = number(config, "n_routed_experts", 0), number(config, "first_k_dense_replace", 0)
    types = listed(config, "mlp_layer_types", ("dense", "sparse"), layers)
    sparse = [i >= dense for i in range(layers)] if types is None else [word == "sparse" for word in types]
    predict = "num_mtp_layers" if "num_mtp_layers" in config else "num_nextn_predict_layers"
    return {
        "experts": routed,
        "experts_per_token": need(config, "num_experts_per_tok") if routed else None,
        "moe_ffn": config.get("moe_intermediate_size"),
        "shared_ffn": number(config, "n_shared_experts", 0) * number(config, "moe_intermediate_size", 0),
        "dense_layers": dense,
        "pattern": pattern(config, layers, local, lambda i: routed > 0 and sparse[i]),
        "mtp_layers": number(config, predict, 0),
    }


def _latent(config: Config, defaults: Config) -> dict[str, Any]:
    """Read a model with multi-head latent attention."""
    only(config, attention_bias=False)
    config = {**defaults, **config}
    raw = base(config, 0, 0)
    if config.get("num_key_value_heads") not in (None, raw["heads"]):
        raise InputError("num_key_value_heads", config["num_key_value_heads"], "num_attention_heads: it has no groups")
    return (
        raw
        | {
            "kv_heads": None,
            "head_dim": number(config, "qk_nope_head_dim", 128),
            "rope_head_dim": number(config, "qk_rope_head_dim", 64),
            "v_head_dim": number(config, "v_head_dim", 128),
            "q_lora_rank": number(config, "q_lora_rank", 1_536),
            "kv_lora_rank": number(config, "kv_lora_rank", 512),
        }
        | _experts(config, raw["layers"])
    )


def _minicpm3(config: Config) -> dict[str, Any]:
    width = number(config, "hidden_size") // number(config, "num_attention_heads", least=1)
    return _latent(config, MINICPM | {"v_head_dim": width})


def _grouped(config: Config, defaults: Config, local: Callable[[int], bool] = lambda i: False) -> dict[str, Any]:
    """Read a model with attention in groups, on the layers that `local` names within a window."""
    config = {**defaults, **config}
    raw = base(config, 0, 0)
    return raw | _experts(config, raw["layers"], local)


def _glm4_moe(config: Config) -> dict[str, Any]:
    """Read GLM-4.5 and its successors: biases on queries, keys and values alone."""
    raw = _grouped(config, GLM)
    return raw | {"qkv_bias": raw["bias"], "bias": False, "qk_norm": flag(config, "use_qk_norm", False)}


def _glm4v_moe(config: Config) -> dict[str, Any]:
    known = {"attention_bias": True, "num_nextn_predict_layers": 0}
    return _glm4_moe({**known, "vocab_size": 151_424, "max_position_embeddings": 65_536, **config})


def _dots1(config: Config) -> dict[str, Any]:
    first, window = number(config, "max_window_layers", 62), number(config, "sliding_window", 4_096)
    raw = _grouped(config, DOTS, lambda i: window > 0 and i >= first)
    return raw | {"qk_norm": True, "window": window if set(raw["pattern"]) & set("WY") else 0}


def _solar_open(config: Config) -> dict[str, Any]:
    """Read Solar Open, all of whose layers have experts: the width of a dense MLP means nothing."""
    return _grouped(config, SOLAR | {"intermediate_size": config.get("moe_intermediate_size", 1_280)})


def _hy3(config: Config) -> dict[str, Any]:
    """Read Hunyuan 3, which calls the numbers of experts otherwise."""
    known = HY3 | dict(config)
    named = {"n_routed_experts": known["num_experts"], "n_shared_experts": known["num_shared_experts"]}
    return _grouped(known, named) | {"qk_norm": True}


READERS: dict[str, Reader] = {
    "deepseek_v2": partial(_latent, defaults=V2),
    "deepseek_v3": partial(_latent, defaults=V3),
    "kimi_k2": partial(_latent, defaults=V3 | {"num_nextn_predict_layers": 0}),
    "glm4_moe_lite": partial(_latent, defaults=LITE),
    "mistral4": partial(_latent, defaults=SMALL4),
    "minicpm3": _minicpm3,
    "youtu": partial(_latent, defaults=YOUTU),
    "glm4_moe": _glm4_moe,
    "glm4v_moe_text": _glm4v_moe,
    "dots1": _dots1,
    "solar_open": _solar_open,
    "hy_v3": _hy3,
}
