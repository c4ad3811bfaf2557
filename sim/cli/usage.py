"""Errors of the command line in the words of every other bad input: what, the value, what is allowed."""

from collections.abc import Callable, Mapping
from enum import Enum
from errno import ELOOP, ENAMETOOLONG
from functools import partial, wraps
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from sim.specs.fields import WORDS, InputError


def told(error: Any) -> str | None:
    """Return what the user is told of bad input or a usage error, empty where all is said; None for other errors."""
    if isinstance(error, InputError):
        return str(error)
    # A usage error of typer's parser, whose class differs between its releases.
    return usage_message(error) if hasattr(error, "format_message") else None


def usage_message(error: Any) -> str:
    """Return the message of a typer usage error; a bad option or argument is told with its value and range."""
    cause, option = error.__cause__, getattr(error, "param", None)
    if option is not None and type(error).__name__ == "MissingParameter":
        return str(InputError(option.metavar or option.opts[0], None, f"required: {option.help}"))
    if option is None or not isinstance(cause, ValidationError):
        return " ".join(str(error.format_message()).split())
    hint = get_type_hints(error.ctx.command.callback, include_extras=True)[option.name]
    return str(InputError(option.opts[0], cause.errors()[0]["input"], _allowed(hint)))


def _allowed(hint: Any) -> str:
    kind, info = get_args(hint)[:2]
    kind = next((each for each in get_args(kind) if each is not NoneType), kind) if _optional(kind) else kind
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    text, low, high = WORDS.get(kind, "a value"), info.min, info.max
    if low is not None and high is not None:
        return f"{text} from {low} to {high}"
    return text if low is None else f"{text} of at least {low}"


def _optional(kind: Any) -> bool:
    return NoneType in get_args(kind)


def naming_options(command: Any) -> Any:
    """Return a typer command whose errors of what an option stated name this option, not the field that it fills.

    Empty text is refused: as a path it would be the current folder, and most of what asks would take it as left out.
    """
    inner = command.callback

    @wraps(inner)
    def run(**given: Any) -> Any:
        _refuse_unfollowed(command.params, given)
        try:
            return inner(**given)
        except InputError as error:
            raise _of_option(error, command.params, given) from None

    command.callback = run
    for option in command.params:
        option.consume_value = partial(_not_empty, option, option.consume_value)
    return command


def _not_empty(option: Any, consume: Callable[..., Any], context: Any, given: Mapping[str, Any]) -> Any:
    """Return what `consume` makes of the words given for an option; raises InputError where one is empty."""
    stated = given.get(option.name)
    if "" in (stated if isinstance(stated, list | tuple) else [stated]):
        raise InputError(option.metavar or option.opts[0], "", f"not empty: {option.help}")
    return consume(context, given)


def _refuse_unfollowed(options: Any, given: Mapping[str, Any]) -> None:
    """Refuse a path that the system does not follow: asked anything of it, pathlib fails in ways of its own."""
    for option in options:
        stated = given.get(option.name)
        for path in stated if isinstance(stated, list | tuple) else [stated]:
            try:
                if isinstance(path, Path):
                    path.stat()
            except OSError as error:
                if error.errno in (ELOOP, ENAMETOOLONG):
                    allowed = f"a path that can be followed ({error.strerror})"
                    raise InputError(option.opts[0], str(path), allowed) from None


def _of_option(error: InputError, options: Any, given: Mapping[str, Any]) -> InputError:
    """Return the error by the option that is named as the end of its path and states its value."""
    name = "--" + error.path.rpartition(".")[2].replace("_", "-")
    for option in options:
        stated = given.get(option.name)
        values = stated if isinstance(stated, list | tuple) else [stated]
        if error.value is not None and name in option.opts and str(error.value) in map(str, values):
            return InputError(name, error.value, error.allowed, error.also)
    return error
