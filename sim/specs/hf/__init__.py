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
from sim.specs.hf.keys import Config, Reader, need
from sim.specs.hf.parts import text_part

READERS: dict[str, Reader] = (
    llama.READERS | moe.READERS | deepseek.READERS | gpt.READERS | encoders.READERS | hybrid.READERS
)

LONG_CONTEXT = 8_192


def read_config(path: str | Path, seq: int | None = None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arguments of `Model` that a `config.json` states, and what was assumed beside them.

    `seq` replaces the config's longest context, and a table of learned positions grows with it. Of a model of several
    parts the language model's is read.

    Raises:
        InputError: unknown `model_type`, or a key is missing or contradicts another.
    """
    config = load_mapping(Path(path))
    inside, part, notes = text_part(config, READERS)
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
    kind = need(config, "model_type")
    if isinstance(kind, str) and kind in BEYOND:
        can = f"another kind (its {BEYOND[kind]} cannot be expressed; `trainsim trace` takes any torch module)"
        raise InputError("model_type", kind, can)
    if not isinstance(kind, str) or kind not in READERS:
        raise InputError("model_type", kind, "one of " + ", ".join(sorted(READERS)))
    return READERS[kind](config)
