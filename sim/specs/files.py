"""Plain data from YAML or JSON files: bounded in size, no aliases, no duplicate keys, no code; whole writes."""

import json
import re
from collections import Counter
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import yaml

from sim.specs.fields import InputError

MAX_BYTES = 2**20


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases (they multiply) and without duplicate keys (the last would win silently)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise InputError("(file)", "an alias (*name)", "no YAML aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        strange = [key for key in keys if not isinstance(key, str)]
        if strange:
            raise InputError("(key)", strange[0], "text as a key")
        _refuse_duplicates(keys)
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: yaml.ScalarNode) -> int | str:
        """Return a decimal integer; YAML 1.1's octal, hexadecimal and base-60 forms stay text and are refused later."""
        text = str(self.construct_scalar(node))
        return int(text.replace("_", "")) if DECIMAL.fullmatch(text) else text


DECIMAL = re.compile(r"[-+]?[0-9][0-9_]{0,30}")
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_decimal)
# YAML 1.1 takes 1e9 and 989.4e12 for text: its exponents need a point and a sign. YAML 1.2's do not.
EXPONENT = re.compile(r"[-+]?([0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})[eE][-+]?[0-9]{1,4}$")
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))


def _refuse_duplicates(keys: list[str]) -> None:
    twice = [key for key, times in Counter(keys).items() if times > 1]
    if twice:
        raise InputError(twice[0], "given twice", "each key once")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_duplicates([k for k, _ in pairs])
    return dict(pairs)


def _what(path: Path) -> str:
    return "no such file" if not path.exists() else "a directory" if path.is_dir() else "not a regular file"


def _parse(text: str, suffix: str) -> Any:
    if suffix == ".json":
        return json.loads(text, object_pairs_hook=_unique)
    return yaml.load(text, _PlainLoader)  # noqa: S506 - a SafeLoader with less


def load_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a `.json`, `.yaml` or `.yml` file.

    Raises:
        InputError: no such file, too large, not YAML or JSON, a duplicate key or an alias.
    """
    try:
        if not path.is_file():
            raise InputError(str(path), _what(path), "a readable file")
        with path.open("rb") as file:
            raw_bytes = file.read(MAX_BYTES + 1)
        if len(raw_bytes) > MAX_BYTES:
            raise InputError(str(path), f"more than {MAX_BYTES} bytes", f"at most {MAX_BYTES} bytes")
        text = raw_bytes.decode("utf-8-sig")
    except OSError as error:
        raise InputError(str(path), error.strerror, "a readable file") from None
    except UnicodeDecodeError:
        raise InputError(str(path), "bytes that are not UTF-8", "UTF-8 text") from None
    try:
        raw = _parse(text, path.suffix)
    except (yaml.YAMLError, json.JSONDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(str(path), " ".join(str(error).split())[:80], "well-formed YAML or JSON") from None
    if not isinstance(raw, dict):
        raise InputError(str(path), type(raw).__name__, "a mapping of keys to values")
    return raw


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` whole or not at all."""
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        try:
            file.write(text)
            file.close()
            Path(file.name).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
