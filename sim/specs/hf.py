"""Reader of Hugging Face `config.json` files: data only, never the code a config may point to."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sim.specs.fields import InputError
from sim.specs.files import load_mapping


def read_config(path: str | Path, seq: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arguments of `Model` that a `config.json` states, and what was assumed beside them.

    `seq` replaces the config's longest context.

    Raises:
        InputError: unknown `model_type`, or a key is missing.
    """
    config = load_mapping(Path(path))
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in READERS:
        raise InputError("model_type", kind, "one of " + ", ".join(READERS))
    raw = READERS[kind](config)
    if seq is not None:
        raw["seq"] = seq
    raw["name"] = str(config.get("_name_or_path") or kind)[:100]
    notes: tuple[str, ...] = ()
    if isinstance(raw["seq"], int) and raw["seq"] > LONG_CONTEXT and seq is None:
        notes = (f"model.seq = {LONG_CONTEXT} (the config allows {raw['seq']}; give seq to train at another length)",)
        raw["seq"] = LONG_CONTEXT
    return {k: v for k, v in raw.items() if v is not None}, notes


LONG_CONTEXT = 8_192


def _need(config: Mapping[str, Any], key: str) -> Any:
    if key not in config:
        raise InputError(key, None, "required in this config.json")
    return config[key]


def _gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "layers": _need(config, "n_layer"),
        "hidden": _need(config, "n_embd"),
        "heads": _need(config, "n_head"),
        "ffn": config.get("n_inner"),
        "vocab": config.get("vocab_size", 50_257),
        "seq": config.get("n_positions", config.get("n_ctx", 1_024)),
        "dropout": config.get("resid_pdrop", 0.1),
        "tied_embeddings": config.get("tie_word_embeddings", True),
    }


def _llama(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "layers": _need(config, "num_hidden_layers"),
        "hidden": _need(config, "hidden_size"),
        "heads": _need(config, "num_attention_heads"),
        "head_dim": config.get("head_dim"),
        "kv_heads": config.get("num_key_value_heads"),
        "ffn": _need(config, "intermediate_size"),
        "gated_mlp": True,
        "vocab": config.get("vocab_size", 32_000),
        "seq": config.get("max_position_embeddings", 2_048),
        "norm": "rmsnorm",
        "dropout": config.get("attention_dropout", 0.0),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "bias": config.get("attention_bias", False),
        "positions": "rope",
    }


READERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"gpt2": _gpt2, "llama": _llama}
