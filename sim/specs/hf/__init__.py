"""Readers of Hugging Face `config.json` files: data only, never the code a config may point to (`auto_map`).

One reader a `model_type`. A key that a config leaves out has the default of the library's config class
(transformers 5.23), but for the dimensions that make the model: those must be there. A reader refuses what
`Model` cannot express instead of passing over it. To add one: a function, its line in `READERS`, and a published
config with its exact count in `tests/specs/configs`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.specs.fields import InputError
from sim.specs.files import load_mapping
from sim.specs.hf import encoders, gpt, hybrid, llama, moe
from sim.specs.hf.keys import Reader

READERS: dict[str, Reader] = llama.READERS | moe.READERS | gpt.READERS | encoders.READERS | hybrid.READERS

LONG_CONTEXT = 8_192


def read_config(path: str | Path, seq: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arguments of `Model` that a `config.json` states, and what was assumed beside them.

    `seq` replaces the config's longest context, and a table of learned positions grows with it. Of a model of several
    parts the `text_config` is read.

    Raises:
        InputError: unknown `model_type`, or a key is missing or contradicts another.
    """
    config: Mapping[str, Any] = load_mapping(Path(path))
    notes: list[str] = []
    name = config.get("_name_or_path")
    if "text_config" in config:
        if not isinstance(config["text_config"], dict):
            raise InputError("text_config", config["text_config"], "a mapping of keys to values")
        notes.append("model: the text part of the config; its other parts are left out")
        config = {"model_type": f"{config.get('model_type')}_text"} | config["text_config"]
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in READERS:
        raise InputError("model_type", kind, "one of " + ", ".join(READERS))
    raw = READERS[kind](config)
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
    raw["name"] = str(name or config.get("_name_or_path") or kind)[:100]
    return {k: v for k, v in raw.items() if v is not None}, tuple(notes)
