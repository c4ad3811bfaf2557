"""The model of a job or of any other file: named, read from a file, stated, or another one with some fields changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.specs.catalog import model as catalog_model
from sim.specs.catalog import stated_model
from sim.specs.fields import MAX_PROBLEMS, InputError, check, read
from sim.specs.files import load_mapping
from sim.specs.hf import read_config
from sim.specs.model import Model
from sim.specs.resized import following, halves
from sim.specs.table import KIND, LayerTable

Read = tuple[Model | None, list[InputError]]

BASE = "a catalog name or the path of a HF config.json"
MODEL_HELP = "a catalog name, a path (HF config.json, layer table), inline dimensions, or base: NAME and what to change"
DIMENSIONS = {"layers", "hidden", "heads"}
"""What a model without a base must state."""


def read_model(raw: Any, folder: Path) -> Read:
    """Return the model section of a job, or None and what is wrong with it; paths are relative to `folder`."""
    if isinstance(raw, Mapping):
        return _stated(dict(raw), folder)
    if not isinstance(raw, str):
        return None, [InputError("model", raw, MODEL_HELP)]
    try:
        return (_model_file(folder / raw) if raw.endswith(".json") else catalog_model(raw)), []
    except InputError as error:
        if raw.endswith(".json"):
            return None, [error.under("model")]
        return None, [InputError("model", raw, f"{MODEL_HELP}; {error.allowed}")]


def _model_file(path: Path) -> Model:
    return Model.from_table(path) if load_mapping(path).get("kind") == KIND else Model.from_hf(path)


def _stated(raw: dict[str, Any], folder: Path) -> Read:
    if "table" in raw:
        return _traced(raw, folder)
    if "base" in raw:
        return _changed(raw, folder)
    made, problems = check(Model, raw, "model")
    if not DIMENSIONS & raw.keys():  # a name or a path stands under another key
        missing = InputError("model.base", None, f"required without layers, hidden and heads: {BASE}")
        problems = [missing, *(p for p in problems if p.value is not None)]
    return made, problems


def _changed(raw: dict[str, Any], folder: Path) -> Read:
    """Return the model `base` with the other fields in place of its own; what followed from those follows anew."""
    named = raw["base"]
    if not isinstance(named, str):
        return None, [InputError("model.base", named, BASE)]
    base, problems = read_model(named, folder)
    if base is None:
        return None, [_of_base(problem) for problem in problems]
    if base.table:
        return None, [InputError("model.base", named, f"{BASE}: nothing of a traced network can be changed")]
    changes = {key: value for key, value in raw.items() if key != "base"}
    held, notes = read_config(folder / named) if named.endswith(".json") else (stated_model(named), ())
    follows = {name for name, of in following(base).items() if of & changes.keys()}
    seq, rows = changes.get("seq"), held.get("max_positions")
    if isinstance(seq, int) and rows is not None:  # a table that is stated holds shorter sequences, too
        follows = follows - {"max_positions"} | ({"max_positions"} if seq > rows else set())
    encoder = halves(base, changes)
    made, problems = check(Model, {k: v for k, v in held.items() if k not in follows} | encoder | changes, "model")
    kept = [note for note in notes if not any(note.startswith(f"model.{key} ") for key in changes)]
    split = [f"model.{name} = {n} (half of layers, which are of both stacks)" for name, n in encoder.items()]
    return made and made.noted([*kept, *split]), problems


def _of_base(problem: InputError) -> InputError:
    below = problem.path.removeprefix("model")
    return InputError(f"model.base{below}", problem.value, problem.allowed.replace(MODEL_HELP, BASE))


def _traced(raw: dict[str, Any], folder: Path) -> Read:
    """Return the network of `table`: a path, or the table itself, as saved plans have it."""
    held = raw["table"]
    problems = [
        InputError(f"model.{key}", value, "left out beside table") for key, value in raw.items() if key != "table"
    ]
    if not isinstance(held, str | dict):
        problems.append(InputError("model.table", held, "the path of a layer table (trainsim trace), or the table"))
    if problems:
        return None, problems[:MAX_PROBLEMS]
    try:
        return Model.from_table(folder / held if isinstance(held, str) else read(LayerTable, held)), []
    except InputError as error:
        return None, [error.under("model.table")]
