"""Where data is read from and checkpoints are written to."""

from typing import Annotated, Literal

from sim.specs.device import Sourced, Text
from sim.specs.fields import real, spec


@spec
class Storage:
    """What storage gives: to every node its own (`shared` node), or to all nodes together (`shared` cluster).

    `latency_s` is what the first byte of every file read takes beside its transfer, as one reader sees it; readers wait
    for it side by side, and share the bandwidths.

    Raises:
        InputError: a number is out of range.
    """

    read_bytes_per_s: Annotated[float, real(1e3, 1e14, "B/s")]
    write_bytes_per_s: Annotated[float, real(1e3, 1e14, "B/s")]
    latency_s: Annotated[float, real(0.0, 60.0, "s")] = 0.0
    shared: Literal["node", "cluster"] = "node"


@spec
class StorageEntry:
    """Storage of the catalog, a source beside every number."""

    name: Text
    title: Text
    read_bytes_per_s: Sourced
    write_bytes_per_s: Sourced
    latency_s: Sourced
    shared: Literal["node", "cluster"] = "node"

    @property
    def storage(self) -> Storage:
        """The numbers alone."""
        return Storage(
            read_bytes_per_s=self.read_bytes_per_s.value,
            write_bytes_per_s=self.write_bytes_per_s.value,
            latency_s=self.latency_s.value,
            shared=self.shared,
        )
