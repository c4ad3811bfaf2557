"""The schedules to choose from: made from the machine alone, for all sizes (Hidet, section 4.3: hardware-centric).

Hidet's space is small because its choices fit the hardware, not the sizes of a matrix: register tiles that keep the
units busy and fit the registers, blocks that fit the cache. Sizes that no tile divides are predicated.
"""

from dataclasses import dataclass
from itertools import product

from calibration.taskmap.contraction import Contraction
from calibration.taskmap.mapping import TaskMapping, repeat, spatial
from calibration.taskmap.processor import Processor
from calibration.taskmap.program import Program, matmul

ROWS = (4, 6, 8, 12, 14)
VECTORS = (1, 2, 3, 4)
HIGH, WIDE, DEPTHS = (2, 8), (1, 2, 4), (64, 256)
"""Register tiles of a block, and the depth of its tiles."""
MOST = 200


@dataclass(frozen=True)
class KernelSchedule:
    """Register tiles of `rows` x `vectors` vectors, `high` x `wide` of them a block, `depth` of the sum at a time."""

    rows: int
    vectors: int
    high: int
    wide: int
    depth: int
    lanes: int

    @property
    def mapping(self) -> TaskMapping:
        """Who computes what of a block: the lanes of a vector are its workers."""
        return repeat(self.high, self.wide) * repeat(self.rows, self.vectors) * spatial(1, self.lanes)

    @property
    def block(self) -> tuple[int, int, int]:
        """Rows, columns and depth of a block's tiles."""
        return self.high * self.rows, self.wide * self.vectors * self.lanes, self.depth

    def program(self, contraction: Contraction) -> Program:
        """Return the kernel of a contraction."""
        return matmul(contraction, self.mapping, self.depth, outside=1)


def fits(schedule: KernelSchedule, machine: Processor) -> bool:
    """Return whether sums, a row of B and an element of A fit the registers, enough sums hide a product's latency, and
    the tiles fit half of a core's cache."""
    sums = schedule.rows * schedule.vectors
    high, wide, deep = schedule.block
    held = 4 * (high * wide + deep * (high + wide))
    busy = sums >= machine.products * machine.latency
    return busy and sums + schedule.vectors + 1 <= machine.registers and held <= machine.cache_bytes / 2


def schedules(machine: Processor) -> tuple[KernelSchedule, ...]:
    """Return every schedule for a machine, fewer than `MOST`, in a fixed order.

    One core computes a block, so that nothing loads while it multiplies: two buffers would only take cache.
    """
    every = (KernelSchedule(*each, machine.lanes) for each in product(ROWS, VECTORS, HIGH, WIDE, DEPTHS))
    return tuple(schedule for schedule in every if fits(schedule, machine))
