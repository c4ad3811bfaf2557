"""Linear layers and batched products to measure: (tokens, inputs, outputs, batch) on a log grid and of transformers."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from calibration.kernels.family import Machine, Suite, Use
from calibration.kernels.stream import powers
from calibration.kernels.work import log_uniform, pick

Layer = tuple[int, int, int, int]
"""tokens, inputs, outputs, batch: y[tokens, outputs] = x[tokens, inputs] W^T, `batch` times."""

HIDDEN_FFN_KV_VOCAB = ((12288, 49152, 12288, 51200), (4096, 14336, 1024, 128256), (8192, 28672, 1024, 128256))
"""GPT-3 175B (arXiv 2005.14165), Llama 3 8B and 70B (arXiv 2407.21783): hidden, ffn, key-value width, vocabulary."""

ODD = (17, 50, 100, 333, 500, 1000, 1111, 1536, 3000, 5000)
"""Sizes that no tile divides."""


@dataclass(frozen=True)
class Budget:
    """How many layers of each sort (smoke, full), and the FLOP of the largest (fitted in smoke, fitted, held out)."""

    real: tuple[int, int]
    grid: tuple[int, int]
    odd: tuple[int, int]
    skinny: tuple[int, int]
    batched: tuple[int, int]
    random: tuple[int, int]
    larger: tuple[int, int]
    few_flop: float
    most_flop: float
    beyond_flop: float


LIBRARY = {
    "cpu": Budget((22, 44), (22, 60), (5, 12), (5, 12), (6, 14), (10, 20), (3, 6), 1.1e9, 5e9, 2e10),
    "cuda": Budget((24, 80), (24, 110), (5, 20), (5, 20), (6, 20), (10, 40), (3, 15), 3e12, 9e12, 6e13),
}
TUNED = {
    "cpu": Budget((8, 20), (8, 24), (2, 6), (2, 6), (0, 0), (4, 10), (2, 4), 1.1e9, 5e9, 2e10),
    "cuda": Budget((6, 10), (6, 12), (2, 3), (2, 3), (0, 0), (3, 6), (2, 3), 3e12, 9e12, 6e13),
}
"""By machine: of kernels that are there, and of those of which each size has to be tuned first."""


def flop(layer: Layer) -> float:
    """Return the FLOP of one product of the layer."""
    tokens, inputs, outputs, batch = layer
    return 2.0 * tokens * inputs * outputs * batch


def small_transformers() -> Iterator[Layer]:
    """Yield the layers of GPTs of hidden width 128 to 512, which a CPU core trains."""
    for hidden, tokens in product((128, 256, 384, 512), (128, 256, 512, 1024, 2048)):
        for inputs, outputs in ((1, 3), (1, 1), (1, 4), (4, 1)):
            yield tokens, inputs * hidden, outputs * hidden, 1
        for vocab in (1024, 2048, 4096, 8192):
            yield tokens, hidden, vocab, 1


def large_transformers() -> Iterator[Layer]:
    """Yield what one rank computes of `HIDDEN_FFN_KV_VOCAB` under tensor parallelism 1, 2, 4 and 8."""
    for (hidden, ffn, kv, vocab), tp, tokens in product(HIDDEN_FFN_KV_VOCAB, (1, 2, 4, 8), (2048, 4096, 8192)):
        up = ffn if ffn == 4 * hidden else 2 * ffn  # gate and value in one product
        yield tokens, hidden, (hidden + 2 * kv) // tp, 1
        yield tokens, hidden // tp, hidden, 1
        yield tokens, hidden, up // tp, 1
        yield tokens, ffn // tp, hidden, 1
        yield tokens, hidden, vocab // tp, 1


def scores(gpu: bool) -> Iterator[Layer]:
    """Yield the batched products of attention that keeps its scores, and of experts."""
    for seq, width, batch in product(
        (128, 512, 1024, 2048, 4096) if gpu else (64, 128, 256), (32, 64, 128), (4, 16, 64)
    ):
        yield seq, width, seq, batch
        yield seq, seq, width, batch


def layers(
    machine: Machine, suite: Suite, seed: int = 0, budgets: Mapping[str, Budget] = LIBRARY
) -> Iterator[tuple[Use, Layer]]:
    """Yield (use, layer) for `suite`, without repeats."""
    gpu = machine.kind == "cuda"
    budget, high = budgets[machine.kind], 16384 if gpu else 2048
    sizes = powers(16, high)
    grid = [(t, i, o, 1) for t, i, o in product(sizes, repeat=3)]
    odd = [(t, i, o, 1) for t, i, o in product([n for n in ODD if n <= high], repeat=3)]
    thin = [(t, i, o, 1) for t, i, o in product((1, 4, 8, 16, 32), sizes[4:], sizes[4:] if gpu else (1024, 4096, 8192))]
    real = list(large_transformers() if gpu else small_transformers())
    pools = (
        (real, budget.real),
        (grid, budget.grid),
        (odd, budget.odd),
        (thin, budget.skinny),
        (list(scores(gpu)), budget.batched),
    )
    seen: dict[Layer, float] = {}

    def chosen(pool: list[Layer], counts: tuple[int, int], low: float, few: float, most: float) -> list[Layer]:
        inside = [layer for layer in pool if low < flop(layer) <= most]
        new = [layer for layer in pick(inside, flop, few, suite, counts, seed) if layer not in seen]
        seen.update({layer: flop(layer) for layer in new})
        return new

    for pool, counts in pools:
        yield from (("fit", layer) for layer in chosen(pool, counts, 0, budget.few_flop, budget.most_flop))
    draw = random.Random(seed)
    drawn = [tuple(log_uniform(draw, 32, high) for _ in range(3)) for _ in range(400)]
    held = [(t, i, o, 1) for t, i, o in drawn]
    few, most = min(budget.few_flop, max(seen.values())), max(seen.values())
    yield from (("random", layer) for layer in chosen(held, budget.random, 0, few, most))
    above, beyond = (few, 2.5 * few) if suite == "smoke" else (most, budget.beyond_flop)
    wide = [*grid, *held, *((2 * t, i, o, b) for t, i, o, b in real)]
    yield from (("larger", layer) for layer in chosen(wide, budget.larger, above, beyond, beyond))
