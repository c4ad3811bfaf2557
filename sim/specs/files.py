"""Plain data from YAML or JSON files: bounded in size, no aliases, no duplicate keys, no code; whole writes."""

import json
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import yaml

from sim.specs.fields import InputError

MAX_BYTES = 2**20
MAX_DEPTH = 32


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases (they multiply) and without duplicate keys (the last would win silently)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise InputError("(file)", "an alias (*name)", "no YAML aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [k.value for k, _ in node.value if isinstance(k, yaml.ScalarNode)]
        _refuse_duplicates(keys)
        return super().construct_mapping(node, deep)


def _refuse_duplicates(keys: list[str]) -> None:
    twice = sorted({k for k in keys if keys.count(k) > 1})
    if twice:
        raise InputError(twice[0], "given twice", "each key once")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_duplicates([k for k, _ in pairs])
    return dict(pairs)


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
        if path.stat().st_size > MAX_BYTES:
            raise InputError(str(path), f"{path.stat().st_size} bytes", f"at most {MAX_BYTES} bytes")
        text = path.read_text("utf-8")
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
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise InputError(str(path), type(raw).__name__, "a mapping of keys to values")
    return raw


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` whole or not at all."""
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        try:
            file.write(text)
            file.close()
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
