"""Parts of a job that may be stated or named: a name stands for the entry of the catalog."""

from collections.abc import Callable
from typing import Annotated, TypeVar, get_type_hints

from pydantic import BeforeValidator, Field

from sim.specs.catalog import dataset, storage
from sim.specs.dataset import Dataset
from sim.specs.fields import InputError
from sim.specs.storage import Storage

T = TypeVar("T")


def _or_name(reader: Callable[[str], T]) -> BeforeValidator:
    """Return what puts the entry of the catalog in the place of its name."""

    def entry(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return reader(value)
        except InputError as error:
            raise InputError("", value, error.allowed) from None  # the field's own path is said outside

    return BeforeValidator(entry, get_type_hints(reader)["return"] | str)


StoredAt = Annotated[
    Storage,
    _or_name(storage),
    Field(description="a storage of the catalog, or its numbers"),
]
DataOf = Annotated[
    Dataset,
    _or_name(dataset),
    Field(description="a dataset of the catalog, or its samples and sample_bytes"),
]
