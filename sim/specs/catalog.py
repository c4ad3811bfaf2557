"""Lookup of catalog entries as specs; a device may also be a file of the user's."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from sim.catalog import data, meant, names
from sim.specs.dataset import Dataset, DatasetEntry
from sim.specs.device import Device, Sourced
from sim.specs.fields import InputError, check, read, short
from sim.specs.files import load_mapping
from sim.specs.model import Model
from sim.specs.precision import Precision
from sim.specs.scaling import ScalingLaw
from sim.specs.storage import Storage, StorageEntry

T = TypeVar("T")

DEVICE_SUFFIXES = (".yaml", ".yml", ".json")


def entry(kind: str, name: str) -> object:
    """Return the entry `name` of one kind as plain data, in any case and punctuation; raises InputError with the known
    names."""
    known, found = names(kind), meant(kind, name)
    if found not in known:
        raise InputError(kind.removesuffix("s"), name, "one of " + ", ".join(known))
    return data(f"{kind}/{found}.json")


def is_device_file(name: str) -> bool:
    """Return whether `name` means a device file of the user's rather than a catalog entry."""
    return name.endswith(DEVICE_SUFFIXES) and name not in names("devices")


def device(name: str) -> Device:
    """Return the catalog device `name`, or the one in the YAML or JSON file `name`.

    Raises:
        InputError: with the known names, or with the first field of the file that is wrong.
    """
    if is_device_file(name):
        try:
            status = Path(name).stat()
        except OSError:
            allowed = f"a readable device file (none at {short(name, 200)}), or {_known()}"
            raise InputError("device", Path(name).name, allowed) from None
        return _read_device(name, status.st_mtime_ns, status.st_size)
    try:
        return _catalog_device(name)
    except InputError as error:
        raise InputError("device", name, f"{error.allowed}; or the path of a device file") from None


def _known() -> str:
    return "one of " + ", ".join(names("devices"))


@lru_cache
def _catalog_device(name: str) -> Device:
    return read(Device, entry("devices", name), f"devices/{name}")


@lru_cache(maxsize=64)
def _read_device(path: str, changed_ns: int, size: int) -> Device:
    """Return the device in a file; a file that has changed since is read again."""
    del changed_ns, size  # they only tell one state of the file from another
    found, problems = check_device(load_mapping(Path(path)))
    if found is None:
        raise problems[0].under("device")
    return found


USER = "user"
"""Source of a plain number in a device file."""

_SOURCED = {key for key, hint in get_type_hints(Device).items() if Sourced in (hint, *get_args(hint))}


def check_device(raw: Mapping[str, Any]) -> tuple[Device | None, list[InputError]]:
    """Return the device that a file of the user's states, or None and everything that is wrong with the file.

    A plain number may stand where a number and its source belong; null is the same as leaving a key out.
    """
    plain = {key for key in _SOURCED & raw.keys() if not isinstance(raw[key], dict)}
    stated = {
        key: {"value": value, "source": USER} if key in plain else value
        for key, value in raw.items()
        if value is not None
    }
    found, problems = check(Device, stated)
    if found is not None and found.like is not None and found.like not in names("devices"):
        return None, [InputError("like", found.like, _known())]
    return found, [_as_written(problem, plain) for problem in problems]


def _as_written(problem: InputError, plain: set[str]) -> InputError:
    """Return a problem of `sms.value` as one of `sms` where the file has a plain number."""
    key = problem.path.partition(".")[0]
    return InputError(key, problem.value, problem.allowed) if key in plain else problem


@lru_cache
def model(name: str) -> Model:
    """Return the catalog model `name`; raises InputError with the known names."""
    return read(Model, stated_model(name), f"models/{name}")


def stated_model(name: str) -> dict[str, Any]:
    """Return what the catalog states of a model, what follows from it left out; raises InputError with known names."""
    raw = entry("models", name)
    assert isinstance(raw, dict)
    return {k: v for k, v in raw.items() if k != "source"}


@lru_cache
def precision(name: str) -> Precision:
    """Return the catalog precision `name`; raises InputError with the known names."""
    return read(Precision, entry("precisions", name), f"precisions/{name}")


@lru_cache
def scaling_law(name: str) -> ScalingLaw:
    """Return the catalog scaling law `name`; raises InputError with the known names."""
    return read(ScalingLaw, entry("scaling", name), f"scaling/{name}")


@lru_cache
def storage(name: str) -> Storage:
    """Return the catalog storage `name`; raises InputError with the known names."""
    return read(StorageEntry, entry("storage", name), f"storage/{name}").storage


@lru_cache
def dataset(name: str) -> Dataset:
    """Return the catalog dataset `name`; raises InputError with the known names."""
    return read(DatasetEntry, entry("datasets", name), f"datasets/{name}").dataset


class Entries(Mapping[str, T], Generic[T]):
    """The entries of one kind by name: `sim.models["gpt3-175b"]`."""

    def __init__(self, kind: str, reader: Callable[[str], T]) -> None:
        self._kind, self._reader = kind, reader

    def __getitem__(self, name: str) -> T:
        return self._reader(str(name))

    def __contains__(self, name: object) -> bool:
        return name in names(self._kind)

    def __iter__(self) -> Iterator[str]:
        return iter(names(self._kind))

    def __len__(self) -> int:
        return len(names(self._kind))


devices = Entries("devices", device)
models = Entries("models", model)
precisions = Entries("precisions", precision)
