"""The orders that other frameworks generate themselves, and the check that a plan's own order is theirs.

Written from their published algorithms: megatron-core 0.16.1 `core/pipeline_parallel/schedules.py`
(`get_pp_rank_microbatches`, `get_schedule_table`), DeepSpeed 0.19.8 `runtime/pipe/schedule.py` (`TrainSchedule`).
"""

from collections.abc import Sequence
from itertools import zip_longest

from sim.schedules import Action, Kind, Schedule
from sim.specs import InputError

Order = tuple[tuple[Action, ...], ...]
"""The passes of every pipeline rank."""


def megatron_order(ranks: int, microbatches: int, chunks: int = 1, group: int = 0) -> Order:
    """Return Megatron-LM's 1F1B, interleaved with several chunks: `group` (default `ranks`) microbatches a turn."""
    return tuple(_megatron_rank(r, ranks, microbatches, chunks, group or ranks) for r in range(ranks))


def _megatron_rank(rank: int, ranks: int, microbatches: int, chunks: int, group: int) -> tuple[Action, ...]:
    """Virtual microbatches: groups in turn, within a group all chunks in turn, backward in reversed chunk order."""
    firsts = range(0, microbatches, group)
    table = [
        (chunk, k)
        for first in firsts
        for chunk in range(chunks)
        for k in range(first, min(first + group, microbatches))
    ]
    before = ranks - rank - 1
    ahead = before if chunks == 1 else 2 * before + (chunks - 1) * group
    warm_up = min(ahead if ranks > 1 else 0, len(table))
    forward = [Action(chunk * ranks + rank, Kind.F, k) for chunk, k in table]
    backward = [Action((chunks - 1 - chunk) * ranks + rank, Kind.B, k) for chunk, k in table]
    steady = len(table) - warm_up
    pairs = [a for pair in zip(forward[warm_up:], backward[:steady], strict=True) for a in pair]
    return (*forward[:warm_up], *pairs, *backward[steady:])


def deepspeed_order(ranks: int, microbatches: int) -> Order:
    """Return the passes of DeepSpeed's clock: 2 (microbatches + ranks - 1) ticks, a forward or a backward in each.

    A rank runs forwards in ticks of its own parity and backwards in the others; of a pass that would be of a microbatch
    before the first or after the last, the rank rests.
    """
    ticks = range(2 * (microbatches + ranks - 1))
    found = ([_at_tick(t, r, ranks) for t in ticks] for r in range(ranks))
    return tuple(tuple(a for a in rank if 0 <= a.microbatch < microbatches) for rank in found)


def _at_tick(tick: int, rank: int, ranks: int) -> Action:
    """A forward reaches rank r in tick 2 k + r; its backward leaves rank r in tick 2 k + 2 ranks - 1 - r."""
    if tick % 2 == rank % 2:
        return Action(rank, Kind.F, (tick - rank) // 2)
    return Action(rank, Kind.B, (tick - (2 * ranks - 1 - rank)) // 2)


def check_order(plan: Schedule, own: Order, whose: str) -> None:
    """Return if the framework's `own` order is the plan's, action by action.

    Raises:
        InputError: the first action that differs; what the framework runs instead.
    """
    for rank, (wanted, made) in enumerate(zip_longest(plan.actions, own, fillvalue=())):
        passes = [a for a in wanted if a.microbatch >= 0]
        for n, (a, b) in enumerate(zip_longest(passes, made)):
            if a != b:
                instead = str(b) if b is not None else "nothing more"
                place = f"plan.schedule (action {n} of pipeline rank {rank})"
                raise InputError(place, str(a) if a is not None else "nothing more", f"{instead}: the order of {whose}")


def same_order(one: Schedule, other: Schedule) -> bool:
    """Return whether two schedules run the same passes on the same ranks."""
    return one.rank_of == other.rank_of and _passes(one) == _passes(other)


def _passes(order: Schedule) -> Sequence[str]:
    return order.texts()
