"""The schedule as data: which rank runs which action in which order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate
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

    `rank_of[s]` is the rank of stage s (the placement). Data flows from stage s to s + 1 and gradients back, within
    each of `pipelines` equal runs of stages: with 2, as many stages again hold a second copy of the model and take
    microbatches of their own, numbered from 0 too. fused[rank]: positions of actions that run as one with the action
    after them (torch's OVERLAP_F_B): both start when both may, both end together. input_frees: the share of the kept
    activations that I frees (the memory law, see `Shape`). weight_versions, staleness: per rank, the versions of its
    weights that it keeps and by how many updates the version behind a gradient is older than the one it updates;
    empty: one version and none (synchronous). vertical_sync: every stage uses the version that the first stage has
    when a microbatch (a group of them that share an update) enters, not its own newest. barrier: whether no rank
    updates its weights before every rank has reduced its gradients (as clipping by the global norm asks).
    """

    name: str
    microbatches: int
    rank_of: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]
    weight_versions: tuple[int, ...] = ()
    staleness: tuple[int, ...] = ()
    input_frees: float = 0
    fused: tuple[tuple[int, ...], ...] = ()
    pipelines: int = 1
    barrier: bool = False
    vertical_sync: bool = False

    def __post_init__(self) -> None:
        ranks = len(self.actions)
        object.__setattr__(self, "weight_versions", self.weight_versions or (1,) * ranks)
        object.__setattr__(self, "staleness", self.staleness or (0,) * ranks)
        object.__setattr__(self, "fused", self.fused or ((),) * ranks)

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """Model chunks over all ranks, those of a second copy included."""
        return len(self.rank_of)

    @property
    def depth(self) -> int:
        """Stages that one microbatch passes."""
        return self.stages // self.pipelines

    def texts(self) -> list[str]:
        """Return each rank's order as text: `"0F0 (0F1;3B0)OVERLAP_F_B ..."`, without REDUCE_GRAD and OPTIMIZER.

        With two pipelines each action is led by its own: "d1:0F0" is stage 0 of the second.
        """
        return [" ".join(self._texts(rank, set(fused))) for rank, fused in zip(self.actions, self.fused, strict=True)]

    def _texts(self, rank: tuple[Action, ...], fused: set[int]) -> Iterator[str]:
        for i, action in enumerate(rank):
            if action.kind in COMPUTE and i - 1 not in fused:
                yield self.pair_label(action, rank[i + 1]) if i in fused else self.label(action)

    def pair_label(self, first: Action, second: Action) -> str:
        """Return the text of two actions that run as one."""
        return f"({self.label(first)};{self.label(second)})OVERLAP_F_B"

    def label(self, action: Action) -> str:
        """Return an action's text; with two pipelines led by its own: "d1:0F0"."""
        if self.pipelines == 1:
            return str(action)
        return f"d{action.stage // self.depth}:{action._replace(stage=action.stage % self.depth)}"

    def peak_in_flight(self) -> list[int]:
        """Return, per rank, the most (stage, microbatch) activations alive: from F to B, or to W where split."""
        return [max(in_flight(rank), default=0) for rank in self.actions]


def in_flight(rank: Iterable[Action]) -> Iterator[int]:
    """Yield how many (stage, microbatch) activations are alive after each action of a rank."""
    return accumulate((action.kind is Kind.F) - (action.kind in (Kind.B, Kind.W)) for action in rank)
