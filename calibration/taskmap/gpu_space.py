"""The schedules to choose from on a GPU: made from the GPU and the size of an element alone, for all sizes of products.

As Hidet's (sections 4.3 and 5.1.2): blocks whose sums fit the registers and keep them busy, tiles that fit the shared
memory, as many loaded ahead as there is room for.
"""

from dataclasses import dataclass, replace
from itertools import product
from math import isqrt, log

from calibration.taskmap.contraction import Contraction
from calibration.taskmap.gpu import Gpu
from calibration.taskmap.mapping import TaskMapping, repeat, spatial
from calibration.taskmap.program import Program, buffered, matmul

SIDES, LONGEST = (32, 64, 128, 256), 4
"""Rows and columns of a block, and how many times as long as wide it may be: long ones load more for each product."""
DEPTH_BYTES = (64, 128)
"""A row of a tile: half of and all that the banks of shared memory give in a cycle."""
WARPS, STAGES = (4, 8), (2, 3, 4)
SUMS = (32, 128)
"""Sums of a thread: fewer use an operand too seldom, more leave no registers for anything else."""
BESIDE = 64
"""Registers of a thread beside its sums: operands, addresses, masks."""
MOST_REGISTERS = 255
"""Of a thread (CUDA C++ Programming Guide, technical specifications)."""
WARP, LANES, INNER = 32, (4, 8), (4, 4)
"""Threads of a warp, how they lie, and a thread's neighbouring elements (Hidet, section 5.1.2)."""
RESERVED = 1024
"""Bytes of shared memory of a block that the system takes, from compute capability 8.0 (the guide, as above)."""
MOST = 200


@dataclass(frozen=True)
class BlockSchedule:
    """Blocks of `rows` x `columns`, `depth` of the sum at a time, by `warps`; `stages` copies of the tiles.

    group: rows of blocks that go through the columns together, so that these stay in the cache. bulk: tiles are copied
    as a whole by a copy engine, not by the threads.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    group: int
    bulk: bool = False

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of warps: those whose parts of the block are squarest."""
        found = [(n, self.warps // n) for n in (1, 2, 4, 8) if self.warps % n == 0]
        found = [at for at in found if self.rows // at[0] >= 16 and self.columns // at[1] >= 32]
        return min(found, key=lambda at: abs(log(self.rows * at[1] / (self.columns * at[0]))))

    @property
    def mapping(self) -> TaskMapping:
        """Who computes what of a block: warps, outer repeats, lanes, inner repeats."""
        down, across = self.grid
        cell = LANES[0] * INNER[0], LANES[1] * INNER[1]
        outer = self.rows // down // cell[0], self.columns // across // cell[1]
        return spatial(down, across) * repeat(*outer) * spatial(*LANES) * repeat(*INNER)

    @property
    def sums(self) -> int:
        """Elements of C of each thread."""
        return self.rows * self.columns // (WARP * self.warps)

    def tiles_bytes(self, item: int) -> int:
        """Return the bytes of shared memory of all copies of the tiles; item: bytes of an element."""
        return self.stages * self.depth * (self.rows + self.columns) * item

    def resident(self, gpu: Gpu, item: int) -> int:
        """Return how many blocks an SM holds at once, by shared memory, registers, threads and blocks."""
        threads = WARP * self.warps
        reserved = RESERVED if gpu.copies_ahead else 0
        fits = (
            gpu.shared_sm_bytes // (self.tiles_bytes(item) + reserved),
            gpu.registers // (threads * (self.sums + BESIDE)),
            gpu.threads // threads,
            gpu.blocks,
        )
        return min(fits)

    def program(self, contraction: Contraction) -> Program:
        """Return the kernel of a contraction."""
        made = buffered(matmul(contraction, self.mapping, self.depth), self.stages)
        return replace(made, group=self.group, bulk=self.bulk)


def fits(schedule: BlockSchedule, gpu: Gpu, item: int) -> bool:
    """Return whether sums and tiles have room, and each thread has enough to do."""
    held = schedule.sums + BESIDE <= MOST_REGISTERS and schedule.tiles_bytes(item) <= gpu.shared_bytes
    busy = SUMS[0] <= schedule.sums <= SUMS[1]
    near = max(schedule.rows, schedule.columns) <= LONGEST * min(schedule.rows, schedule.columns)
    return busy and near and held and schedule.resident(gpu, item) > 0


def block_schedules(gpu: Gpu, item: int) -> tuple[BlockSchedule, ...]:
    """Return every schedule for a GPU and elements of `item` bytes, fewer than `MOST`, in a fixed order.

    Groups are none, or as many rows as make the blocks under way about a square. Where nothing is copied while others
    multiply there is one stage. Where a copy engine takes whole tiles (from compute capability 9.0) both ways are
    there, of tiles as deep as the banks are wide.
    """
    bulk = gpu.copies_in_bulk and item < 4
    depths = [size // item for size in DEPTH_BYTES[1 if bulk else 0 :]]
    stages = STAGES if gpu.copies_ahead else (1,)
    square = 2 ** (isqrt(gpu.sms).bit_length() - 1)
    ways = (False, True) if bulk else (False,)
    every = (BlockSchedule(*each) for each in product(SIDES, SIDES, depths, WARPS, stages, (1, square), ways))
    return tuple(schedule for schedule in every if fits(schedule, gpu, item))
