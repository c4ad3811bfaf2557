"""Fused and unfused attention through torch's `sdpa_kernel`: flash (arXiv 2205.14135), cuDNN and plain products."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from calibration.kernels.family import Case, Machine, Suite, Use, Work
from calibration.kernels.work import (
    ITEM,
    TOLERANCE,
    Check,
    Draw,
    evaluate,
    fits,
    item,
    main_dtype,
    pick,
    relative_error,
    rotated,
)
from sim.costs.algebra import Expr, symbol
from sim.costs.layers.attention import FLASH_BACKWARD_FLOP

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}

micro_batch, heads, kv_heads, seq, head_dim, causal = (
    symbol(name) for name in ("batch", "heads", "kv_heads", "seq", "head_dim", "causal")
)


@dataclass(frozen=True)
class Heads:
    """One attention: `causal` is 0 or 1, `kv_heads` fewer than `heads` with grouped queries."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    head_dim: int
    causal: int = 1

    @property
    def scores(self) -> int:
        """Elements of the scores."""
        return self.batch * self.heads * self.seq**2

    @property
    def work(self) -> float:
        """Multiplications of one product."""
        return self.scores * self.head_dim / (1 + self.causal)


CPU = tuple(
    Heads(b, h, h // g, s, d, c)
    for s in (64, 128, 256, 512, 1024)
    for b in (1, 2, 4, 8)
    for h, g, d in ((4, 1, 32), (8, 1, 32), (8, 1, 64), (4, 1, 128), (8, 4, 64))
    for c in (1, 1, 0)
)
CUDA = tuple(
    Heads(b, h, h // g, s, d, c)
    for s in (256, 512, 1024, 2048, 4096, 8192, 16384)
    for b in (1, 2, 4, 8, 16)
    for h, g, d in ((16, 1, 64), (8, 1, 128), (12, 1, 128), (32, 4, 128), (96, 1, 128), (64, 8, 128), (32, 1, 96))
    for c in (1, 1, 0)
)
"""Causal twice as often as not. Heads of small GPTs; of GPT-3 and Llama 3, whole and under tensor parallelism."""

COUNTS: dict[str, tuple[tuple[int, int], tuple[int, int], tuple[int, int]]] = {
    "flash": ((18, 60), (4, 12), (1, 4)),
    "cudnn": ((10, 50), (3, 10), (1, 4)),
    "math": ((4, 16), (1, 4), (1, 2)),
}
"""Shapes (smoke, full) to fit, held out among them, held out beyond them."""


class Attention:
    """Attention in one direction; FLOP are halved by the causal mask although unfused products compute all."""

    def __init__(self, direction: str) -> None:
        factor = 1 if direction == "forward" else FLASH_BACKWARD_FLOP
        self.direction = direction
        self.name = "attention" if direction == "forward" else "attention backward"
        self.flop: Expr = factor * 4 * micro_batch * heads * seq**2 * head_dim / (1 + causal)
        self.bytes: Expr = factor * item * micro_batch * seq * head_dim * 2 * (heads + kv_heads)

    def cases(self, machine: Machine, suite: Suite) -> Iterator[Case]:
        """Yield the shapes of every backend of the machine; a length and number of heads are a group."""
        dtype = main_dtype(machine)
        for implementation, counts in COUNTS.items():
            if implementation == "cudnn" and machine.kind == "cpu":
                continue
            for use, s in _shapes(machine, suite, counts, implementation == "math"):
                shape = {name: getattr(s, name) for name in s.__dataclass_fields__} | {"item": ITEM[dtype]}
                inputs = {"flop": evaluate(self.flop, shape), "rows": s.batch * s.heads * s.seq}
                # Unfused products keep scores of all heads; the check keeps those of a group, in float64.
                kept = 4 * s.scores * ITEM[dtype] if implementation == "math" else 0
                checked = 8 * s.heads // s.kv_heads * s.seq**2
                if fits(machine, max(evaluate(self.bytes, shape) + kept, checked)):
                    group = f"{s.heads} heads, {s.seq}"
                    yield Case("attention", self.direction, dtype, implementation, inputs | shape, group, use=use)

    def prepare(self, case: Case, machine: Machine, seed: int) -> Work:
        """Return attention over (batch, heads, seq, head_dim) views of (batch, seq, heads, head_dim) tensors."""
        draw = Draw(machine, case.dtype, seed)
        b, h, kv, s, d = (int(case.shape[name]) for name in ("batch", "heads", "kv_heads", "seq", "head_dim"))
        backend, mask, grouped = BACKENDS[case.implementation], bool(case.shape["causal"]), h != kv

        def attend(q: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, key, value, is_causal=mask, enable_gqa=grouped)

        def backward(q: Tensor, key: Tensor, value: Tensor, out: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(out, (q, key, value), dy, retain_graph=True)

        def operands() -> tuple[Tensor, ...]:
            qkv = tuple(draw.normal(b, s, width, d).transpose(1, 2) for width in (h, kv, kv))
            if self.direction == "forward":
                return qkv
            leaves = tuple(t.requires_grad_() for t in qkv)
            return (*leaves, attend(*leaves), draw.normal(b, s, h, d).transpose(1, 2))

        sets = rotated(machine, evaluate(self.bytes, case.shape), operands)
        run = attend if self.direction == "forward" else backward

        def of(out: Any) -> float:
            # Heads do not know of each other: those of the last sample's first key head are compared.
            q, key, value = (t.detach()[-1].double() for t in sets[0][:3])
            leaves = [t.detach().requires_grad_() for t in (q[: h // kv], key[0], value[0])]
            expected = _attend(mask, *leaves)
            if self.direction == "forward":
                return relative_error(out[-1, : h // kv], expected.detach())
            slopes = torch.autograd.grad(expected, leaves, sets[0][4][-1, : h // kv].double())
            return relative_error([out[0][-1, : h // kv], out[1][-1, 0], out[2][-1, 0]], slopes)

        return Work(run, sets, Check(lambda: run(*sets[0]), of), TOLERANCE[case.dtype])


def _attend(mask: bool, q: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of some heads q[heads, seq, head_dim] to one pair of key and value heads, written out."""
    scores = q @ key.T / q.shape[-1] ** 0.5
    if mask:
        scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(scores, -1) @ value


def _shapes(
    machine: Machine, suite: Suite, counts: tuple[tuple[int, int], tuple[int, int], tuple[int, int]], stores: bool
) -> Iterator[tuple[Use, Heads]]:
    """Yield (use, shape): lengths are powers of two to fit, anything held out, and more work than fitted."""
    pool, few, most = (CUDA, 2**37, 2**40) if machine.kind == "cuda" else (CPU, 2**25, 2**29)
    few, most = (few // 4, most // 16) if stores else (few, most)
    draw = random.Random(1)
    odd = [Heads(s.batch, s.heads, s.kv_heads, draw.randint(s.seq // 2, s.seq), s.head_dim, s.causal) for s in pool]
    above = few if suite == "smoke" else most
    larger = [s for s in pool if above < s.work <= 4 * above]
    least = min(s.work for s in pool)
    choices: tuple[tuple[Use, list[Heads], float, tuple[int, int]], ...] = (
        ("fit", [s for s in pool if s.work <= most], few, counts[0]),
        ("random", [s for s in odd if least < s.work <= most], few, counts[1]),
        ("larger", larger, 4 * above, counts[2]),
    )
    for use, among, limit, count in choices:
        yield from ((use, s) for s in pick(among, lambda s: s.work, limit, suite, count, seed=0))


FAMILIES = (Attention("forward"), Attention("backward"))
