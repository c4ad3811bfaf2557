"""Command-line flags as data: read from shell text or a list of words, never run."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.specs.fields import InputError, short
from sim.specs.files import UNPRINTABLE

MAX_TEXT, MAX_FLAGS, MAX_DIGITS = 2**20, 5_000, 12
ARRAY, EXPANDED = re.compile(r"\w+\+?=\("), re.compile(r"\$\{\w+\[[@*]\]\}")
"""The head of an array of a shell, and all words of one."""
END = ")"
"""What ends an array; the flag before it has no more words."""
YES, NO = ("true", "True", "1"), ("false", "False", "0")


@dataclass
class Flags:
    """Values by name, as text; "" where a flag stands alone. What nobody has asked for is `left`.

    `words`: what stands among the flags without being one or the value of one.
    """

    values: Mapping[str, str]
    words: tuple[str, ...] = ()
    prefix: str = "--"
    asked: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def place(self, name: str) -> str:
        """Return how errors name the flag."""
        return f"{self.prefix}{name}"

    def text(self, name: str, default: str = "", among: Sequence[str] = ()) -> str:
        """Return the text after a flag; raises InputError where it is none of `among`."""
        self.asked.add(name)
        value = self.values.get(name, default)
        if among and value not in (*among, default):
            raise InputError(self.place(name), value, "one of " + ", ".join(among))
        return value

    def whole(self, name: str, default: int = 0, least: int = 1) -> int:
        """Return a flag's whole number, at least `least`; raises InputError where it is none."""
        self.asked.add(name)
        if name not in self.values:
            return default
        text = self.values[name]
        sign = text.startswith("-") and least < 0
        digits = text[1:] if sign else text
        if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS) or int(text) < least:
            raise InputError(self.place(name), text, f"a whole number from {least}")
        return int(text)

    def share(self, name: str, default: float) -> float:
        """Return a flag's number from 0 to 1; raises InputError where it is none."""
        self.asked.add(name)
        text = self.values.get(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise InputError(self.place(name), text, "a number from 0 to 1")
        return value

    def given(self, name: str) -> bool:
        """Return whether a switch is on: it stands alone, or with true; raises InputError for any other value."""
        self.asked.add(name)
        value = self.values.get(name, "false")
        if value not in ("", *YES, *NO):
            raise InputError(self.place(name), value, "nothing, true or false")
        return value not in NO

    @property
    def left(self) -> tuple[str, ...]:
        """What was given and not asked for, in order."""
        given = (
            f"{self.prefix}{n}{f'={short(v, 80)}' if v else ''}" for n, v in self.values.items() if n not in self.asked
        )
        return (*map(_shown, self.words), *given)


def _shown(word: str) -> str:
    return short(word, 80) if word.isprintable() else short(repr(word), 80)


def words(text: str, source: str) -> list[str]:
    """Return the words of shell text; comments, continued lines and arrays are understood, nothing is expanded.

    Raises:
        InputError: too long, or a quotation without end.
    """
    if len(text) > MAX_TEXT:
        raise InputError(source, f"{len(text)} characters", f"at most {MAX_TEXT}")
    try:
        found = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError(source, str(error), "words of a shell") from None
    return list(_out_of_arrays(found))


def _out_of_arrays(given: Sequence[str]) -> Iterator[str]:
    """Yield words without the `NAME=(` in front of those of an array, and `)` as a word of its own behind them."""
    inside = False
    for word in given:
        head = ARRAY.match(word)
        rest = word[head.end() :] if head else word
        inside = inside or bool(head)
        last = inside and rest.endswith(")") and rest.count(")") > rest.count("(")
        inside, rest = inside and not last, rest[:-1] if last else rest
        if rest or rest == word:
            yield rest
        if last:
            yield END


def read_flags(given: Sequence[str], source: str, several: Sequence[str] = ()) -> Flags:
    """Return `--name value`, `--name=value` and `--name` by name, dashes in names as underscores.

    several: flags that take any number of words; they are joined by a space.

    Raises:
        InputError: a flag is given twice with different values, there are too many, or a word has control characters.
    """
    values: dict[str, list[str]] = {}
    found: list[tuple[str, list[str]]] = []
    loose: list[str] = []
    more = False
    if len(given) > MAX_FLAGS:
        raise InputError(source, f"{len(given)} words", f"at most {MAX_FLAGS}")
    for word in given:
        if UNPRINTABLE.search(word):
            raise InputError(source, word, "words without control characters")
        if word == END:
            more = False
        elif word.startswith("--") and len(word) > 2:
            more = True
            name, equals, value = word[2:].partition("=")
            found.append((name.replace("-", "_"), [value] if equals else []))
        elif more and not EXPANDED.fullmatch(word) and (not found[-1][1] or found[-1][0] in several):
            found[-1][1].append(word)
        else:
            loose.append(word)
    for name, held in found:
        if values.setdefault(name, held) != held:
            raise InputError(f"--{name}", [*values[name], *held], "each argument once")
    return Flags({name: " ".join(held) for name, held in values.items()}, tuple(loose))


def from_mapping(raw: Mapping[str, Any], source: str) -> Flags:
    """Return arguments that a YAML or JSON file holds by name, with or without dashes in front; one level of sections
    is opened, and lists of words are joined by a space.

    Raises:
        InputError: a name is given twice with different values, or a value of a kind that no flag has.
    """
    flat: dict[str, str] = {}
    for key, held in raw.items():
        for name, value in held.items() if isinstance(held, Mapping) else ((key, held),):
            if value is None:
                continue
            parts = value if isinstance(value, list) else [value]
            if not all(isinstance(part, str | int | float) for part in parts):
                raise InputError(f"{source} {name}", value, "text, a number, true or false, or a list of such")
            text = " ".join(str(part).lower() if isinstance(part, bool) else str(part) for part in parts)
            plain = str(name).removeprefix("--").replace("-", "_")
            if flat.setdefault(plain, text) != text:
                raise InputError(f"{source} {name}", [flat[plain], text], "each argument once")
    return Flags(flat, prefix="")
