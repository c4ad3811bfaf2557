"""Which files a cache holds, read by read: the policies of `sim.specs.loading.Cache` as small classes.

Files are of equal size; what holds their bytes keeps exactly what a policy holds.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

from sim.specs.loading import Cache

Source = Literal["local", "remote", "storage"]


class CachePolicy(ABC):
    """The caches of all nodes, each of so many files."""

    def __init__(self, capacity: int, nodes: int = 1) -> None:
        self.capacity, self.nodes = capacity, nodes

    @abstractmethod
    def read(self, item: int, node: int = 0) -> Source:
        """Return where a node has a file from; what it reads from storage may be held from now on."""

    @abstractmethod
    def held(self, node: int = 0) -> int:
        """Return how many files a node holds."""


class Uncached(CachePolicy):
    """Every read goes to storage."""

    def read(self, item: int, node: int = 0) -> Source:
        """Return storage."""
        return "storage"

    def held(self, node: int = 0) -> int:
        """Return 0."""
        return 0


class LRU(CachePolicy):
    """Each node gives up what it has not read for longest, as operating systems' page caches do."""

    def __init__(self, capacity: int, nodes: int = 1) -> None:
        super().__init__(capacity, nodes)
        self._held: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(nodes)]

    def read(self, item: int, node: int = 0) -> Source:
        """Return local where the node holds the file, which is then its latest."""
        held = self._held[node]
        if item in held:
            held.move_to_end(item)
            return "local"
        held[item] = None
        if len(held) > self.capacity:
            held.popitem(last=False)
        return "storage"

    def held(self, node: int = 0) -> int:
        """Return how many files a node holds."""
        return len(self._held[node])


class MinIO(CachePolicy):
    """Each node keeps what it read first until it is full, and never gives it up (CoorDL, arXiv 2007.06775)."""

    def __init__(self, capacity: int, nodes: int = 1) -> None:
        super().__init__(capacity, nodes)
        self._held: list[set[int]] = [set() for _ in range(nodes)]

    def read(self, item: int, node: int = 0) -> Source:
        """Return local where the node keeps the file."""
        held = self._held[node]
        if item in held:
            return "local"
        if len(held) < self.capacity:
            held.add(item)
        return "storage"

    def held(self, node: int = 0) -> int:
        """Return how many files a node keeps."""
        return len(self._held[node])


class Partitioned(CachePolicy):
    """The first node to read a file keeps it for all, until it is full (CoorDL, arXiv 2007.06775)."""

    def __init__(self, capacity: int, nodes: int = 1) -> None:
        super().__init__(capacity, nodes)
        self._owner: dict[int, int] = {}
        self._counts = [0] * nodes

    def read(self, item: int, node: int = 0) -> Source:
        """Return remote where another node keeps the file."""
        owner = self._owner.get(item)
        if owner is not None:
            return "local" if owner == node else "remote"
        if self._counts[node] < self.capacity:
            self._owner[item] = node
            self._counts[node] += 1
        return "storage"

    def held(self, node: int = 0) -> int:
        """Return how many files a node keeps."""
        return self._counts[node]


CACHES: Mapping[Cache, type[CachePolicy]] = {
    "none": Uncached,
    "lru": LRU,
    "minio": MinIO,
    "partitioned": Partitioned,
}
