"""The schedule as data: which rank runs which action in which order."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """Kinds of action; the names are those of PyTorch's pipelining runtime."""

    F = 0
    I = 1  # noqa: E741 - backward for the input, as torch and the zero-bubble papers write it
    W = 2
    B = 3
    REDUCE_GRAD = 4
    OPTIMIZER = 5


COMPUTE = (Kind.F, Kind.I, Kind.W, Kind.B)


class Action(NamedTuple):
    """One unit of work: a kind on a stage, for a microbatch (-1 where the whole batch is meant)."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.name}{self.microbatch if self.microbatch >= 0 else ''}"


@dataclass(frozen=True, eq=False)
class Schedule:
    """An order of actions per pipeline rank; one object per shape, compared by identity.

    `rank_of[s]` is the rank of stage s; data flows from stage s to s + 1 and gradients back. Synchronous
    schedules keep one weight version and no staleness. input_frees: the share of the kept activations that I frees
    (the memory law, see `Shape`).
    """

    name: str
    microbatches: int
    rank_of: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]
    weight_versions: int = 1
    staleness: int = 0
    input_frees: float = 0

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """Model chunks over all ranks."""
        return len(self.rank_of)

    def texts(self) -> list[str]:
        """Return each rank's order as text: `"0F0 0F1 0B0 ..."`, without REDUCE_GRAD and OPTIMIZER."""
        return [" ".join(str(a) for a in rank if a.kind in COMPUTE) for rank in self.actions]

    def peak_in_flight(self) -> list[int]:
        """Return, per rank, the most (stage, microbatch) activations alive: from F to B, or to W where split."""
        return [_peak(rank) for rank in self.actions]


def _peak(rank: tuple[Action, ...]) -> int:
    alive = peak = 0
    for action in rank:
        if action.kind is Kind.F:
            alive += 1
            peak = max(peak, alive)
        elif action.kind in (Kind.B, Kind.W):
            alive -= 1
    return peak
