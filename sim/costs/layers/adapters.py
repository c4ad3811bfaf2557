"""Low-rank adapters beside frozen products (LoRA, arXiv 2106.09685, section 4.1): y = x W^T + s x A^T B^T.

What is frozen needs no weight gradients; adapters run in 16 bits whatever a recipe does with the products beside them,
by kernels of their own (Megatron-Bridge's `LoRALinear` and `ParallelLinearAdapter`). What tensor-parallel ranks
exchange of their few columns is left out; the gradients of the first layer's inputs, which nothing needs, are counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sim.costs.algebra import Expr, symbol
from sim.costs.kernels import element_bytes
from sim.costs.layers.ops import Op, Sizes, gemm, hidden, kv_columns, moved, query_width, tp, v_width
from sim.costs.layers.structure import BlockKind
from sim.specs.adapters import ADAPTED

rank = symbol("adapter_rank")


def frozen(ops: Iterable[Op], regathers: tuple[str, ...] = ()) -> Iterator[Op]:
    """Yield what is left of operations whose weights are frozen: no weight gradients, nothing that runs beside them,
    and no second gathering of a product's input but of those that `regathers` names."""
    for op in ops:
        again = op.name.endswith("input gather") and op.name not in regathers
        if op.phase != "backward_weight" and not again:
            yield replace(op, overlap="") if op.overlap.endswith("wgrad") else op


def adapted(kind: BlockKind, size: Sizes, ops: Iterable[Op]) -> Iterator[Op]:
    """Yield the operations `ops` of a layer whose weights are frozen, and its adapters'."""
    on = ADAPTED[kind.adapted]
    read = {"qkv": "attention input gather", "mlp up": "mlp input gather"}
    yield from frozen(ops, tuple(gather for product, gather in read.items() if product in on))
    for product, (columns, inner) in _shapes(kind, size).items():
        if product in on:
            yield from _adapter(product, size.tokens, columns, inner)


def _shapes(kind: BlockKind, size: Sizes) -> dict[str, tuple[Expr, Expr]]:
    """Return by product the columns that a rank makes of how many it reads."""
    width = size.of("ffn") / tp
    return {
        "qkv": (query_width / tp + 2 * kv_columns, hidden),
        "attention out": (hidden, v_width / tp),
        "mlp up": ((2 if kind.gated else 1) * width, hidden),
        "mlp down": (hidden, width),
    }


def _adapter(product: str, rows: Expr, columns: Expr, inner: Expr) -> Iterator[Op]:
    """Yield both products of an adapter, the scaling of what it gives, and the sums with what its product gives."""
    yield from gemm(f"{product} adapter down", rows, rank, inner, plain=True)
    yield from gemm(f"{product} adapter up", rows, columns, rank, plain=True)
    scaled, summed = 2 * element_bytes * rows, 3 * element_bytes * rows
    yield moved(f"{product} adapter sum", "forward", (scaled + summed) * columns)
    yield moved(f"{product} adapter sum dgrad", "backward_input", scaled * columns + summed * inner)
