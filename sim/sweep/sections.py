"""Models, clusters and plans of a grid's configurations, each made once."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product, takewhile
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sim.catalog import names
from sim.market.job_prices import priced
from sim.plans.files import plain
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.fields import UNIONS, check, class_of, init_names
from sim.specs.job import section_readers
from sim.specs.model_file import read_model
from sim.specs.spread import Spread
from sim.sweep.filters import SECTIONS
from sim.sweep.numbering import Axis, Column

MOST_HELD = 50_000
"""Objects of one kind that are kept."""
MOST_TRIED = 10_000
"""Combinations of a section's axes that are tried before a sweep: they take about a second."""

Changes = tuple[tuple[str, Any], ...]
"""Fields, as paths below the section, with their values; an empty path stands for the section itself."""


NOWHERE = "a field: nothing stands there"
"""What an error says is allowed where a path leads through something that has no fields."""


def changed(raw: Any, changes: Changes) -> Any:
    """Return plain data with some fields set; mappings on the way are made where there are none.

    Raises:
        InputError: a path leads through text, a number or an item that a list does not have.
    """
    found = deepcopy(raw)
    for path, value in changes:
        if not path:
            found = deepcopy(value)
            continue
        place, parts = found, path.split(".")
        for n, part in enumerate(parts):
            if isinstance(place, list) and part.isdecimal() and int(part) < len(place):
                key: Any = int(part)
            elif isinstance(place, dict):
                key = part
            else:
                raise InputError(".".join(parts[: n + 1]), value, NOWHERE)
            if n == len(parts) - 1:
                place[key] = deepcopy(value)  # a field in it may be set next
            elif isinstance(place, dict):
                place = place.setdefault(key, {})
            else:
                place = place[key]
    return found


def made_model(raw: Any, changes: Changes) -> tuple[Model | None, list[InputError]]:
    """Return a model with some fields set, or None and what is wrong; of a name or a file it is what a job with that
    `base` makes."""
    try:
        raw = changed(raw, tuple(c for c in changes if not c[0]))
        fields = tuple(c for c in changes if c[0])
        return read_model(changed(_based(raw) if fields and isinstance(raw, str) else raw, fields), Path())
    except InputError as error:
        return None, [error if error.path.startswith("model") else error.under("model")]


def _based(name: str) -> dict[str, Any]:
    """Return what stands for a name or a file beside fields of its own: a base, or a layer table, which takes none."""
    return {"table" if is_table(name) else "base": name}


def is_table(name: str) -> bool:
    """Return whether a model's name is the path of a layer table."""
    found, _ = read_model(name, Path()) if name.endswith(".json") else (None, [])
    return found is not None and found.table is not None


def made(section: str, raw: Any, changes: Changes) -> tuple[Any, list[InputError]]:
    """Return the model, cluster or plan of a section with some fields set, or None and what is wrong."""
    if section == "model":
        return made_model(raw, changes)
    try:
        found, problems = check(Cluster if section == "cluster" else Plan, changed(raw, changes), section)
    except InputError as error:
        return None, [error.under(section)]
    problems = problems or (_unprofiled(found) if isinstance(found, Cluster) else [])
    return (None if problems else found), problems


def never_made(section: str, raw: Any, axes: Iterable[Axis]) -> list[InputError]:
    """Return what refuses a section whatever values its axes have, by the first of them; nothing where a combination
    can be made, or where there are too many to try."""
    own = [axis for axis in axes if axis.path.partition(".")[0] == section]
    count = prod(len(axis.values) for axis in own)
    if not own or not count or (len(own) > 1 and count > MOST_TRIED):
        return []
    below = [axis.path.partition(".")[2] for axis in own]
    rows = (wholes_first(zip(below, row, strict=True)) for row in product(*(axis.values for axis in own)))
    tried = (made(section, raw, row)[1] for row in rows)
    wrong = [problems[0] for problems in takewhile(bool, tried)]
    return wrong[:1] if len(wrong) == count else []


def _unprofiled(cluster: Cluster) -> list[InputError]:
    """Return what is wrong with the profiles that a cluster names: a prediction reads them, the cluster itself not."""
    from sim.costs.profile import load_profile  # noqa: PLC0415 - SymPy with it, which a grid of no cluster needs not
    from sim.costs.run_level import level_of  # noqa: PLC0415

    found = []
    for n, member in enumerate(cluster.members):
        try:
            load_profile(member.profile)
            level_of(member)
        except InputError as error:
            where = f"cluster.groups.{n}.profile" if cluster.groups else "cluster.profile"
            allowed = error.allowed if error.path == "cluster.profile" else f"a profile that can be read: {error}"
            found.append(InputError(where, member.profile, allowed))
    return found


def stated(thing: Any) -> dict[str, Any]:
    """Return the least plain data that makes an equal object: what follows from other fields follows them anew."""
    if getattr(thing, "table", None):
        return {"table": thing.table.data()}
    whole = held = plain(thing)
    for name in whole:
        fewer = {key: value for key, value in held.items() if key != name}
        found, _ = check(type(thing), fewer)
        if found is not None and plain(found) == whole:
            held = fewer
    return held


COUNTS = ("model.parameters", "cluster.gpus")
"""What a filter may name beside fields."""

FOLLOWING: Mapping[str, Callable[[Spread], int]] = {
    "dp": lambda spread: spread.dp,
    "fsdp_shard": lambda spread: spread.shard or spread.dp * spread.cp,
}
"""Fields of a plan that follow from its cluster where they are left out; plans of `stages` have one each a stage."""

OF_ONE_CLUSTER = ("cluster", "cluster.device", "cluster.gpus_per_node")


def at_prices(cluster: Any, axes: Iterable[str], job: Mapping[str, Any], folder: Path) -> Any:
    """Return plain data of a cluster at the price that `prices` or `training` of a job say, as many nodes as it states.

    Raises:
        InputError: a section is wrong, or prices are those of files while an axis makes other clusters of it.
    """
    readers = section_readers(job, folder)
    read = {key: readers[key](job[key]) for key in ("prices", "training") if key in job}
    prices, training = (read[key][0] if key in read else None for key in ("prices", "training"))
    held, wrong = check(Cluster, cluster, "cluster") if cluster is not None else (None, [])
    for _, problems in (*read.values(), (held, wrong)):
        if problems:
            raise problems[0]
    for path in axes:
        if prices and prices.files and (path in OF_ONE_CLUSTER or path.startswith("cluster.groups")):
            allowed = "left out where the job has prices of files, which are those of one device and node"
            raise InputError(f"axes.{path}", "stated", allowed)
    return stated(priced(held, prices, training)) if held else cluster


@dataclass(eq=False)
class Sections:
    """What makes the objects of one section, and those that it has made: an object, or the error that refuses it."""

    name: str
    raw: Any
    held: dict[Any, Any] = field(default_factory=dict)

    def at(self, changes: Changes) -> Any:
        """Return the object, or an InputError."""
        key = tuple(
            (path, repr(value) if isinstance(value, list | dict) else value, type(value)) for path, value in changes
        )
        if key not in self.held:
            if len(self.held) >= MOST_HELD:
                self.held.clear()
            found, problems = made(self.name, self.raw, changes)
            self.held[key] = found if found is not None else problems[0]
        return self.held[key]


def changes(columns: Mapping[str, Column], row: int) -> Changes:
    """Return the fields of one section that a row sets."""
    return wholes_first((path.partition(".")[2], c.values[int(c.index[row])]) for path, c in columns.items())


def wholes_first(held: Iterable[tuple[str, Any]]) -> Changes:
    """Return fields in the order to set them: a whole section, or any other mapping, before the fields in it."""
    return tuple(sorted(held, key=lambda change: len(change[0].split(".")) if change[0] else 0))


def compared(path: str) -> bool:
    """Return whether a filter may name a path beside those of axes: of a number, text, true or false."""
    return any(option in (int, float, bool) for option in _options(path)) or is_text(path)


def is_text(path: str) -> bool:
    """Return whether a field is text."""
    return any(option is str or get_origin(option) is Literal for option in _options(path))


def names_of(path: str) -> tuple[str, ...]:
    """Return the names that a field of text may have, nothing where it may be any text."""
    return tuple(name for option in _options(path) if get_origin(option) is Literal for name in get_args(option))


def _options(path: str) -> tuple[Any, ...]:
    """Return the types that the field at a path may have."""
    section, _, below = path.partition(".")
    if path in COUNTS:
        return (int,)
    hint: Any = {"model": Model, "cluster": Cluster, "plan": Plan}[section]
    for part in below.split("."):
        owner = class_of(hint)
        hint = get_type_hints(owner).get(part) if owner and part in init_names(owner) else None
    return get_args(hint) if get_origin(hint) in UNIONS else (hint,)


def valued(thing: Any, path: str, cluster: Cluster | None = None) -> Any:
    """Return the field at a path below an object, None where it has none; `cluster`: where a plan runs, from which
    follows what it leaves out of `FOLLOWING`."""
    if cluster is not None:
        return None if thing.stages else FOLLOWING[path](Spread.of(thing, cluster))
    for part in path.split("."):
        thing = getattr(thing, part, None)
    return thing


def named_files(raw: Any, folder: Path) -> Any:
    """Return a section, or an axis' value, with the paths of files in it made whole: those relative to `folder`."""
    if isinstance(raw, Mapping):
        return {key: _resolved(key, value, folder) for key, value in raw.items()}
    if isinstance(raw, list):
        return [named_files(value, folder) for value in raw]
    return raw


FILE_FIELDS = ("device", "profile", "table", "model", "base")
SUFFIXES = (".json", ".yaml", ".yml")


def _resolved(key: str, value: Any, folder: Path) -> Any:
    if not isinstance(value, str):
        return named_files(value, folder)
    return whole_path(value, folder) if key in FILE_FIELDS else value


def whole_path(value: Any, folder: Path) -> Any:
    """Return text that names a file, or a folder that is no catalog profile, as a whole path."""
    if not isinstance(value, str) or "\x00" in value:
        return named_files(value, folder)
    try:
        is_folder = value not in names("profiles") and bool(value) and (folder / value / "profile.json").is_file()
    except OSError:
        return value
    return os.path.realpath(folder / value) if is_folder or value.endswith(SUFFIXES) else value


def sections_of(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the sections of a job in `folder` that a grid is based on, the batch of `tune` over that of `plan`."""
    found = {key: whole_path(job[key], folder) for key in SECTIONS if key in job}
    tune, plan = job.get("tune"), found.get("plan", {})
    if isinstance(tune, Mapping) and "global_batch" in tune and isinstance(plan, Mapping):
        found["plan"] = {**plan, "global_batch": tune["global_batch"]}
    return found


def files_in(data: Any) -> Iterable[Path]:
    """Yield the files that plain data names: of a profile folder those that a prediction reads."""
    values: Sequence[Any] = list(data.values()) if isinstance(data, Mapping) else data if isinstance(data, list) else []
    for value in values:
        yield from files_in(value)
    if isinstance(data, str) and Path(data).is_absolute():
        for path in (Path(data), *(Path(data, name) for name in ("profile.json", "learned.json", "site.json"))):
            if path.is_file():
                yield path


def contents(data: Any) -> dict[str, str]:
    """Return by path the hashes of the files that plain data names."""
    return {str(path): sha256(path.read_bytes()).hexdigest() for path in files_in(data)}
