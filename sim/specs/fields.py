"""Declared fields: one place that says what a value may be, and the one error for a value that may not.

A class decorated with `spec` is a frozen dataclass whose fields carry their range in the annotation;
pydantic checks it in the constructor and where a file enters. `InputError` names the field's path, the
value and the allowed range.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import ErrorDetails

from sim.specs.meant import near, with_meant
from sim.units import THIN_SPACE

T = TypeVar("T")

MAX_PROBLEMS = 100
"""Problems told of one object: whoever made more has another file in mind."""

DERIVED: Any = None
"""Default of a field that `__post_init__` fills from the others when it is left out."""


class Told(str):
    """Words of ours in the place of a value: an error shows the thin spaces of their numbers as such, and whatever is
    in a text of the user's as Python writes it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return super().__repr__().replace(r"\u2009", THIN_SPACE)


class InputError(ValueError):
    """A value that cannot be used: where it stands, what it is, what is allowed there.

    The message also says what was probably meant: names are found where `allowed` lists them as "one of ..." or "known
    keys: ...". A value that is required and was left out is None. `also` holds further problems that were found
    together with this one. `condition` is what any allowed value keeps; `suggestion` names values and ways out that
    keep it, which may break another condition. `allowed` is both, one after the other.
    """

    def __init__(
        self, path: str, value: object, allowed: str, also: "Sequence[InputError]" = (), suggestion: str = ""
    ) -> None:
        self.also, self.condition, self.suggestion = tuple(also), allowed, suggestion
        allowed += suggestion
        shown = repr(list(value) if isinstance(value, tuple) else value)  # a file's list
        self.path, self.value, self.allowed = path, value, allowed
        place = short(path if path.isprintable() else repr(path), 200)
        if value is None and allowed.startswith("required"):
            super().__init__(f"{place}: missing; {allowed}")
        else:
            super().__init__(f"{place}: got {short(shown, 80)}; allowed: {with_meant(path, value, allowed)}")

    def under(self, parent: str) -> "InputError":
        """Return the same error seen from the enclosing object."""
        path = f"{parent}.{self.path}" if self.path else parent
        others = [other.under(parent) for other in self.also]
        return InputError(path, self.value, self.condition, others, self.suggestion)


def short(text: str, most: int) -> str:
    """Return `text`, cut to `most` characters where it is longer."""
    return text if len(text) <= most else text[: most - 3] + "..."


def whole(low: int, high: int, meaning: str = "") -> Any:
    """Return the constraint of a whole number: `Annotated[int, whole(1, 8)]`; `meaning` says of what."""
    text = f"a whole number from {low} to {high}"
    return Field(ge=low, le=high, description=f"{meaning}, {text}" if meaning else text)


def version_one() -> Any:
    """Return the constraint of the version of a file of which there has been one."""
    return Field(ge=1, le=1, description="1, which this version of trainsim reads")


def real(low: float, high: float, unit: str = "") -> Any:
    """Return the constraint of a finite number in `unit`: `Annotated[float, real(0, 1, "s")]`."""
    text = f"a number from {low:g} to {high:g}{' ' + unit if unit else ''}"
    return Field(ge=low, le=high, allow_inf_nan=False, description=text)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def spec(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only dataclass that raises `InputError` for a value out of range."""
    made = checked_dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid"))(cls)
    checked_init: Callable[..., None] = made.__init__

    def construct(self: object, *unnamed: object, **given: object) -> None:
        if unnamed:
            raise InputError(cls.__name__, unnamed[0], f"values by name: {', '.join(init_names(cls))}")
        try:
            # An explicit None means the same as leaving the field out.
            checked_init(self, **{k: _plain(cls, k, v) for k, v in given.items() if v is not None})
        except ValidationError as error:
            raise explained(error, cls)[0] from None

    made.__init__ = construct  # type: ignore[method-assign]
    return cast("type[T]", made)


def _plain(owner: type, name: str, value: object) -> object:
    """Return what a NumPy scalar, a mapping or a list stands for: the Python number, the object or the tuple."""
    if isinstance(value, Mapping):
        made_of = class_of(_hints(owner).get(name))
        return read(made_of, value, name) if made_of else value
    if isinstance(value, list | tuple | np.ndarray):
        return _several(_hints(owner).get(name), name, value)
    return _number(value)


def _several(hint: Any, name: str, values: "Sequence[object] | np.ndarray") -> object:
    """Return a list as the tuple of objects or numbers that a field of tuples takes, whatever else as it is."""
    if get_origin(hint) is not tuple:
        return values
    kind = class_of(get_args(hint)[0])
    each = values.tolist() if isinstance(values, np.ndarray) else values
    return tuple(
        read(kind, one, f"{name}.{n}") if kind and isinstance(one, Mapping) else _number(one)
        for n, one in enumerate(each)
    )


def _number(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


@cache
def _hints(owner: type) -> dict[str, Any]:
    return get_type_hints(owner)


def read(cls: type[T], raw: object, path: str = "") -> T:
    """Return `raw` (plain data from a file) as an instance of `cls`.

    Raises:
        InputError: with the full path below `path` of the first field that is wrong.
    """
    value, problems = check(cls, raw, path)
    if problems:
        raise problems[0]
    return cast("T", value)


def check(cls: type[T], raw: object, path: str = "") -> tuple[T | None, list[InputError]]:
    """Return `raw` (plain data from a file) as an instance of `cls`, or None and every field that is wrong."""
    try:
        text = json.dumps(raw, default=_jsonable)
    except (TypeError, ValueError):
        return None, [InputError(path, raw, "plain data: text as keys; mappings, lists, text and numbers as values")]
    try:
        # JSON mode: a mapping may become a dataclass and a list a tuple, all else stays strict.
        return TypeAdapter(cls).validate_json(text), []
    except ValidationError as error:
        found = explained(error, cls)
    except InputError as error:
        found = [error]
    return None, [problem.under(path) for problem in found] if path else found


def _jsonable(value: object) -> object:
    if is_dataclass(value):
        return {name: getattr(value, name) for name in init_names(type(value))}
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


UNKNOWN = "no such key"
"""Beginning of what is allowed at a key that nothing has."""


def explained(error: ValidationError, root: type) -> list[InputError]:
    """Return the first problems of a pydantic error as `InputError`s with the declared ranges, one a path.

    What is missing because its name is misspelt comes last: the wrong name says it.
    """
    each = (_explain(detail, root) for detail in error.errors(include_url=False)[:MAX_PROBLEMS])
    found = [problem for first in each for problem in (first, *first.also)]
    by_path: dict[str, InputError] = {}
    for problem in found:
        by_path.setdefault(problem.path, problem)
    unknown = [problem.path for problem in found if problem.allowed.startswith(UNKNOWN)]
    return sorted(by_path.values(), key=lambda problem: problem.value is None and _misspelt(problem.path, unknown))


def _misspelt(path: str, others: Iterable[str]) -> bool:
    """Return whether one of `others` beside `path` is probably its name."""
    place, _, name = path.rpartition(".")
    beside = (other.rpartition(".") for other in others)
    return any(near(other, [name], keys=True) for where, _, other in beside if where == place)


def _explain(detail: ErrorDetails, root: type) -> InputError:
    where = [str(part) for part in detail["loc"] if part != "__init__"]
    inner = detail.get("ctx", {}).get("error")
    if isinstance(inner, InputError):
        return inner.under(".".join(where)) if where else inner
    owner, hint, kept = _declared(root, where)
    path = ".".join(where[:kept])
    if detail["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return InputError(path, detail["input"], f"{UNKNOWN}; known keys: {', '.join(init_names(owner))}")
    if detail["type"] in ("missing", "missing_keyword_only_argument", "missing_argument"):
        return InputError(path, None, f"required: {_describe(hint)}")
    return InputError(path, detail["input"], _describe(hint) if where else "a mapping of keys to values")


def init_names(cls: type) -> list[str]:
    """Return the names a constructor takes."""
    return [f.name for f in fields(cls) if f.init]


def meaning(cls: type, name: str) -> str:
    """Return what the field `name` of `cls` may be, as its errors say it."""
    return _describe(get_type_hints(cls, include_extras=True)[name])


def _describe(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        texts = [m.description for m in get_args(hint)[1:] if getattr(m, "description", None)]
        return texts[0] if texts else _describe(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    if get_origin(hint) in (dict, list):
        return f"a {get_origin(hint).__name__} of {_describe(get_args(hint)[-1])}"
    options = [a for a in get_args(hint) if a is not type(None)]
    if options:
        return " or ".join(_describe(a) for a in options)
    return "a mapping of keys to values" if is_dataclass(hint) else WORDS.get(hint, "a value")


UNIONS = (Union, UnionType)
WORDS = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}


def class_of(hint: Any) -> type | None:
    """Return the dataclass that an annotation names, alone or among the options of a union."""
    options = get_args(hint) if get_origin(hint) in UNIONS else (hint,)
    return next((option for option in options if isinstance(option, type) and is_dataclass(option)), None)


def _declared(root: type, where: list[str]) -> tuple[type, Any, int]:
    """Return the innermost class on the path, the annotation at its end, and how many parts of it are fields.

    What follows a value that may be of several types (pydantic adds the type it tried) is not part of the path.
    """
    owner, hint = root, root
    for n, part in enumerate(where):
        bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        bare = class_of(bare) or bare
        if isinstance(bare, type) and is_dataclass(bare):
            owner, hint = bare, get_type_hints(bare, include_extras=True).get(part, object)
        elif get_origin(bare) in (dict, list):
            hint = get_args(bare)[-1]
        elif get_origin(bare) is tuple:
            hint = get_args(bare)[0]  # tuples are of one type throughout: tuple[T, ...]
        else:
            return owner, hint, n
    return owner, hint, len(where)
