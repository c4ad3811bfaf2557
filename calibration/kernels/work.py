"""What all families share: random inputs, rotation past the caches, and the check of a result against float64."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import sympy
import torch
from torch import Tensor

from calibration.kernels.family import Machine, Suite
from sim.costs.algebra import Expr, Interpreted, symbol

T = TypeVar("T")

ITEM = {"float32": 4, "bfloat16": 2}
"""Bytes of an element, by torch's name of its type: `item` of a shape."""

TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
"""Relative error that rounding alone stays below: 2^-24 and 2^-9 an operation, through a few operations each."""

SETS = 3
MAX_SETS = 64
PERIOD = 2**24 + 1
SPARE, STRIDE = 5003, 1009
"""Stretches of drawn numbers begin at `SPARE` places, the next one `STRIDE` further on."""
CACHE_BYTES = {"cuda": 128 * 2**20, "cpu": 16 * 2**20}
"""Twice this is rotated over: more than the last-level cache of any device in the catalog; of processors 32 MiB, what
eight cores of a server share (what a step reads was written just before, or in another pass)."""

item, elements, size = symbol("item"), symbol("elements"), symbol("bytes")
ZERO: Expr = sympy.S.Zero


def main_dtype(machine: Machine) -> str:
    """Return the type that training on `machine` computes in."""
    return "bfloat16" if machine.kind == "cuda" else "float32"


def evaluate(formula: Expr, shape: Mapping[str, float]) -> float:
    """Return the value of a family's `flop` or `bytes` at a case's shape; raises KeyError if a name is missing."""
    return float(Interpreted({"value": formula})(shape)["value"])


class Draw:
    """Random tensors of one type on one machine, the same ones for the same seed."""

    def __init__(self, machine: Machine, dtype: str, seed: int) -> None:
        self.device = torch.device(machine.kind)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._pool, self._begin = torch.empty(0), 0

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return standard normal numbers (zeros would run up to 13 % faster on a GPU: fewer bits flip).

        On a processor, where they take long to draw, tensors are different stretches of the same numbers.
        """
        if self.device.type == "cpu":
            n = math.prod(shape)
            if len(self._pool) < n + SPARE:
                self._pool = torch.randn(n + SPARE, generator=self._generator)
            self._begin = (self._begin + STRIDE) % SPARE
            return self._pool[self._begin : self._begin + n].view(shape).to(dtype or self.dtype, copy=True)
        return torch.randn(shape, dtype=dtype or self.dtype, device=self.device, generator=self._generator)

    def flips(self, chance: float, *shape: int) -> Tensor:
        """Return truth values that are true with `chance`."""
        return torch.rand(shape, device=self.device, generator=self._generator) < chance

    def integers(self, high: int, *shape: int) -> Tensor:
        """Return whole numbers in [0, high)."""
        return torch.randint(high, shape, device=self.device, generator=self._generator)


def rotated(machine: Machine, set_bytes: float, make: Callable[[], T]) -> list[T]:
    """Return the sets of inputs that launches rotate over: at least three.

    Together they are larger than the cache where `MAX_SETS` allow; a set that is several times the cache evicts
    itself and is used three times over.
    """
    cache = CACHE_BYTES[machine.kind]
    if machine.kind == "cuda" and set_bytes > 4 * cache:
        return [make()] * SETS
    wanted = math.ceil(2 * cache / max(1.0, set_bytes))
    return [make() for _ in range(min(MAX_SETS, max(SETS, wanted)))]


def fits(machine: Machine, set_bytes: float, factor: float = 12) -> bool:
    """Return whether a case of `set_bytes` (inputs and outputs) may run: `factor` has room for sets and float64."""
    return factor * set_bytes <= machine.memory_bytes


@dataclass(frozen=True)
class Check:
    """The relative error of one run, `of(once())`; `of` compares what a run returned with float64."""

    once: Callable[[], Any]
    of: Callable[[Any], float]

    def __call__(self) -> float:
        return self.of(self.once())


def relative_error(out: Any, expected: Any) -> float:
    """Return the largest ||out - expected|| / ||expected|| over tensors or tuples of them; inf if not a number."""
    if not isinstance(out, Tensor):
        return max(relative_error(o, e) for o, e in zip(out, expected, strict=True))
    norm = float(torch.linalg.vector_norm(expected))
    error = float(torch.linalg.vector_norm(out.to(torch.float64) - expected)) / norm if norm > 0 else math.inf
    return error if math.isfinite(error) else math.inf


def scattered(n: int, seed: int) -> Tensor:
    """Return n random bytes on the host, the same ones again after `PERIOD` to save the time of drawing them."""
    drawn = torch.randint(256, (min(n, PERIOD),), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return drawn.repeat(-(-n // len(drawn)))[:n].clone() if n > len(drawn) else drawn


def unequal(out: Tensor, expected: Tensor) -> float:
    """Return 0 if two tensors of bytes are the same, else inf."""
    return 0.0 if torch.equal(out.cpu(), expected.cpu()) else math.inf


def doubles(inputs: Sequence[Any]) -> list[Any]:
    """Return `inputs` with floating-point tensors in float64."""
    return [t.double() if isinstance(t, Tensor) and t.is_floating_point() else t for t in inputs]


def pick(
    pool: Sequence[T],
    size_of: Callable[[T], float],
    few: float,
    suite: Suite,
    counts: tuple[int, int],
    seed: int,
    first: Sequence[T] = (),
) -> list[T]:
    """Return `first`, the smallest and the largest of `pool`, and a seeded random part of the rest.

    smoke: counts[0] of a size up to `few`; full: the same and others, counts[1] in all.
    """
    small = [p for p in pool if size_of(p) <= few]
    ends = [end for some in (small, pool) if some for end in (max(some, key=size_of), min(some, key=size_of))]
    order = list(dict.fromkeys([*first, *ends, *random.Random(seed).sample(list(pool), len(pool))]))
    smoke = [p for p in order if size_of(p) <= few][: counts[0]]
    return smoke if suite == "smoke" else smoke + [p for p in order if p not in smoke][: max(0, counts[1] - len(smoke))]


def log_uniform(generator: random.Random, low: float, high: float) -> int:
    """Return a whole number whose logarithm is uniform between those of `low` and `high`."""
    return round(math.exp(generator.uniform(math.log(low), math.log(high))))
