"""A set of training samples as it lies on storage."""

from typing import Annotated

from sim.specs.device import Sourced, Text
from sim.specs.fields import real, spec, whole


@spec
class Dataset:
    """`samples` files of `sample_bytes` in the mean, as stored (encoded); an epoch reads each of them once.

    Raises:
        InputError: a number is out of range.
    """

    samples: Annotated[int, whole(1, 10**15)]
    sample_bytes: Annotated[float, real(1.0, 1e13, "B")]

    @property
    def size_bytes(self) -> float:
        """All of it."""
        return self.samples * self.sample_bytes


@spec
class DatasetEntry:
    """A dataset of the catalog, a source beside every number."""

    name: Text
    title: Text
    samples: Sourced
    size_bytes: Sourced

    @property
    def dataset(self) -> Dataset:
        """The numbers alone."""
        samples = int(self.samples.value)
        return Dataset(samples=samples, sample_bytes=self.size_bytes.value / samples)
