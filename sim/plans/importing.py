"""Plans read back from other frameworks' settings: text is parsed as data, nothing in it is run."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from sim.plans.flags import MAX_TEXT, Flags, from_mapping, read_flags, words
from sim.plans.from_deepspeed import from_deepspeed
from sim.plans.from_megatron import from_megatron
from sim.plans.from_torchtitan import from_torchtitan
from sim.plans.reading import ReadPlan
from sim.plans.titan_configuration import from_configuration, is_configuration
from sim.schedules.custom import parse_order
from sim.specs import InputError, Model
from sim.specs.arguments import checked
from sim.specs.fields import short
from sim.specs.files import mapping_of

Source = Literal["megatron", "torchtitan", "deepspeed"]
SOURCES: tuple[str, ...] = get_args(Source)

SECTION = re.compile(r"\s*\[[\w.]+\]\s*$")
"""The head of a section of a TOML file."""

NAMED = re.compile(r"""["']?[\w.-]+["']?:(\s|$)""")
"""The first line of a YAML file of arguments by name."""

SEVERAL = ("recompute_modules", "cuda_graph_scope")
"""Megatron-LM's arguments of several words that say something of a plan."""

SETTINGS = "settings"
"""What errors call the text where it has no name of its own."""


@checked
def read_plan(
    text: str | Sequence[str] | Mapping[str, Any],
    source: Source,
    model: Model | None = None,
    gpus: int | None = None,
    order: str | None = None,
) -> ReadPlan:
    """Return the plan that another framework's settings state, and what in them was not read.

    text: Megatron-LM's arguments as shell text, as a list of words or by name (YAML, JSON, a mapping); torchtitan's
    flags as shell text or words, or the text of its Python configuration (`sim.plans.titan_configuration`);
    DeepSpeed's configuration as JSON or a mapping. model: gives layers and sequence length where the settings leave
    them to it. gpus: of the whole job. order: the schedule CSV that torchtitan's flags name, as text.

    Raises:
        InputError: the text is too long or malformed, a value is wrong or missing, or two contradict each other.
    """
    if not isinstance(text, str | Mapping) and not all(isinstance(word, str) for word in text):
        raise InputError("text", text, "text, a list of words, or a mapping")
    return READERS[source](text, model, gpus, order)


Given = str | Sequence[str] | Mapping[str, Any]


def _megatron(text: Given, model: Model | None, gpus: int | None, order: str | None) -> ReadPlan:
    _without_order(order)
    return from_megatron(_arguments(text), gpus, model)


def _torchtitan(text: Given, model: Model | None, gpus: int | None, order: str | None) -> ReadPlan:
    del gpus
    if isinstance(text, Mapping):
        raise InputError("text", text, "torchtitan's flags, as text or a list of words")
    if not isinstance(text, str):
        given = text
    elif is_configuration(text):
        given = from_configuration(text)
    elif any(SECTION.match(line) for line in text.splitlines()):
        allowed = "flags, or a Python configuration (TOML was torchtitan's until 0.2)"
        raise InputError(SETTINGS, "TOML", allowed)
    else:
        given = words(text, SETTINGS)
    return from_torchtitan(given, model, parse_order(order) if order is not None else None)


def _deepspeed(text: Given, model: Model | None, gpus: int | None, order: str | None) -> ReadPlan:
    _without_order(order)
    del model
    if not isinstance(text, str | Mapping):
        raise InputError("text", text, "DeepSpeed's configuration, as JSON text or a mapping")
    return from_deepspeed(mapping_of(text, ".json", SETTINGS) if isinstance(text, str) else text, gpus)


def _without_order(order: str | None) -> None:
    if order is not None:
        raise InputError("order", short(order, 80), "left out: torchtitan's settings alone name a schedule CSV")


READERS: Mapping[str, Callable[[Given, Model | None, int | None, str | None], ReadPlan]] = {
    "megatron": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed,
}  # fmt: skip


def _arguments(text: Given) -> Flags:
    """Return Megatron-LM's arguments, whichever form they have."""
    if isinstance(text, Mapping):
        return from_mapping(text, SETTINGS)
    if not isinstance(text, str):
        return read_flags(text, SETTINGS, SEVERAL)
    start = text.lstrip()[:1]
    if start == "[":
        return read_flags(_list(text), SETTINGS, SEVERAL)
    if start == "{":
        return from_mapping(mapping_of(text, ".json", SETTINGS), SETTINGS)
    lines = (line.strip() for line in text[:MAX_TEXT].splitlines())
    first = next((line for line in lines if line and not line.startswith(("#", "---", "%"))), "")
    if NAMED.match(first) or "--" not in text:
        return from_mapping(mapping_of(text, ".yaml", SETTINGS), SETTINGS)
    return read_flags(words(text, SETTINGS), SETTINGS, SEVERAL)


def _list(text: str) -> list[str]:
    if len(text) > MAX_TEXT:
        raise InputError(SETTINGS, f"{len(text)} characters", f"at most {MAX_TEXT}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(SETTINGS, "a list without end", "a JSON list of words") from None
    if not all(isinstance(word, str) for word in found):
        raise InputError(SETTINGS, "values that are no text", "a JSON list of words")
    return list(found)
