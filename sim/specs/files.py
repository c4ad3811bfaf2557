"""Plain data from YAML or JSON files: bounded in size, no aliases, no duplicate keys, no code; whole writes."""

import errno
import gzip
import json
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from sim.specs.fields import InputError

MAX_BYTES = {".json": 2**20}
MAX_YAML_BYTES = 2**15
"""Limits by suffix: the YAML parser is slow, and a file that a person writes is far below."""

WHOLE = "(file)"
"""Path of what is wrong with a file as a whole, until the file's name is at hand."""

NOT_A_MAPPING: dict[type, str] = {type(None): "nothing", list: "a list", str: "text"}
MAX_DEPTH = 32
MAX_VALUES = 50_000


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases (they multiply) and without duplicate keys (the last would win silently)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise InputError(WHOLE, "an alias (*name)", "no YAML aliases")
        tag = getattr(self.peek_event(), "tag", None)  # type: ignore[no-untyped-call]
        if tag is not None:
            raise InputError(WHOLE, f"the tag {tag}", "no YAML tags; plain values only")
        return super().compose_node(parent, index)

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:
        """Stop at a level too deep: the scanner's time grows with the square of the open brackets."""
        if self.flow_level > MAX_DEPTH:
            raise InputError(WHOLE, "deeper nesting", f"at most {MAX_DEPTH} levels")
        super().fetch_flow_collection_start(TokenClass)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        strange = [key for key in keys if not isinstance(key, str)]
        if strange:
            raise InputError("(key)", strange[0], "text as a key")
        last = {key: n for n, key in enumerate(keys)}
        twice = next((key for n, key in enumerate(keys) if last[key] != n), None)
        if twice is not None:
            line = node.value[last[twice]][0].start_mark.line + 1
            raise InputError(twice, f"given twice (again in line {line})", "each key once")
        return super().construct_mapping(node, deep)

    def construct_decimal(self, node: yaml.ScalarNode) -> int | str:
        """Return a decimal integer; YAML 1.1's octal, hexadecimal and base-60 forms stay text and are refused later."""
        text = str(self.construct_scalar(node))
        return int(text.replace("_", "")) if DECIMAL.fullmatch(text) else text

    def construct_real(self, node: yaml.ScalarNode) -> float | str:
        """Return a number with a point or an exponent; YAML 1.1's base-60 form stays text and is refused later."""
        text = str(self.construct_scalar(node))
        return text if ":" in text else float(self.construct_yaml_float(node))

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """Return a date as it stands in the file."""
        return str(self.construct_scalar(node))

    def refuse_merge(self, node: yaml.ScalarNode) -> None:
        """Refuse YAML 1.1's merge key `<<` and default key `=`."""
        raise InputError("(key)", node.value, "text as a key")


DECIMAL = re.compile(r"[-+]?[0-9][0-9_]{0,30}")
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_decimal)
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _PlainLoader.construct_real)
_PlainLoader.add_constructor("tag:yaml.org,2002:timestamp", _PlainLoader.construct_text)
_PlainLoader.add_constructor("tag:yaml.org,2002:merge", _PlainLoader.refuse_merge)
_PlainLoader.add_constructor("tag:yaml.org,2002:value", _PlainLoader.refuse_merge)
SCIENTIFIC = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]{1,3}$")
"""YAML 1.2's numbers with an exponent (`300e9`): YAML 1.1 asks for a point and a sign, and leaves the others text."""
_PlainLoader.add_implicit_resolver("tag:yaml.org,2002:float", SCIENTIFIC, list("-+.0123456789"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InputError(twice, "given twice", "each key once")
    return made


def what_stands(path: Path) -> str:
    """Return why a path is no file that can be read."""
    return "no such file" if not path.exists() else "a directory" if path.is_dir() else "not a regular file"


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder; what cannot be a path is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _parse(text: str, suffix: str) -> Any:
    if suffix == ".json":
        return json.loads(text, object_pairs_hook=_unique)
    return yaml.load(text, _PlainLoader)  # noqa: S506 - a SafeLoader with less


def load_mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a `.json`, `.yaml` or `.yml` file.

    Raises:
        InputError: no such file, too large or deep, not YAML or JSON, a duplicate key, an alias, a tag or an
            unprintable character.
    """
    return mapping_of(text_of(path, _most(path.suffix)), path.suffix, str(path))


def _most(suffix: str) -> int:
    return MAX_BYTES.get(suffix, MAX_YAML_BYTES)


def mapping_of(
    text: str, suffix: str, source: str, most: int | None = None, values: int = MAX_VALUES
) -> dict[str, Any]:
    """Return the mapping in JSON (`suffix` .json) or YAML text, which errors call `source`.

    most: characters allowed, by default those of the suffix; values: how many it may hold.

    Raises:
        InputError: as for `load_mapping`.
    """
    most = most or _most(suffix)
    if len(text) > most:
        raise InputError(source, f"more than {most} characters", f"at most {most} characters")
    try:
        raw = _parse(text, suffix)
        _refuse_excess(raw, values)
    except RecursionError:
        raise InputError(source, "deeper nesting", f"at most {MAX_DEPTH} levels") from None
    except InputError as error:
        raise (InputError(source, error.value, error.allowed) if error.path == WHOLE else error) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(source, _complaint(error), "well-formed YAML or JSON") from None
    if not isinstance(raw, dict):
        raise InputError(source, NOT_A_MAPPING.get(type(raw), "a plain value"), "a mapping of keys to values")
    return raw


def state(file: Path) -> tuple[int, ...]:
    """Return what tells one state of a file from another, nothing where there is none."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def text_of(path: Path, most: int) -> str:
    """Return the UTF-8 text of a file of at most `most` bytes, of a `.gz` file those unpacked.

    Raises:
        InputError: it cannot be read or unpacked, is larger, or is no UTF-8.
    """
    try:
        if not path.is_file():
            raise InputError(str(path), what_stands(path), "a readable file")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw_bytes = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or "bytes that do not unpack"
        raise InputError(str(path), why, "a readable file") from None
    if len(raw_bytes) > most:
        raise InputError(str(path), f"more than {most} bytes", f"at most {most} bytes")
    try:
        return raw_bytes.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(str(path), "bytes that are not UTF-8", "UTF-8 text") from None


def _complaint(error: Exception) -> str:
    """Return what a parser found and where, without the text around it."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (line {error.lineno}, column {error.colno})"
    mark = getattr(error, "problem_mark", None)
    if isinstance(error, yaml.MarkedYAMLError) and mark:
        found = str(error.problem)
        found = f"{error.context} {found}" if found.startswith("but ") else found
        return f"{found} (line {mark.line + 1}, column {mark.column + 1})"
    return " ".join(str(error).split())


def _refuse_excess(raw: Any, most: int) -> None:
    """Refuse more values or levels than any file needs, and text that would reach a terminal as commands."""
    level, held = [("", raw)], 0
    for _ in range(MAX_DEPTH + 1):
        held += len(level)
        if held > most:
            raise InputError(WHOLE, f"more than {most} values", f"at most {most} values")
        level = [below for path, value in level for below in _below(path, value)]
        if not level:
            return
    raise InputError(WHOLE, "deeper nesting", f"at most {MAX_DEPTH} levels")


def _below(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in value:
            if not key.isprintable():
                raise InputError(path or "(key)", key, "printable text as a key")
        return [(f"{path}.{key}" if path else key, held) for key, held in value.items()]
    if isinstance(value, list):
        return [(f"{path}.{n}", held) for n, held in enumerate(value)]
    if isinstance(value, str) and UNPRINTABLE.search(value):
        raise InputError(path, value, "text without control characters")
    return []


UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, those that turn the direction of writing, and halves of surrogates."""


IN_A_FOLDER = "a file in an existing folder"

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Of a full or failing disk, which is nobody's input."""

DRAFT = ".draft-"
"""How the name of a file begins that is not yet in its place: what a killed process may leave behind."""


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn what keeps `path` from being written into one `InputError`; a full disk stays an `OSError` with its name."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from None
        usual = f"a place that can be written ({error.strerror})"
        allowed = usual if path.name and path.parent.is_dir() and not path.is_dir() else IN_A_FOLDER
        raise InputError("path", str(path), allowed) from None


def checked_target(option: str, path: Path | None) -> None:
    """Raise InputError, before any work is done, where `path`, if there is one, cannot be a file that is written."""
    if path is None:
        return
    if not path.name or path.is_dir() or not path.parent.is_dir():
        raise InputError(option, str(path), IN_A_FOLDER)
    # What is written takes the place of what is there: the folder counts, whatever the file's own mode is.
    if not os.access(Path(os.path.realpath(path)).parent, os.W_OK | os.X_OK):
        raise InputError(option, str(path), f"a place that can be written ({os.strerror(errno.EACCES)})")


def checked_folder(option: str, path: Path | None) -> None:
    """Raise InputError, before any work is done, where `path`, if there is one, cannot be a folder of new files."""
    if path is None:
        return
    first = next(place for place in (path, *path.absolute().parents) if place.exists())
    if path == Path() or not first.is_dir() or not os.access(first, os.W_OK | os.X_OK):
        raise InputError(option, str(path), "a folder that exists or can be made")


@contextmanager
def none_left_empty(folder: Path) -> Iterator[None]:
    """Remove `folder` and those above it at the end where they are new and nothing was written into them."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    finally:
        for place in new:
            with suppress(OSError):
                place.rmdir()


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Yield the name of a file beside `path` that takes its place at the end, or goes; links stay.

    Raises:
        InputError: `path` is a folder or a device, or cannot be written.
        OSError: the disk is full.
    """
    with writable(path):
        place = Path(os.path.realpath(path))
        if place.exists() and not place.is_file():
            raise InputError("path", str(path), IN_A_FOLDER)
    draft = place.with_name(f"{DRAFT}{uuid4().hex[:12]}")
    try:
        yield draft
        with writable(path):
            draft.chmod(place.stat().st_mode & 0o777 if place.exists() else 0o644)
            draft.replace(place)
    finally:
        with suppress(OSError):
            draft.unlink()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) to `path` whole or not at all; raises InputError where it cannot be written."""
    write_all({path: content})


def write_all(files: Mapping[Path, str | bytes]) -> None:
    """Write every content (text as UTF-8) to its path; nothing is in its place before all are written.

    Raises:
        InputError: one of them cannot be written.
        OSError: the disk is full.
    """
    with ExitStack() as drafts:
        for path, content in files.items():
            draft = drafts.enter_context(drafted(path))
            with writable(path):
                draft.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON whole or not at all; raises InputError where it cannot be written."""
    write_atomically(path, json_text(data))


def json_text(data: Any) -> str:
    """Return plain data as JSON, the text of a file."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json_text(data))


def write_listed(path: Path, data: Mapping[str, Any], name: str) -> None:
    """Write plain data as JSON whole or not at all, the list `name` last and one entry a line."""
    head = {key: value for key, value in data.items() if key != name}
    lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in data[name])
    write_atomically(path, json.dumps(head, indent=1, allow_nan=False)[:-2] + f',\n "{name}": [\n{lines}\n ]\n}}\n')
