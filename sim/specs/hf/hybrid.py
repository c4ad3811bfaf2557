"""Nemotron-H and Nemotron 3: Mamba-2, attention, MLP and experts, one sub-layer a layer."""

from typing import Any

from sim.specs.fields import InputError
from sim.specs.hf.keys import MOST_LAYERS, Config, Reader, flag, need, number, only

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


READERS: dict[str, Reader] = {"nemotron_h": _nemotron_h}
