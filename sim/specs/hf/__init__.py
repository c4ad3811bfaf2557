"""Readers of Hugging Face `config.json` files: data only, never the code a config may point to (`auto_map`).

One reader a `model_type`. A key that a config leaves out has the default of the library's config class
(transformers 5.24), but for the dimensions that make the model: those must be there. A reader refuses what
`Model` cannot express instead of passing over it. To add one: a function, its line in `READERS`, and a published
config with its exact count in `tests/specs/configs`.
"""

from pathlib import Path
from typing import Any

from sim.specs.fields import InputError
from sim.specs.files import load_mapping
from sim.specs.hf import deepseek, encoders, gpt, hybrid, llama, moe
from sim.specs.hf.beyond import BEYOND
from sim.specs.hf.keys import Config, Reader, flag
from sim.specs.hf.names import language_part

READERS: dict[str, Reader] = (
    llama.READERS | moe.READERS | deepseek.READERS | gpt.READERS | encoders.READERS | hybrid.READERS
)

LONG_CONTEXT = 8_192
HEAD_OF_PART = ("llama4", "blip-2", "instructblip", "instructblipvideo", "internvl_chat", "deepseek_vl_v2")
EITHER_TIES = ("llava", "llava_next_video", "llava_onevision", "video_llama_3", "qwen2_vl", "qwen2_5_vl")
"""Models of several parts whose language model alone says whether its head is tied, and those where either may."""


def read_config(path: str | Path, seq: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arguments of `Model` that a `config.json` states, and what was assumed beside them.

    `seq` replaces the config's longest context, and a table of learned positions grows with it. Of a model of several
    parts the language model's is read (`TEXT_PARTS`).

    Raises:
        InputError: unknown `model_type`, or a key is missing or contradicts another.
    """
    config = load_mapping(Path(path))
    notes: list[str] = []
    inside, part = language_part(config)
    if inside:
        part = _tied({"model_type": f"{config.get('model_type')}_text", **part}, config)
    elif "vision_config" in config and f"{config.get('model_type')}_text" in READERS:
        # Qwen2-VL and Qwen2.5-VL as published: the text's keys beside those of the vision part.
        part = config | {"model_type": f"{config['model_type']}_text"}
    if part is not config:
        notes.append("model: the text part of the config; its other parts are left out")
    try:
        raw = _read(part)
    except InputError as error:
        raise (error.under(inside) if inside else error) from None
    notes += raw.pop("notes", ())
    longest = raw.get("seq")
    if seq is not None:
        raw["seq"] = seq
        rows = raw.get("max_positions")
        if isinstance(rows, int) and rows < seq:  # the table grows with it, as it does where a job says seq
            raw["max_positions"] = None
    elif isinstance(longest, int) and longest > LONG_CONTEXT:
        raw["seq"] = LONG_CONTEXT
        stated = f"model: {{base: {Path(path).name}, seq: {longest}}}"
        notes.append(
            f"model.seq = {LONG_CONTEXT} (the config allows {longest}; give seq to train at another length: {stated} "
            "in a file, Model.from_hf(path, seq) in Python)"
        )
    raw["name"] = str(config.get("_name_or_path") or part.get("_name_or_path") or part["model_type"])[:100]
    return {k: v for k, v in raw.items() if v is not None}, tuple(notes)


def _read(config: Config) -> dict[str, Any]:
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in BEYOND:
        can = f"another kind (its {BEYOND[kind]} cannot be expressed; `trainsim trace` counts any torch module)"
        raise InputError("model_type", kind, can)
    if not isinstance(kind, str) or kind not in READERS:
        raise InputError("model_type", kind, "one of " + ", ".join(READERS))
    return READERS[kind](config)


def _tied(part: dict[str, Any], whole: Config) -> dict[str, Any]:
    """Return the `part` with its head tied or not as the `whole` says, where the library's head belongs to that."""
    key, kind = "tie_word_embeddings", whole.get("model_type")
    if whole.get(key) is None or kind in HEAD_OF_PART:
        return part
    return part | {key: flag(whole, key, False) or (kind in EITHER_TIES and flag(part, key, False))}
