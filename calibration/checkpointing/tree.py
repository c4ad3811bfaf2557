"""A training state as its tensors by name and, as JSON, all the rest: nothing of it needs pickle."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sim.specs.fields import InputError

PLAIN = (bool, int, float, str, type(None))
ALLOWED = "tensors, numbers, text, None, and mappings, lists and tuples of them"


def taken_apart(state: object, name: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Return a state as JSON that names its tensors, and these by name, detached: `model.layer.weight`.

    Raises:
        InputError: it holds something that could only be pickled, or two tensors of one name.
    """
    if isinstance(state, Tensor):
        return {"tensor": name}, {name: state.detach()}
    if isinstance(state, PLAIN):
        return state, {}
    if not isinstance(state, Mapping | list | tuple):
        raise InputError(name or "state", type(state).__name__, ALLOWED)
    pairs = list(state.items() if isinstance(state, Mapping) else enumerate(state))
    tensors: dict[str, Tensor] = {}
    parts = []
    for key, held in pairs:
        if not isinstance(key, int | str):
            raise InputError(name or "state", key, "keys that are text or whole numbers")
        part, found = taken_apart(held, f"{name}.{key}" if name else str(key))
        if twice := tensors.keys() & found.keys():
            raise InputError(name or "state", sorted(twice)[0], "one tensor of a name")
        tensors |= found
        parts.append([key, part] if isinstance(state, Mapping) else part)
    kind = "mapping" if isinstance(state, Mapping) else "list" if isinstance(state, list) else "tuple"
    return {kind: parts}, tensors


def put_together(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state that was taken apart; raises InputError where `tree` is none, or names no tensor of these."""
    if isinstance(tree, PLAIN):
        return tree
    match list(tree.items()) if isinstance(tree, dict) else None:
        case [("tensor", str(name))] if name in tensors:
            return tensors[name]
        case [("mapping", list(pairs))] if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            return {key: put_together(held, tensors) for key, held in pairs if isinstance(key, int | str)}
        case [("list", list(parts))]:
            return [put_together(held, tensors) for held in parts]
        case [("tuple", list(parts))]:
            return tuple(put_together(held, tensors) for held in parts)
        case _:
            raise InputError("tree", tree, "a state that was taken apart, and all of its tensors")
