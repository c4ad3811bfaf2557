"""PyTorch's CUDA caching allocator, replayed: which memory a sequence of allocations and frees reserves.

Follows `c10/cuda/CUDACachingAllocator.cpp` (PyTorch 2.x: `malloc`, `get_free_block`, `should_split`, `alloc_block`,
`try_merge_blocks`, `release_cached_blocks`, `map_block`), its constants and its order of operations. Not replayed:
CUDA graphs' private pools, garbage collection by age. All sizes in bytes.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from sim.specs.fields import InputError, real, spec, whole
from sim.units import MIB

LEAST_BLOCK = 512
SMALL_REQUEST = MIB
"""The largest request that the small pool serves."""
SMALL_SEGMENT = 2 * MIB
LARGE_REQUEST = 10 * MIB
"""The smallest request that gets a segment of its own."""
ROUND_LARGE = 2 * MIB
ADDRESS_SPACE = 2**44
"""Of an expandable segment where nobody states the device's capacity."""

FREE, LIVE, UNMAPPED = range(3)


@spec
class AllocatorSettings:
    """What PYTORCH_CUDA_ALLOC_CONF sets, and the memory that the device has for segments.

    `round_divisions` is `roundup_power2_divisions` of all sizes; None is "no limit".

    Raises:
        InputError: a value is out of range, or no setting that PyTorch takes.
    """

    expandable_segments: bool = False
    max_split_bytes: Annotated[int, whole(LARGE_REQUEST, 2**60, "B")] | None = None
    round_divisions: Annotated[int, whole(0, 64)] = 0
    large_segment_bytes: Annotated[int, whole(LARGE_REQUEST + MIB, 2**40, "B")] = 20 * MIB
    capacity_bytes: Annotated[float, real(1.0, 1e15, "B")] | None = None

    def __post_init__(self) -> None:
        if self.round_divisions & (self.round_divisions - 1):
            raise InputError("round_divisions", self.round_divisions, "0 or a power of two")
        if self.max_split_bytes is not None and self.max_split_bytes < self.large_segment_bytes:
            wanted = f"at least large_segment_bytes = {self.large_segment_bytes} B"
            raise InputError("max_split_bytes", self.max_split_bytes, wanted)


class OutOfMemoryError(Exception):
    """No segment could be had for a request even after all cached ones were released."""


class Block:
    """A stretch of a segment; neighbours in the segment are `before` and `after`."""

    __slots__ = ("address", "after", "before", "pool", "requested", "size", "state", "stream")

    def __init__(self, pool: "Pool", stream: int, address: int, size: int, state: int) -> None:
        self.pool, self.stream, self.address, self.size, self.state = pool, stream, address, size, state
        self.before: Block | None = None
        self.after: Block | None = None
        self.requested = 0

    def splice(self, before: "Block | None", after: "Block | None") -> None:
        """Put the block between two neighbours."""
        self.before, self.after = before, after
        if before:
            before.after = self
        if after:
            after.before = self


class Pool:
    """Free blocks by stream in the order (size, address), unmapped ones by address."""

    def __init__(self, small: bool, page: int) -> None:
        self.small, self.page = small, page
        self.free: dict[int, list[tuple[int, int, Block]]] = {}
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}

    def add(self, block: Block) -> None:
        """Put a block among the free or the unmapped ones, as its state says."""
        if block.state == UNMAPPED:
            insort(self.unmapped.setdefault(block.stream, []), (block.address, block))
        else:
            insort(self.free.setdefault(block.stream, []), (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        """Take a block from where `add` put it."""
        if block.state == UNMAPPED:
            unmapped = self.unmapped[block.stream]
            del unmapped[bisect_left(unmapped, (block.address,))]
        else:
            free = self.free[block.stream]
            del free[bisect_left(free, (block.size, block.address))]

    def blocks(self) -> Iterator[Block]:
        """Yield the free blocks, streams in order."""
        for stream in sorted(self.free):
            yield from [entry[-1] for entry in self.free[stream]]


@dataclass(frozen=True)
class Segment:
    """Mapped memory in one piece: (offset, size, live) of every block in it."""

    address: int
    stream: int
    small: bool
    blocks: tuple[tuple[int, int, bool], ...]

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return sum(size for _, size, _ in self.blocks)


class Allocator:
    """The allocator of one device, its counters named as in `torch.cuda.memory_stats`.

    allocated: blocks handed out (a block that was not worth splitting counts whole); reserved: segments; requested:
    what was asked for. `placed`: (size, address) of the segments that a device really handed out, in order; equal
    blocks are told apart by address.
    """

    def __init__(self, settings: AllocatorSettings | None = None, placed: Iterable[tuple[int, int]] = ()) -> None:
        self.settings = settings or AllocatorSettings()
        self.small, self.large = Pool(True, SMALL_SEGMENT), Pool(False, self.settings.large_segment_bytes)
        self.live: dict[Hashable, Block | None] = {}
        self.pending: dict[Hashable, Block | None] = {}
        self.allocated = self.reserved = self.requested = self.retries = 0
        self.placed, self.top = deque(placed), ROUND_LARGE
        self.most_split = self.settings.max_split_bytes or 2**63
        self.capacity = self.settings.capacity_bytes or 2.0**63

    def rounded(self, size: int) -> int:
        """Return the size of the block that a request needs."""
        divisions = self.settings.round_divisions
        if divisions > 1 and size > LEAST_BLOCK * divisions:
            floor = 1 << (size.bit_length() - 1)
            step = floor // divisions
            return -(-size // step) * step
        return max(LEAST_BLOCK, -(-size // LEAST_BLOCK) * LEAST_BLOCK)

    def malloc(self, name: Hashable, request: int, stream: int = 0) -> None:
        """Serve a request of `request` bytes on a stream; a request of nothing gets nothing.

        Raises:
            InputError: the name is live, or the size is no whole number >= 0.
            OutOfMemoryError: the capacity is not enough.
        """
        if name in self.live:
            raise InputError("id", name, "an allocation that is not live")
        if not isinstance(request, int) or request < 0:
            raise InputError("bytes", request, "a whole number >= 0")
        if request == 0:
            self.live[name] = None
            return
        size = self.rounded(request)
        pool = self.small if size <= SMALL_REQUEST else self.large
        block = self._cached(pool, size, stream) or self._new(pool, size, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._new(pool, size, stream)
        if block is None:
            self.retries += 1
            self.release_cached()
            block = self._new(pool, size, stream)
        if block is None:
            raise OutOfMemoryError(f"{request} bytes requested, {self.reserved} reserved of {self.capacity:.0f}")
        if self._splits(block, size):
            block = self._split(block, size)
        block.state, block.requested = LIVE, request
        self.live[name] = block
        self.allocated += block.size
        self.requested += request

    def free(self, name: Hashable) -> None:
        """Take an allocation back; its memory serves again at once.

        Raises:
            InputError: the name is not live.
        """
        self.request_free(name)
        self.complete_free(name)

    def request_free(self, name: Hashable) -> None:
        """Take an allocation off the books; other streams still use it until `complete_free`.

        Raises:
            InputError: the name is not live.
        """
        if name not in self.live:
            raise InputError("id", name, "a live allocation")
        block = self.pending[name] = self.live.pop(name)
        if block:
            self.allocated -= block.size
            self.requested -= block.requested

    def complete_free(self, name: Hashable) -> None:
        """Let the memory of an allocation whose free was requested serve again: it merges with free neighbours.

        Raises:
            InputError: no free was requested.
        """
        if name not in self.pending:
            raise InputError("id", name, "an allocation whose free was requested")
        block = self.pending.pop(name)
        if block:
            block.state = FREE
            self._merge(block, block.before)
            self._merge(block, block.after)
            block.pool.add(block)

    def release_cached(self) -> None:
        """Return cached segments to the device, as `torch.cuda.empty_cache` and a failing request do."""
        for pool in (self.large, self.small):
            for block in pool.blocks():
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif not block.before and not block.after:
                    self._release(block)

    def segments(self) -> list[Segment]:
        """Return the segments in the order of their addresses."""
        used = (b for b in (*self.live.values(), *self.pending.values()) if b)
        held = [*self.small.blocks(), *self.large.blocks(), *used]
        heads = [b for b in held if b.before is None or b.before.state == UNMAPPED]
        return [_segment(head) for head in sorted(heads, key=lambda b: b.address)]

    def _cached(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Return the smallest free block that is large enough, the lowest of equal ones."""
        free = pool.free.get(stream, [])
        i = bisect_left(free, (size,))
        if i == len(free):
            return None
        if self.settings.expandable_segments:
            # What a block can grow to is its size: it is rather kept for larger requests.
            while i + 1 < len(free) and _room(free[i + 1][-1]) < _room(free[i][-1]):
                i += 1
        block = free[i][-1]
        if size < self.most_split <= block.size:
            return None
        if size >= self.most_split and block.size >= size + 20 * MIB:
            return None
        del free[i]
        return block

    def _new(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Return a block of new memory, or None where the device has no more."""
        if self.settings.expandable_segments:
            return self._expanded(pool, size, stream)
        if pool.small:
            size = SMALL_SEGMENT
        elif size < LARGE_REQUEST:
            size = self.settings.large_segment_bytes
        else:
            size = -(-size // ROUND_LARGE) * ROUND_LARGE
        if self.reserved + size > self.capacity:
            return None
        self.reserved += size
        return Block(pool, stream, self._place(size), size, FREE)

    def _place(self, size: int) -> int:
        if self.placed and self.placed[0][0] == size:
            return self.placed.popleft()[1]
        self.placed.clear()  # the device went another way: its addresses say nothing any more
        self.top += size
        return self.top - size

    def _splits(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.small or self.settings.expandable_segments:
            return rest >= LEAST_BLOCK
        return size < self.most_split and rest > SMALL_REQUEST

    @staticmethod
    def _split(rest: Block, size: int) -> Block:
        """Return the first `size` bytes of a block; the rest is free."""
        block = Block(rest.pool, rest.stream, rest.address, size, FREE)
        block.splice(rest.before, rest)
        rest.address += size
        rest.size -= size
        rest.pool.add(rest)
        return block

    @staticmethod
    def _merge(block: Block, other: Block | None) -> None:
        """Let a block, in no pool itself, swallow a neighbour of the same state."""
        if other is None or other.state != block.state:
            return
        block.pool.remove(other)
        if block.before is other:
            block.address = other.address
            block.splice(other.before, block.after)
        else:
            block.splice(block.before, other.after)
        block.size += other.size

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self.reserved -= block.size

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """Release just enough blocks that may not be split, the largest first; whether that was enough.

        Parts of an expandable segment are never released so (`release_available_cached_blocks`).
        """
        if self.settings.max_split_bytes is None or self.settings.expandable_segments:
            return False
        wanted, free = max(size, self.most_split), pool.free.get(stream, [])
        i = bisect_left(free, (wanted,))
        if i < len(free):
            self._release(free[i][-1])
            return True
        released = 0
        while released < wanted and free and free[-1][0] >= self.most_split:
            released += free[-1][0]
            self._release(free[-1][-1])
        return released >= wanted

    def _expanded(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Return a free block of at least `size` bytes at the lowest place where pages can be mapped for it."""
        block = self._expandable(pool, size, stream)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.after
            assert following is not None  # `_expandable` found room
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def _expandable(self, pool: Pool, size: int, stream: int) -> Block:
        for _, unmapped in pool.unmapped.get(stream, []):
            block = unmapped.before if unmapped.before and unmapped.before.state == FREE else unmapped
            room = 0
            following: Block | None = block
            while room < size and following and following.state != LIVE:
                room += following.size
                following = following.after
            if room >= size:
                return block
        # Addresses for an eighth more than the device has (`find_expandable_block`).
        space = ADDRESS_SPACE if self.settings.capacity_bytes is None else int(self.capacity) * 9 // 8
        space = -(-space // pool.page) * pool.page
        self.top += space
        block = Block(pool, stream, self.top - space, space, UNMAPPED)
        pool.add(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Back the first `size` bytes of an unmapped block with whole pages; it merges with free neighbours."""
        pool = block.pool
        size = -(-size // pool.page) * pool.page
        if self.reserved + size > self.capacity:
            return False
        pool.remove(block)
        block.state = FREE
        if size < block.size:
            rest = Block(pool, block.stream, block.address + size, block.size - size, UNMAPPED)
            rest.splice(block, block.after)
            pool.add(rest)
            block.size = size
        self._merge(block, block.before)
        self._merge(block, block.after)
        pool.add(block)
        self.reserved += size
        return True

    def _unmap(self, block: Block) -> None:
        """Return the whole pages of a free block to the device."""
        pool, page = block.pool, block.pool.page
        base = block
        while base.before:
            base = base.before
        # Pages are counted from the beginning of the segment.
        first = -(-(block.address - base.address) // page) * page + base.address
        last = (block.address + block.size - base.address) // page * page + base.address
        if first >= last:
            return
        pool.remove(block)
        if first > block.address:
            front = Block(pool, block.stream, block.address, first - block.address, FREE)
            front.splice(block.before, block)
            pool.add(front)
        if block.address + block.size > last:
            back = Block(pool, block.stream, last, block.address + block.size - last, FREE)
            back.splice(block, block.after)
            pool.add(back)
        block.address, block.size, block.state = first, last - first, UNMAPPED
        self._merge(block, block.before)
        self._merge(block, block.after)
        self.reserved -= last - first
        if block.before or block.after:
            pool.add(block)


def _segment(head: Block) -> Segment:
    blocks = []
    block: Block | None = head
    while block and block.state != UNMAPPED:
        blocks.append((block.address - head.address, block.size, block.state == LIVE))
        block = block.after
    return Segment(head.address, head.stream, head.pool.small, tuple(blocks))


def _room(block: Block) -> int:
    """Return the size of a free block with the unmapped memory behind it."""
    return block.size + (block.after.size if block.after and block.after.state == UNMAPPED else 0)
