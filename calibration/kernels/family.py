"""What a kernel family is: which shapes it measures, how one of them is run, and what it costs by formula."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sim.costs.algebra import Expr

Suite = Literal["smoke", "full"]
Use = Literal["fit", "random", "larger", "whole"]
"""fit: trains the model; random and larger: shapes held out of it (inside, beyond the fitted sizes); whole: blocks and
steps, never fitted."""


@dataclass(frozen=True)
class Machine:
    """Where kernels run: `kind` is cpu or cuda, `memory_bytes` what one case may allocate, `threads` of the CPU."""

    kind: Literal["cpu", "cuda"]
    memory_bytes: float
    threads: int = 1


@dataclass(frozen=True)
class Case:
    """One kernel at one shape.

    `op` and `direction` are a key of `sim.costs.kernels` where the simulator uses the kernel; `shape` holds the inputs
    of the form (elements, bytes, FLOP) and what else describes it; `dtype` is torch's name; samples of one `group`
    are never split between fit and test.
    """

    op: str
    direction: str
    dtype: str
    implementation: str
    shape: Mapping[str, float]
    group: str
    layout: str = ""
    use: Use = "fit"

    @property
    def id(self) -> str:
        """A name that tells cases apart: resumed measurements skip the names that they hold."""
        shape = " ".join(f"{k}={v:g}" for k, v in self.shape.items())
        return "/".join((self.op, self.direction, self.dtype, self.implementation, self.layout, shape))


@dataclass(frozen=True)
class Work:
    """A case made ready: `run(*inputs)` once a launch, rotating over `inputs` (at least three sets on a GPU).

    `error()` is the relative error ||out - reference|| / ||reference|| of one run against float64 (NaN where a kernel
    moves nothing that can be compared), refused above `tolerance`. `calls`: kernels of the case in one `run`.
    """

    run: Callable[..., Any]
    inputs: Sequence[tuple[Any, ...]]
    error: Callable[[], float]
    tolerance: float
    calls: int = 1


class Family(Protocol):
    """A kernel family; `flop` and `bytes` are expressions over the names in its cases' shapes."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def flop(self) -> Expr:
        """FLOP of one kernel."""
        ...

    @property
    def bytes(self) -> Expr:
        """Bytes that one kernel moves."""
        ...

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield what is to be measured, hold-outs included, in a fixed order (the sampler shuffles)."""
        ...

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return `case` ready to run, with random normal inputs drawn from `seed`."""
        ...
