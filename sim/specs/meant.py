"""What was probably meant by a value that is not allowed: the near name, or the number behind a text with a unit."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from math import isclose

MOST_NEAR = 3
LIKENESS = 0.7
"""Least ratio of difflib at which a name is told: below it are other words, not misspelt ones."""
LONG_LIST = 200
"""Characters of a list of names that is not told in full beside the name that was meant."""

KEYS = ("no such key", "no such argument", "a knob:")
"""Beginnings of what is allowed where the name at the end of the path is wrong, not the value."""
NAMES = re.compile(r"(?:one of|known keys:|known:|a knob:) ([^;]+)")
"""Where a text of what is allowed lists names, up to its next semicolon."""


def near(name: str, names: Iterable[str], keys: bool = False) -> list[str]:
    """Return those of `names` that begin with `name`, or the one that it may misspell; none for a number.

    keys: the names are of fields, of which other programs' often hold a part: `layers` is meant by `num_layers`.
    """
    known = {other.lower(): other for other in names if not is_number(other)}
    if not name or is_number(name):
        return []
    begun = [other for other in known if other.startswith(name.lower())]
    parts = sorted((other for other in known if keys and f"_{other}_" in f"_{name.lower()}_"), key=len)[-1:]
    found = begun[:MOST_NEAR] or parts or get_close_matches(name.lower(), known, 1, LIKENESS)
    return [known[other] for other in found]


def with_meant(path: str, value: object, allowed: str) -> str:
    """Return the text of what is allowed at `path`, with what was probably meant by `value` at its end."""
    number = _number(path, value) if "number" in allowed else None
    if number:
        return f"{allowed}; did you mean {number}?"
    keys = allowed.startswith(KEYS)
    wrong, listed = _last_key(path) if keys else value, NAMES.search(allowed)
    if listed is None or not isinstance(wrong, str):
        return allowed
    names = [part.split()[0] for part in listed[1].split(", ") if part.strip()]
    found = near(wrong, names, keys)
    if not found:
        return allowed
    if len(listed[1]) > LONG_LIST:
        allowed = f"{allowed[: listed.start(1)]}{len(names)} names{allowed[listed.end(1) :]}"
    return f"{allowed}; did you mean {' or '.join(found)}?"


def _last_key(path: str) -> str:
    return next((part for part in path.split(".")[::-1] if not part.isdigit()), "")


def is_number(text: str) -> bool:
    """Return whether a text is one that `float` takes."""
    try:
        float(text)
    except ValueError:
        return False
    return True


LARGE = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
LARGE |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
BYTES = {"B": 1.0, "bytes": 1.0}
RATES = {unit + per: size for unit, size in (BYTES | {"b": 1 / 8, "bit": 1 / 8}).items() for per in ("/s", "ps")}
UNITS = {
    "bytes_per_s": (LARGE, BYTES | RATES),
    "flop_per_s": (LARGE, dict.fromkeys(("FLOP/s", "FLOPs/s", "FLOPS", "FLOPs", "flops"), 1.0)),
    "bytes": (LARGE, BYTES),
    "tokens": (LARGE | {"B": 1e9}, {"tokens": 1.0}),
    "s": ({}, {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0}),
}
"""By what a field's name says of its unit, first match first: prefixes, and units as people write them, each in the
field's own unit."""


def _number(path: str, value: object) -> str | None:
    """Return the number to write for a text such as "900 GB/s" in a field whose name has a unit; None for any other."""
    field = path.removesuffix(".value").rpartition(".")[2]
    prefixes, units = next((held for said, held in UNITS.items() if f"_{said}_" in f"_{field}_"), ({}, {}))
    if not units or not isinstance(value, str):
        return None
    digits = r"[0-9]{1,12}(?:\.[0-9]{0,12})?(?:[eE][-+]?[0-9]{1,2})?"
    parts = re.fullmatch(f"({digits}) ?({'|'.join(prefixes)}|)({'|'.join(units)}|)", value)
    if parts is None:
        return None
    number = float(parts[1]) * prefixes.get(parts[2], 1.0) * units.get(parts[3], 1.0)
    brief = f"{number:g}"
    text = brief if isclose(float(brief), number, rel_tol=1e-12) else repr(number).removesuffix(".0")
    return text.replace("e+", "e")
