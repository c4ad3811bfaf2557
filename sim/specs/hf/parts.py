"""Configs of models of several parts: where the language model's is, and what it leaves to the whole or the library."""

from collections.abc import Container
from typing import Any

from sim.specs.fields import InputError
from sim.specs.hf.keys import Config, flag

TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Keys that hold the language model's config."""
FLAT = ("qwen2_vl", "qwen2_5_vl")
"""Kinds that are published with the language model's keys beside a `vision_config`."""
HEAD_OF_PART = ("llama4", "blip-2", "instructblip", "instructblipvideo", "internvl_chat", "deepseek_vl_v2")
EITHER_TIES = ("llava", "llava_next_video", "llava_onevision", "video_llama_3", "qwen2_vl", "qwen2_5_vl")
"""Kinds whose language model alone says whether its head is tied, and those where either it or the whole may."""
LEFT_OUT: dict[str, dict[str, int]] = {
    "llama": {"hidden_size": 4_096, "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "mistral": {"hidden_size": 4_096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32},
}
"""Dimensions that published text parts (LLaVA 1.5 and 1.6) leave to the library's config class."""


def language_part(config: Config) -> tuple[str, dict[str, Any]]:
    """Return the key and the value of the part that holds the language model; no key where `config` has no parts.

    Raises:
        InputError: the part is no mapping.
    """
    key = next((key for key in TEXT_PARTS if key in config), "")
    part = config[key] if key else dict(config)
    if not isinstance(part, dict):
        raise InputError(key, part, "a mapping of keys to values")
    return key, part


def text_part(config: Config, known: Container[str]) -> tuple[str, dict[str, Any], list[str]]:
    """Return what `language_part` does with what its part leaves out, and what to say of that.

    A part without `model_type` has the whole's and "_text" where that is `known`.

    Raises:
        InputError: the part is no mapping, or a `tie_word_embeddings` no truth value.
    """
    (key, part), kind = language_part(config), config.get("model_type")
    typed = {"model_type": f"{kind}_text"} if f"{kind}_text" in known else {}
    if key:
        part = _tied(typed | part, config)
    elif kind in FLAT and "vision_config" in config:
        part |= typed
    else:
        return key, part, []
    silent = {k: v for k, v in LEFT_OUT.get(str(part.get("model_type")), {}).items() if k not in part}
    said = [f"model: {k} = {v}, as the library has it where a config is silent" for k, v in silent.items()]
    return key, silent | part, ["model: the text part of the config; its other parts are left out", *said]


def _tied(part: dict[str, Any], whole: Config) -> dict[str, Any]:
    """Return the `part` with its head tied or not as the `whole` says, where the library's head belongs to that."""
    key, kind = "tie_word_embeddings", whole.get("model_type")
    if whole.get(key) is None or kind in HEAD_OF_PART:
        return part
    return part | {key: flag(whole, key, False) or (kind in EITHER_TIES and flag(part, key, False))}
