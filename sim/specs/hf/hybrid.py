"""Mamba-2, and its hybrids: Nemotron-H and Nemotron 3, whose layers are one sub-layer each, Bamba and Granite 4.

A layer of the last two is a mixer and an MLP or experts, which are two letters of a pattern here.
"""

from typing import Any

from sim.specs.fields import InputError
from sim.specs.hf.keys import MOST_LAYERS, Config, Reader, flag, layer_count, listed, need, number, only

WORDS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}


def _letters(config: Config, words: str, letters: str) -> str | None:
    """Return a pattern given as a list of words or as letters; None where the config has neither."""
    found = config.get(words)
    if found is None:
        text = config.get(letters)
        if text is not None and (not isinstance(text, str) or set(text) - set("M*-E") or len(text) > MOST_LAYERS):
            raise InputError(letters, text, "letters of M*-E")
        return text
    if not isinstance(found, list) or len(found) > MOST_LAYERS:
        raise InputError(words, found, "a list of words")
    wrong = [word for word in found if not isinstance(word, str) or word not in WORDS]
    if wrong:
        raise InputError(words, wrong[0], "one of " + ", ".join(WORDS))
    return "".join(WORDS[word] for word in found)


def _experts(config: Config) -> dict[str, Any]:
    return {
        "experts": config.get("n_routed_experts", 8),
        "experts_per_token": config.get("num_experts_per_tok", 2),
        "moe_ffn": config.get("moe_intermediate_size", 7_688),
        "shared_ffn": number(config, "moe_shared_expert_intermediate_size", 7_688),
        "moe_latent": number(config, "moe_latent_size", 0),
    }


def _nemotron_h(config: Config) -> dict[str, Any]:
    only(config, use_conv_bias=True, mamba_proj_bias=False, use_bias=False, sliding_window=None)
    letters = _letters(config, "layers_block_type", "hybrid_override_pattern")
    if letters is None:
        raise InputError("hybrid_override_pattern", None, "required in this config.json, or layers_block_type")
    if number(config, "num_hidden_layers", len(letters)) != len(letters):
        raise InputError("num_hidden_layers", config["num_hidden_layers"], f"{len(letters)}, as the pattern is long")
    predicted = number(config, "num_nextn_predict_layers", 0)
    repeated = _letters(config, "mtp_layers_block_type", "mtp_hybrid_override_pattern") or "*E"
    if predicted and (repeated != "*E" or "E" not in letters):
        raise InputError("mtp_hybrid_override_pattern", repeated, "*E behind layers of experts")
    attention_bias = flag(config, "attention_bias", False)
    return {
        "layers": len(letters),
        "pattern": letters,
        "hidden": need(config, "hidden_size"),
        "heads": config.get("num_attention_heads", 32),
        "head_dim": config.get("head_dim", 128),
        "kv_heads": config.get("num_key_value_heads", 8),
        "ffn": config.get("intermediate_size", 21_504),
        "vocab": config.get("vocab_size", 131_072),
        "seq": config.get("max_position_embeddings", 4_096),
        "norm": "rmsnorm",
        "dropout": config.get("hidden_dropout", 0.0),
        "tied_embeddings": flag(config, "tie_word_embeddings", False),
        "bias": attention_bias,
        "mlp_bias": flag(config, "mlp_bias", False),
        "positions": "none",
        "ssm_state": config.get("ssm_state_size", 128),
        "ssm_heads": config.get("mamba_num_heads", 128),
        "ssm_head_dim": config.get("mamba_head_dim", 64),
        "ssm_groups": config.get("n_groups", 8),
        "ssm_conv": config.get("conv_kernel", 4),
        "ssm_chunk": config.get("chunk_size", 128),
        "mtp_layers": predicted,
    } | (_experts(config) if "E" in letters else {})


def _with_mlps(config: Config, attends: list[bool], mlp: str, context: int) -> dict[str, Any]:
    """Return what Bamba and Granite 4 share: a gated MLP (`mlp`, a letter) behind the mixer of every layer."""
    only(config, mamba_conv_bias=True, mamba_proj_bias=False, hidden_act="silu")
    heads, hidden = number(config, "mamba_n_heads", 128), number(config, "hidden_size")
    width = number(config, "mamba_expand", 2) * hidden
    each = config.get("mamba_d_head", "auto")
    if heads and each in (None, "auto"):
        each = width // heads
    if not heads or each * heads != width:
        raise InputError("mamba_d_head", each, f"mamba_expand x hidden_size / mamba_n_heads = {width} / {heads}")
    return {
        "layers": 2 * len(attends),
        "pattern": "".join(f"{'*' if each else 'M'}{mlp}" for each in attends),
        "hidden": hidden,
        "heads": config.get("num_attention_heads", 32),
        "seq": config.get("max_position_embeddings", context),
        "norm": "rmsnorm",
        "dropout": config.get("attention_dropout", 0.0),
        "gated_mlp": True,
        "tied_embeddings": flag(config, "tie_word_embeddings", False),
        "bias": flag(config, "attention_bias", False),
        "mlp_bias": flag(config, "mlp_bias", False),
        "ssm_state": config.get("mamba_d_state", 256),
        "ssm_heads": heads,
        "ssm_head_dim": each,
        "ssm_groups": config.get("mamba_n_groups", 1),
        "ssm_conv": config.get("mamba_d_conv", 4),
        "ssm_chunk": config.get("mamba_chunk_size", 256),
    }


def _bamba(config: Config) -> dict[str, Any]:
    layers, held = layer_count(config), config.get("attn_layer_indices") or []
    if not isinstance(held, list) or any(type(i) is not int or not 0 <= i < layers for i in held):
        raise InputError("attn_layer_indices", held, f"a list of numbers from 0 to {layers - 1}")
    return _with_mlps(config, [i in held for i in range(layers)], "-", 262_144) | {
        "kv_heads": config.get("num_key_value_heads", 8),
        "ffn": config.get("intermediate_size", 14_336),
        "vocab": config.get("vocab_size", 128_000),
        "positions": "rope",
    }


def _granitemoehybrid(config: Config) -> dict[str, Any]:
    layers, experts = layer_count(config), number(config, "num_local_experts", 8)
    words = listed(config, "layer_types", ("mamba", "linear_attention", "attention", "full_attention"), layers)
    if words is None:
        raise InputError("layer_types", None, "required in this config.json")
    rope = config.get("position_embedding_type")
    if rope not in (None, "nope", "rope"):
        raise InputError("position_embedding_type", rope, "rope, nope or null")
    shared = number(config, "shared_intermediate_size", 1_024)
    raw = _with_mlps(config, [WORDS[word] == "*" for word in words], "E" if experts else "-", 2_048) | {
        "kv_heads": config.get("num_key_value_heads", config.get("num_attention_heads", 32)),
        "vocab": config.get("vocab_size", 32_000),
        "positions": "rope" if rope == "rope" else "none",
        "ffn": shared,
    }
    if not experts:
        return raw
    return raw | {
        "experts": experts,
        "experts_per_token": config.get("num_experts_per_tok", 2),
        "moe_ffn": config.get("intermediate_size", 11_008),
        "shared_ffn": shared,
    }


def _mamba2(config: Config) -> dict[str, Any]:
    only(config, use_bias=False, use_conv_bias=True)
    layers, hidden = layer_count(config), number(config, "hidden_size")
    heads, each = number(config, "num_heads", 128), number(config, "head_dim", 64)
    if heads * each != number(config, "expand", 2) * hidden:
        raise InputError(
            "head_dim", each, f"expand x hidden_size / num_heads = {config.get('expand', 2)} x {hidden} / {heads}"
        )
    return {
        "layers": layers,
        "pattern": "M" * layers,
        "hidden": hidden,
        "heads": 1,
        "head_dim": 1,
        "vocab": config.get("vocab_size", 32_768),
        "norm": "rmsnorm",
        "positions": "none",
        "tied_embeddings": flag(config, "tie_word_embeddings", False),
        "ssm_state": config.get("state_size", 128),
        "ssm_heads": heads,
        "ssm_head_dim": each,
        "ssm_groups": config.get("n_groups", 8),
        "ssm_conv": config.get("conv_kernel", 4),
        "ssm_chunk": config.get("chunk_size", 256),
    }


READERS: dict[str, Reader] = {
    "nemotron_h": _nemotron_h,
    "bamba": _bamba,
    "granitemoehybrid": _granitemoehybrid,
    "mamba2": _mamba2,
}
