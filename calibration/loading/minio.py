"""Samples kept in memory for all processes of a node: MinIO's rule (CoorDL, arXiv 2007.06775), and LRU beside it.

Bytes are files in a folder, which should be on a file system in memory (/dev/shm); what is kept where stands in
`Cells`, so that all workers and jobs see one cache and count together. Counts are exact: who asks for a sample that
another process is just fetching waits for it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import numpy as np
from numpy.typing import NDArray

from calibration.loading.cells import Cells
from calibration.loading.sources import Source
from sim.specs.fields import InputError

HITS, MISSES, USED, FULL, CLOCK, FIRST = range(6)
"""Places in the cells; of the samples, from FIRST on: ABSENT, COMING, or when it was last used."""

ABSENT, COMING = 0, -1
POLL_S, LATE_S = 0.001, 10.0
"""How often one asks for what another process fetches, and after how long it is taken to be dead."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """Samples that came out of the cache and out of the source since counting began."""

    hits: int
    misses: int


class SharedCache(ABC):
    """A source whose samples are kept in `folder`, `capacity_bytes` at most; what is there already is taken over.

    Raises:
        InputError: no capacity, or `folder` is none.
    """

    def __init__(self, source: Source, folder: Path, capacity_bytes: int) -> None:
        if capacity_bytes < 0:
            raise InputError("capacity_bytes", capacity_bytes, "0 or more")
        if not folder.is_dir():
            raise InputError("folder", str(folder), "a folder that exists")
        self.source, self.folder, self.capacity_bytes = source, folder, capacity_bytes
        self._cells = Cells(folder / "cells", FIRST + len(source))

    def __len__(self) -> int:
        return len(self.source)

    def read(self, item: int) -> bytes:
        """Return the sample from memory, or from the source and perhaps keep it."""
        if self._touch(item):
            try:
                return self._file(item).read_bytes()
            except FileNotFoundError:  # given up between the two lines
                self._uncount()
        data = self._fetched(item)
        self._offer(item, data)
        return data

    def counts(self) -> Counts:
        """Return what all processes together have counted."""
        values = self._cells.read()
        return Counts(values[HITS], values[MISSES])

    def held(self) -> list[int]:
        """Return the samples that are kept."""
        return [item for item, state in enumerate(self._cells.read()[FIRST:]) if state > ABSENT]

    def used_bytes(self) -> int:
        """Return what they fill."""
        return self._cells.read()[USED]

    @property
    def full(self) -> bool:
        """Whether something did not fit."""
        return bool(self._cells.read()[FULL])

    def restart(self) -> None:
        """Count from zero."""
        with self._cells.locked() as values:
            values[HITS] = values[MISSES] = 0

    def _file(self, item: int) -> Path:
        return self.folder / f"{item}.bytes"

    def _touch(self, item: int) -> bool:
        """Count a use of the sample and return whether it is kept; waits for it where it is just coming."""
        late = monotonic() + LATE_S
        while True:
            with self._cells.locked() as values:
                state = values[FIRST + item]
                if state != COMING or monotonic() > late:
                    values[CLOCK] += 1
                    values[HITS if state > ABSENT else MISSES] += 1
                    if state > ABSENT:
                        values[FIRST + item] = values[CLOCK]
                    elif self._wants(values):
                        values[FIRST + item] = COMING
                    return bool(state > ABSENT)
            sleep(POLL_S)

    def _fetched(self, item: int) -> bytes:
        """Return the sample from the source; where that fails nobody waits for it any more."""
        try:
            return self.source.read(item)
        except BaseException:
            with self._cells.locked() as values:
                if values[FIRST + item] == COMING:
                    values[FIRST + item] = ABSENT
            raise

    def _uncount(self) -> None:
        with self._cells.locked() as values:
            values[HITS] -= 1
            values[MISSES] += 1

    def _offer(self, item: int, data: bytes) -> None:
        """Keep the sample if the policy makes room for it and memory has some."""
        with self._cells.locked() as values:
            if values[FIRST + item] != COMING:
                return
            kept = self._make_room(values, len(data))
            values[USED] += len(data) if kept else 0
        if kept:
            kept = self._written(item, data)
        with self._cells.locked() as values:
            values[CLOCK] += 1
            values[FIRST + item] = values[CLOCK] if kept else ABSENT

    def _written(self, item: int, data: bytes) -> bool:
        try:
            self._file(item).write_bytes(data)
        except BaseException as error:
            self._file(item).unlink(missing_ok=True)
            with self._cells.locked() as values:
                values[USED] -= len(data)
                values[FIRST + item] = ABSENT
            if not isinstance(error, OSError):  # else the file system is smaller than was said
                raise
            return False
        return True

    @abstractmethod
    def _wants(self, values: Numbers) -> bool:
        """Return whether another sample may be kept."""

    @abstractmethod
    def _make_room(self, values: Numbers, size_bytes: int) -> bool:
        """Return whether a sample of that size is to be kept, and make room for it."""


class MinIO(SharedCache):
    """Samples are kept as they come until one does not fit, and never given up.

    Of N samples that are read in any order once an epoch, exactly N less the kept ones are read from the source in
    every epoch after the first.
    """

    def _wants(self, values: Numbers) -> bool:
        return not values[FULL]

    def _make_room(self, values: Numbers, size_bytes: int) -> bool:
        if values[USED] + size_bytes > self.capacity_bytes:
            values[FULL] = 1
        return not values[FULL]


class LRU(SharedCache):
    """The sample that nobody has used for the longest time gives way; one cache of all processes."""

    def _wants(self, values: Numbers) -> bool:
        return True

    def _make_room(self, values: Numbers, size_bytes: int) -> bool:
        if size_bytes > self.capacity_bytes:
            return False
        states = values[FIRST:]
        while values[USED] + size_bytes > self.capacity_bytes:
            kept = np.flatnonzero(states > ABSENT)
            if not len(kept):  # all that fills it is being written
                return False
            oldest = int(kept[np.argmin(states[kept])])
            states[oldest] = ABSENT
            values[USED] -= self._file(oldest).stat().st_size
            self._file(oldest).unlink()
        return True
