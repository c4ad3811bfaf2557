"""Decoders with LayerNorm: GPT-2, GPT-J, GPT-NeoX, StarCoder, Falcon, Phi, OPT, BLOOM, MPT, Nemotron, StableLM,
Cohere."""

from typing import Any

from sim.specs.fields import InputError
from sim.specs.hf.keys import Config, Reader, activation, flag, layer_count, need, number, only
from sim.specs.hf.llama import unrotated, windowed


def _gpt2(config: Config) -> dict[str, Any]:
    only(config, add_cross_attention=False)
    longest = config.get("n_positions", config.get("n_ctx", 1_024))
    return {
        "layers": layer_count(config, "n_layer"),
        "hidden": need(config, "n_embd"),
        "heads": need(config, "n_head"),
        "ffn": config.get("n_inner"),
        "vocab": config.get("vocab_size", 50_257),
        "seq": longest,
        "max_positions": longest,
        "dropout": config.get("resid_pdrop", 0.1),
        "activation": activation(config, "activation_function"),
        "tied_embeddings": flag(config, "tie_word_embeddings", True),
    }


def _gpt_bigcode(config: Config) -> dict[str, Any]:
    """Read StarCoder: GPT-2 with one key-value head."""
    return _gpt2(config) | {"kv_heads": 1 if flag(config, "multi_query", True) else None}


def _gptj(config: Config) -> dict[str, Any]:
    return _gpt2({"vocab_size": 50_400, "n_positions": 2_048, "resid_pdrop": 0.0, **config}) | {
        "max_positions": None,
        "positions": "rope",
        "bias": False,
        "mlp_bias": True,
        "head_bias": True,
        "tied_embeddings": flag(config, "tie_word_embeddings", False),
        "parallel_block": True,
        "block_norms": 1,
    }


def _decoder(config: Config, vocab: int, tied: bool) -> dict[str, Any]:
    return {
        "layers": layer_count(config),
        "hidden": need(config, "hidden_size"),
        "heads": need(config, "num_attention_heads"),
        "vocab": config.get("vocab_size", vocab),
        "tied_embeddings": flag(config, "tie_word_embeddings", tied),
    }


def _gpt_neox(config: Config) -> dict[str, Any]:
    return _decoder(config, 50_432, False) | {
        "ffn": need(config, "intermediate_size"),
        "seq": config.get("max_position_embeddings", 2_048),
        "dropout": config.get("hidden_dropout", 0.0),
        "positions": "rope",
        "parallel_block": flag(config, "use_parallel_residual", True),
        "bias": flag(config, "attention_bias", True),
        "mlp_bias": True,
        "activation": activation(config, "hidden_act"),
    }


def _falcon(config: Config) -> dict[str, Any]:
    """Read Falcon: one key-value head (7B) or groups (the "new decoder architecture" of 40B and 180B)."""
    new, parallel = flag(config, "new_decoder_architecture", False), flag(config, "parallel_attn", True)
    many = new or not flag(config, "multi_query", True)
    pair = number(config, "num_ln_in_parallel_attn", 0) or (2 if new else 1)
    return _decoder(config, 65_024, True) | {
        "kv_heads": config.get("num_kv_heads") if many else 1,
        "ffn": config.get("ffn_hidden_size"),
        "seq": config.get("max_position_embeddings", 2_048),
        "dropout": config.get("hidden_dropout", 0.0),
        "positions": "none" if flag(config, "alibi", False) else "rope",
        "bias": flag(config, "bias", False),
        "parallel_block": parallel or new,
        "block_norms": pair if parallel or new else 2,
    }


def _phi(config: Config) -> dict[str, Any]:
    return _decoder(config, 51_200, False) | {
        "kv_heads": config.get("num_key_value_heads"),
        "ffn": need(config, "intermediate_size"),
        "seq": config.get("max_position_embeddings", 2_048),
        "dropout": config.get("resid_pdrop", 0.0),
        "positions": "rope",
        "bias": True,
        "head_bias": True,
        "qk_norm": flag(config, "qk_layernorm", False),
        "parallel_block": True,
        "block_norms": 1,
        "activation": activation(config, "hidden_act"),
    }


def _opt(config: Config) -> dict[str, Any]:
    only(config, do_layer_norm_before=True, _remove_final_layer_norm=False, layer_norm_elementwise_affine=True)
    raw = _decoder(config, 50_272, True)
    only(config, word_embed_proj_dim=raw["hidden"])
    longest = number(config, "max_position_embeddings", 2_048)
    return raw | {
        "ffn": need(config, "ffn_dim"),
        "seq": longest,
        "max_positions": longest + 2,  # the table keeps two rows free in front
        "dropout": config.get("dropout", 0.1),
        "bias": flag(config, "enable_bias", True),
        "activation": activation(config, "activation_function", "relu"),
    }


def _bloom(config: Config) -> dict[str, Any]:
    hidden = "hidden_size" if "hidden_size" in config or "n_embed" not in config else "n_embed"
    return {
        "layers": layer_count(config, "n_layer" if "n_layer" in config else "num_hidden_layers"),
        "hidden": need(config, hidden),
        "heads": need(config, "n_head" if "n_head" in config else "num_attention_heads"),
        "vocab": config.get("vocab_size", 250_880),
        "seq": config.get("seq_length", 2_048),
        "dropout": config.get("hidden_dropout", 0.0),
        "tied_embeddings": flag(config, "tie_word_embeddings", True),
        "positions": "none",  # ALiBi
        "embedding_norm": True,
    }


def _mpt(config: Config) -> dict[str, Any]:
    only(config, no_bias=True, norm_type="low_precision_layernorm")
    attention = config.get("attn_config") or {}
    if not isinstance(attention, dict):
        raise InputError("attn_config", attention, "a mapping of keys to values")
    only(attention, attn_type="multihead_attention", alibi=True, qk_ln=False, prefix_lm=False)
    hidden = number(config, "d_model")
    return {
        "layers": layer_count(config, "n_layers"),
        "hidden": hidden,
        "heads": need(config, "n_heads"),
        "ffn": number(config, "expansion_ratio", 4) * hidden,
        "vocab": config.get("vocab_size", 50_368),
        "seq": config.get("max_seq_len", 2_048),
        "dropout": config.get("resid_pdrop", 0.0),
        "tied_embeddings": flag(config, "tie_word_embeddings", True),
        "positions": "none",  # ALiBi
        "bias": False,
        "norm_bias": False,
    }


def _nemotron(config: Config) -> dict[str, Any]:
    """Read Nemotron-4: squared ReLU without a gate, LayerNorm with weights around one."""
    attention_bias = flag(config, "attention_bias", False)
    return _decoder(config, 256_000, False) | {
        "head_dim": config.get("head_dim"),
        "kv_heads": config.get("num_key_value_heads"),
        "ffn": need(config, "intermediate_size"),
        "seq": config.get("max_position_embeddings", 4_096),
        "dropout": config.get("attention_dropout", 0.0),
        "positions": "rope",
        "bias": attention_bias,
        "mlp_bias": flag(config, "mlp_bias", False),
    }


def _starcoder2(config: Config) -> dict[str, Any]:
    bias, window = flag(config, "use_bias", True), number(config, "sliding_window", 0)
    raw = _decoder(config, 49_152, True)
    return raw | {
        "kv_heads": config.get("num_key_value_heads", 2),
        "ffn": need(config, "intermediate_size"),
        "seq": config.get("max_position_embeddings", 4_096),
        "dropout": config.get("residual_dropout", 0.0),
        "positions": "rope",
        "bias": bias,
        "activation": activation(config, "hidden_act"),
        "window": window,
        "pattern": ("W" if window else "T") * raw["layers"],
    }


def _gated(config: Config, vocab: int, seq: int, tied: bool) -> dict[str, Any]:
    """Return what StableLM and Cohere share: a gated MLP, and no biases beside it."""
    return _decoder(config, vocab, tied) | {
        "kv_heads": config.get("num_key_value_heads"),
        "ffn": need(config, "intermediate_size"),
        "gated_mlp": True,
        "seq": config.get("max_position_embeddings", seq),
        "positions": "rope",
        "mlp_bias": False,
    }


def _stablelm(config: Config) -> dict[str, Any]:
    only(config, qk_layernorm=False)
    parallel = flag(config, "use_parallel_residual", False)
    return _gated(config, 50_304, 4_096, False) | {
        "dropout": config.get("hidden_dropout", 0.0),
        "bias": False,
        "qkv_bias": flag(config, "use_qkv_bias", False),
        "parallel_block": parallel,
        "block_norms": 1 if parallel else 2,
    }


def _cohere(config: Config) -> dict[str, Any]:
    """Read Command R: a parallel block behind one norm without bias."""
    only(config, use_qk_norm=False)
    return _gated(config, 256_000, 8_192, True) | {
        "dropout": config.get("attention_dropout", 0.0),
        "bias": flag(config, "attention_bias", False),
        "norm_bias": False,
        "parallel_block": True,
        "block_norms": 1,
    }


def _cohere2(config: Config) -> dict[str, Any]:
    """Read Command R7B and A: one layer in four sees everything, without rotary positions."""
    raw = _cohere(config)
    window, every = number(config, "sliding_window", 4_096), number(config, "sliding_window_pattern", 4, least=1)
    raw = windowed(raw, config, window, lambda i: (i + 1) % every > 0)
    return raw | {"notes": unrotated([letter == "W" for letter in raw["pattern"]])}


READERS: dict[str, Reader] = {
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gptj": _gptj,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
    "phi": _phi,
    "opt": _opt,
    "bloom": _bloom,
    "mpt": _mpt,
    "nemotron": _nemotron,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "cohere": _cohere,
    "cohere2": _cohere2,
}
