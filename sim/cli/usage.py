"""Usage errors of the command line in the words of every other bad input: what, the value, what is allowed."""

from enum import Enum
from types import NoneType
from typing import Any, get_args, get_type_hints

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
    if option is None or not isinstance(cause, ValidationError):
        return " ".join(str(error.format_message()).split())
    hint = get_type_hints(error.ctx.command.callback, include_extras=True)[option.name]
    return str(InputError(option.opts[-1], cause.errors()[0]["input"], _allowed(hint)))


def _allowed(hint: Any) -> str:
    kind, info = get_args(hint)[:2]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    kind = next((option for option in get_args(kind) if option is not NoneType), kind)
    text, low, high = WORDS.get(kind, "a value"), info.min, info.max
    if low is not None and high is not None:
        return f"{text} from {low} to {high}"
    return text if low is None else f"{text} of at least {low}"
