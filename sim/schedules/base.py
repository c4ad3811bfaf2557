"""What every schedule supplies: the order; and, where there are any, closed forms of its length and memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from sim.schedules.ir import Schedule
from sim.specs.pipelines import PIPELINES, Pipeline

Expr = Any
"""A number, an array or a symbolic expression."""


@dataclass(frozen=True)
class Shape:
    """Size of a pipeline: ranks, microbatches, chunks (stages) a rank, microbatches a chunk takes in turn.

    memory_limit: the most microbatches' activations a rank may keep (0: the kind's own), for kinds that search; with
    several chunks a rank, the most chunk activations.
    input_frees: the share of them that I frees; W frees the rest. 0 is PyTorch's law (I frees nothing), the
    zero-bubble paper's is 1 - M_W / M_B = 1 - 32 h / (34 h + 5 a s) (arXiv 2401.10241, section 2.3).
    variant: whose order it is where several differ ("": the kind's first). PyTorch's grouping of an interleaved order
    is m // max(1, m // p) instead of p.
    replicas: ranks of each stage, for kinds that replicate stages one by one (empty: one each). vertical_sync: all
    stages use one version of the weights for a microbatch, for kinds that would not (arXiv 1806.03377, section 3.3).
    """

    ranks: int
    microbatches: int
    chunks: int = 1
    group: int = 0
    memory_limit: float = 0
    input_frees: float = 0
    variant: str = ""
    replicas: tuple[int, ...] = ()
    vertical_sync: bool = False

    def __post_init__(self) -> None:
        torch = self.variant == "torch" and self.ranks > 0
        own = torch_group(self.ranks, self.microbatches) if torch else self.ranks
        object.__setattr__(self, "group", self.group or own)


def torch_group(ranks: int, microbatches: int) -> int:
    """Return how many microbatches a chunk takes in turn in PyTorch's interleaved orders (its "per round")."""
    return microbatches // max(1, microbatches // ranks)


@dataclass(frozen=True)
class Work:
    """Integer durations that a searched order is made for: one of each per stage.

    forward, input, weight: of F, I and W; message[s]: between stages s - 1 and s, in either direction.
    """

    forward: tuple[int, ...]
    input: tuple[int, ...]
    weight: tuple[int, ...]
    message: tuple[int, ...]

    @classmethod
    def uniform(cls, stages: int, forward: int = 1, input: int = 1, weight: int = 1, message: int = 0) -> "Work":
        """Return the same durations on all stages."""
        return cls(*((duration,) * stages for duration in (forward, input, weight, message)))


@dataclass(frozen=True)
class Times:
    """Seconds (or any one unit) of a pipeline whose chunks are equal but for the first and the last.

    forward, backward: of a plain chunk; embedding_*: extra of the first; head_*: extra of the last; send: of one
    boundary message (less than nothing: of what a pass takes, only its own rank waits for that), in the mean;
    longer: what that is longer than the one between the last two ranks; slowest: what the longest is longer than the
    mean; *weight: the part of a backward that W is where a schedule splits it; group: microbatches that a chunk takes
    in turn (0: as many as ranks). Each may be a number, an array or an expression; `maximum` must suit them.
    """

    forward: Expr
    backward: Expr
    embedding_forward: Expr
    embedding_backward: Expr
    head_forward: Expr
    head_backward: Expr
    send: Expr
    ranks: Expr
    chunks: Expr
    microbatches: Expr
    maximum: Callable[..., Expr]
    minimum: Callable[..., Expr]
    weight: Expr = 0
    embedding_weight: Expr = 0
    head_weight: Expr = 0
    longer: Expr = 0
    slowest: Expr = 0
    group: Expr = 0

    @property
    def chunk(self) -> Expr:
        """Forward and backward of a plain chunk."""
        return self.forward + self.backward

    @property
    def embedding(self) -> Expr:
        """Extra of the first chunk."""
        return self.embedding_forward + self.embedding_backward

    @property
    def head(self) -> Expr:
        """Extra of the last chunk."""
        return self.head_forward + self.head_backward

    @property
    def through(self) -> Expr:
        """Forward and backward for the input of a plain chunk: what other ranks wait for."""
        return self.chunk - self.weight

    @property
    def embedding_through(self) -> Expr:
        """The same of the first chunk's extra."""
        return self.embedding - self.embedding_weight

    @property
    def head_through(self) -> Expr:
        """The same of the last chunk's extra."""
        return self.head - self.head_weight

    @property
    def alone(self) -> Expr:
        """1 where one rank has both ends, else 0."""
        return 1 - self.minimum(1, self.ranks - 1)

    def most(self, first: Expr, last: Expr) -> Expr:
        """Return what the ends add to a plain chunk on the rank where that is most.

        Extras may be negative: an end has fewer layers, or copies to the host hide beside it.
        """
        between = self.minimum(1, self.maximum(0, self.ranks - 2))
        ends = self.maximum(first + self.alone * last, last + self.alone * first)
        return ends + between * self.maximum(0, -ends)


Refusal = tuple[str, object, str] | None
"""(field, value, allowed) of what makes a shape illegal."""


class ScheduleKind(ABC):
    """A kind of schedule: the order behind a name of `PIPELINES`. Adding one: see ARCHITECTURE.md."""

    name: str
    searched: bool = False
    """Whether the order depends on durations and a memory limit."""
    variants: ClassVar[tuple[str, ...]] = ()
    """Generators whose order it is, the default first."""
    delayed: ClassVar[bool] = False
    """Whether an update may wait until the end of the next step's passes: gradients are reduced beside them."""
    joins: ClassVar[bool] = False
    """Whether it also runs some of them whole (B)."""
    grouped: ClassVar[bool] = False
    """Whether the order depends on the shape's `group`."""
    replicated: ClassVar[bool] = False
    """Whether stages may run on several ranks each, and weights may be synchronised over the stages."""

    @property
    def pipeline(self) -> Pipeline:
        """What plans know of it."""
        return PIPELINES[self.name]

    @property
    def chunks(self) -> int:
        """Chunks a rank holds if the user names none, those of both copies of the model counted."""
        return self.pipeline.chunks

    @property
    def copies(self) -> int:
        """Copies of the model that are trained at once."""
        return self.pipeline.copies

    @property
    def asynchronous(self) -> bool:
        """Whether there is no flush: the order then has its own OPTIMIZER actions."""
        return self.pipeline.asynchronous

    @property
    def splits(self) -> bool:
        """Whether backwards run in two parts (I and W), or some of them."""
        return self.pipeline.splits

    def group(self, asked: int, microbatches: int) -> int:
        """Return the shape's group of a step of so many microbatches whose plan asks for groups of `asked`."""
        del microbatches
        return asked if self.grouped else 0

    def refusal(self, shape: Shape) -> Refusal:
        """Return (field, value, allowed) of what makes `shape` illegal, or None."""
        if shape.chunks != self.chunks and not self.pipeline.any_chunks:
            return "virtual_stages", shape.chunks, f"{self.chunks} with {self.name}"
        return None

    def most_pairs(self, ranks: Expr, microbatches: Expr) -> Expr:
        """Return the most fused pairs that a rank runs."""
        del ranks, microbatches
        return 0

    @abstractmethod
    def build(self, shape: Shape, work: Work) -> Schedule:
        """Return the order of a legal shape; only a searched kind looks at the durations."""

    def rank_of(self, shape: Shape) -> tuple[int, ...]:
        """Return the rank of every stage."""
        return self.pipeline.rank_of(shape.ranks, shape.chunks)


class ClosedKind(ScheduleKind):
    """A kind whose length and memory have closed forms: the tuner scores it without running it."""

    @abstractmethod
    def makespan(self, times: Times) -> Expr:
        """Return the time from the first action to the last (closed form; the engine is the judge)."""

    def period(self, times: Times) -> Expr:
        """Return the time from one step to the next; with a barrier between them that is the makespan."""
        return self.makespan(times)

    def in_row(self, times: Times) -> Expr:
        """Return how many forwards, and how many backwards, follow another at once on every rank at either end."""
        del times
        return 0

    def least_period(self, times: Times) -> Expr:
        """Return a period that no order of these actions can beat."""
        return self.lower_bound(times)

    def lower_bound(self, times: Times) -> Expr:
        """Return a time that no order of these actions can beat (the tuner's certificate rests on it).

        The longest of three paths: one microbatch through all chunks; all work of the last rank between the first
        microbatch's way to it and the last one's way back; all work of the first rank. A rank alone has both ends,
        whose extras may be negative (`Times.most`).
        """
        t = times
        whole = t.ranks * t.chunks * t.chunk + t.embedding + t.head + 2 * (t.ranks * t.chunks - 1) * t.send
        rank = t.microbatches * t.chunks * t.chunk
        to_last = (t.ranks - 1) * (t.chunk + 2 * t.send) + (1 + t.alone * (t.microbatches - 1)) * t.embedding
        first = rank + t.microbatches * (t.embedding + t.alone * t.head)
        return t.maximum(whole, to_last + rank + t.microbatches * t.head, first)

    def least_step(self, times: Times, first: Expr, last: Expr) -> Expr:
        """Return a time from one step to the next that no order can beat where the first and the last rank take `first`
        and `last` to update: the last action of a step is a backward of the first stage, whose rank's update follows.
        """
        del last
        return self.least_period(times) + first

    @abstractmethod
    def in_flight(self, rank: Expr, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        """Return the largest number of chunk activations alive on `rank`; `shape` may hold expressions."""

    @abstractmethod
    def of_first_chunk(self, shape: Any, minimum: Callable[..., Expr]) -> Expr:
        """Return how many microbatches of the first chunk (it has the embedding) are alive on rank 0 at its peak."""

    def of_last_chunk(self, shape: Any, minimum: Callable[..., Expr], maximum: Callable[..., Expr]) -> Expr:
        """Return how many microbatches of the last chunk (it has the head) are alive at once."""
        del shape, minimum, maximum
        return 1
