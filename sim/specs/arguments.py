"""Arguments of the functions that notebooks call: a wrong one is an `InputError` with its name."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, signature
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from sim.specs.fields import InputError

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` raise `InputError` for a missing, unknown or mistyped argument.

    Types are looked at where the annotation names a dataclass, a protocol, text, a number, a path, a `Literal`, an
    array, a sequence of a dataclass, a mapping (its keys and values too), or a union of these; everything else is the
    function's own business.
    """
    parameters = signature(function).parameters
    hints: dict[str, Any] = {}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Read at the first call: at import the names in the annotations may not exist yet.
        hints.update({} if hints else get_type_hints(function))
        given = _bound(function.__name__, list(parameters.values()), args, kwargs)
        for name, value in given.items():
            _check(name, value, hints.get(name))
        return function(*args, **kwargs)

    return call


def numbers(path: str, values: Any) -> list[float]:
    """Return the finite numbers of a list or an array; raises InputError for anything else."""
    if not isinstance(values, list | tuple | range | np.ndarray):
        raise InputError(path, values, "a list of numbers")
    for n, value in enumerate(values):
        if not isinstance(value, Real) or not isfinite(value):
            raise InputError(f"{path}.{n}", value, "a finite number")
    return list(values)


def _check(path: str, value: Any, hint: Any) -> None:
    """Raise InputError for a value of another type, or for the one of a dict that is."""
    if _fits(value, hint):
        return
    allowed = _types(hint)
    for one in allowed:
        if get_origin(one) is Mapping and isinstance(value, Mapping):
            key, of = get_args(one)
            for name, held in value.items():
                if not _fits(name, key):
                    raise InputError(path, name, f"a dict, each key {_words(_types(key))}")
                _check(f"{path}.{name}", held, of)
    raise InputError(path, value, _words(allowed))


def _bound(name: str, parameters: list[Parameter], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the named arguments of a call; what a `**` parameter takes is left out."""
    positional = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    named = positional + [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
    if len(args) > len(positional):
        raise InputError(name, f"{len(args)} arguments", ", ".join(positional))
    given = dict(zip(positional, args, strict=False))
    takes_more = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    for key, value in kwargs.items():
        if key in given:
            raise InputError(key, value, "each argument once")
        if key not in named and not takes_more:
            raise InputError(key, value, f"no such argument; known: {', '.join(named)}")
    given |= {key: value for key, value in kwargs.items() if key in named}
    for parameter in parameters:
        if parameter.name in named and parameter.default is Parameter.empty and parameter.name not in given:
            raise InputError(parameter.name, None, "required")
    return given


def _types(hint: Any) -> list[Any]:
    """Return the types that can be looked at, or none where one of a union cannot."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return list(options) if all(_known(option) for option in options) else []


def _known(hint: Any) -> bool:
    if hint in WORDS or get_origin(hint) in (Literal, Mapping, np.ndarray):
        return True
    if get_origin(hint) is Sequence:
        return all(is_dataclass(of) for of in get_args(hint))  # functions look at numbers (`numbers`) and words alone
    return isinstance(hint, type) and (is_dataclass(hint) or getattr(hint, "_is_runtime_protocol", False))


def _fits(value: Any, hint: Any) -> bool:
    allowed = _types(hint)
    return not allowed or any(_is(value, one) for one in allowed)


def _is(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is Sequence:
        (of,) = get_args(hint)
        if isinstance(value, list | tuple):
            return all(_is(one, of) for one in value)
        # What else can be gone through, a function may take for one.
        return isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    if get_origin(hint) is Mapping:
        key, of = get_args(hint)
        return isinstance(value, Mapping) and all(_fits(k, key) and _fits(one, of) for k, one in value.items())
    if hint in NUMBERS:
        return isinstance(value, NUMBERS[hint]) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


def _words(allowed: list[Any]) -> str:
    return " or ".join(map(_word, allowed))


def _word(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(get_args(kind))
    if origin in (Sequence, Mapping):
        of = _types(get_args(kind)[-1])
        whole, each = ("a list", "each") if origin is Sequence else ("a dict", "each value")
        return f"{whole}, {each} {_words(of)}" if of else whole
    return WORDS.get(kind) or f"a{'n' if kind.__name__[0] in 'AEIOn' else ''} {kind.__name__}"


WORDS = {str: "text", int: "a whole number", float: "a number", Path: "a path", type(None): "None"}
NUMBERS: dict[type, Any] = {int: Integral, float: Real}
"""NumPy's numbers are of these kinds too."""
