"""Seeded damage to input files: the same seed gives the same file, byte for byte."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

CANARY = "canary"
"""The file that planted commands would create in the working directory."""

DEEP = 3_000
TEXTS = [
    "", "~", "yes", "-1", "0", "1e999", "-1e999", ".inf", ".nan", "NaN", "-Infinity", "1e-400", "-0.0", "8.0", "1e3",
    "9" * 400, "9" * 5_000, "0x10", "0o17", "1_000", "1:30", "1:30.5", "2020-01-01", "2001-12-14t21:59:43.10-05:00",
    "9007199254740993", "18446744073709551616", "1.7976931348623157e308", "5e-324", "true", "[]", "{}", "[[[[[1]]]]]",
    f"!!python/object/apply:os.system ['touch {CANARY}']", f"!!python/object/new:pathlib.Path [{CANARY}]",
    f"!!python/object/apply:subprocess.check_output [[touch, {CANARY}]]", "!!python/name:os.system", "!x",
    f"!!python/object/apply:builtins.open [{CANARY}, w]", "!!binary aGk=", "!!set {a, b}", "!!omap [a: 1]", "!x y",
    "!!float nan", "!!int '3'", "!!str 5", "!!bool maybe", "!!int x", "!!float x", "!!null x", "!!timestamp x", "=",
    "&a [1]", "*a", "&a {b: *a}", "{<<: {a: 1}}", "<<", '"\\0"', '"\\x1b[2J"', '"\\u202e"', '"\\ud800"', '"\\ud83d"',
    "x" * 10_000, "\x00", "\ufeff", "\u2028", "\x1b[31m", "\U0001f4a5", "[" * DEEP, "{a: " * DEEP, "- " * DEEP,
    '{"a":' * DEEP, "[" * 40 + "]" * 40, "? " * DEEP, "|", "> x", "@", "`", "%YAML 9.9", "---", "...", "- 1", "? a",
    f"$(touch {CANARY})", f"`touch {CANARY}`", "{{7*7}}", "%s%n", "__import__('os')", "../../../etc/passwd", "/", ".",
    "/dev/zero", "/dev/zero.json", "nul\\0.json", ".json", "~/x.json", "a" * 300 + ".json", "a" * 5_000 + ".json",
    "gpt3-175b", "l4", "h100-sxm-80gb", "interleaved", "full", "-1e-3", "128", "4096", "10000000", "65536", "3",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 7, 8, 64, 4_096, 10**7, 2**63, 2**64, 10**300, 10**4_000, -(10**30), 0.5, 8.0,
    1e18, 1e308, 5e-324, -0.0, float("inf"), float("-inf"), float("nan"), "", "x", "x" * 5_000, "1", "true", "\x1b[2J",
    "\ud800", "\u202e", "\x00", "a\nb", [], {}, [1], [None], [[]], {"": 1}, {"a": {"b": []}}, [0] * 3_000,
    "gpt2-xl", "v100-sxm-32gb", "interleaved", "gpipe", "full", "../x.json", "a" * 5_000 + ".json",
    {"value": 1, "source": "x"}, {"x": 1e400},
]  # fmt: skip
TOKEN = re.compile(r"[\w.+-]+|\s+|[^\w\s]")
Mutation = Callable[[Random, str], str]


def flip(random: Random, text: str) -> str:
    """Change, insert or remove a few characters."""
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(text) + 1)
        text = (
            text[:at]
            + random.choice(["", chr(random.randrange(256)), random.choice(":{}[],-#&*!|>'\"%@`\t\n ")])
            + text[at + random.randint(0, 1) :]
        )
    return text


def cut(random: Random, text: str) -> str:
    """End the file early, or begin it late."""
    at = random.randrange(len(text) + 1)
    return text[:at] if random.random() < 0.8 else text[at:]


def tokens(random: Random, text: str) -> str:
    """Remove, repeat or exchange tokens."""
    parts = TOKEN.findall(text) or [""]
    for _ in range(random.randint(1, 3)):
        i, j = random.randrange(len(parts)), random.randrange(len(parts))
        match random.randrange(3):
            case 0:
                parts[i] = ""
            case 1:
                parts[i] *= random.choice([2, 3, 50])
            case _:
                parts[i], parts[j] = parts[j], parts[i]
    return "".join(parts)


def lines(random: Random, text: str) -> str:
    """Remove, repeat, exchange or indent lines."""
    parts = text.split("\n")
    i, j = random.randrange(len(parts)), random.randrange(len(parts))
    match random.randrange(4):
        case 0:
            del parts[i]
        case 1:
            parts.insert(j, parts[i])
        case 2:
            parts[i], parts[j] = parts[j], parts[i]
        case _:
            parts[i] = random.choice([" ", "  ", "\t", "- "]) + parts[i]
    return "\n".join(parts)


def nasty(random: Random, text: str) -> str:
    """Put a nasty text in the place of a token."""
    places = [m for m in TOKEN.finditer(text) if not m.group().isspace()]
    if not places:
        return random.choice(TEXTS)
    place = random.choice(places)
    return text[: place.start()] + random.choice(TEXTS) + text[place.end() :]


def tree(random: Random, text: str) -> str:
    """Change the data behind a JSON text: values, keys, nesting."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return nasty(random, text)
    for _ in range(random.randint(1, 3)):
        holders = list(_holders(raw))
        if not holders:
            break
        holder = random.choice(holders)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key, other = random.choice(keys), random.choice(keys)
        match random.randrange(7):
            case 0:
                del holder[key]
            case 1:
                holder[key], holder[other] = holder[other], holder[key]
            case 2:
                holder[key] = {str(random.choice(TEXTS))[:40]: holder[key]}
            case 3:
                for _ in range(random.choice([1, 30, 60])):
                    holder[key] = [holder[key]] if random.random() < 0.5 else {"a": holder[key]}
            case 4 if isinstance(holder, dict):
                holder[str(random.choice(TEXTS))[:100]] = holder.pop(key)
            case 5 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
                holder[key] *= random.choice([-1, 0, 2, 3, 10, 1_000, 10**6])
            case _:
                holder[key] = deepcopy(random.choice(VALUES))
    return json.dumps(raw, indent=random.choice([None, 1]))


def _holders(raw: Any) -> Any:
    if isinstance(raw, dict | list) and raw:
        yield raw
        for below in raw.values() if isinstance(raw, dict) else raw:
            yield from _holders(below)


MUTATIONS: list[Mutation] = [flip, cut, tokens, lines, nasty, tree, tree, tree]


def damaged(random: Random, text: str) -> bytes:
    """Return `text` after one to three mutations, sometimes as bytes that are no UTF-8."""
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        text = random.choice(MUTATIONS)(random, text)
    raw = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.02 and raw:
        at = random.randrange(len(raw))
        raw = raw[:at] + bytes([random.randrange(256)]) + raw[at + 1 :]
    return raw


def damaged_bytes(random: Random, raw: bytes) -> bytes:
    """Return a file that is no text with one to three parts of it changed, left out, repeated or cut off."""
    held = bytearray(raw)
    for _ in range(random.randint(1, 3)):
        at, length = random.randrange(len(held) + 1), random.choice([1, 4, 64, 4096])
        match random.randrange(5):
            case 0:
                held[at : at + length] = random.randbytes(length)
            case 1:
                held[at : at + 1] = bytes([random.randrange(256)])
            case 2:
                del held[at : at + length]
            case 3:
                held[at:at] = held[at : at + length]
            case _:
                del held[at:]
    return bytes(held)
