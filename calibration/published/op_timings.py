"""Reader of Mist's timings of single operations on L4 (arXiv 2503.19050): the kernels of its training, fp16.

Of two sessions only the one that its database reads is used. In the other one, a backup, backward times hold a sum
into leaf gradients (GELU's takes twice what its bytes need) and products run a third faster than the 72 W of the device
let them in a step. Set aside too: layer norm, whose times do not grow with its size (the host issues no faster),
the embedding, whose rows do not state its width, and GELU and sums, which move large tensors as fast as the vector
kernels of other files and small ones in the L2 cache.
"""

import re
from collections.abc import Sequence

from calibration.published.public import Collector, Public, Row, number
from sim.costs import volume
from sim.costs.layers.attention import FLASH_BACKWARD_FLOP
from sim.specs.fields import InputError

HEADER = "db,op,tensor_shapes,tp_world,fwd_mean_ms,fwd_median_ms,fwd_std_ms,bwd_mean_ms,bwd_median_ms,bwd_std_ms,source"
SESSION = "cache_NVIDIA_L4"
L4_IN_TRAINING = "NVIDIA L4 in training"
FP16 = 2

Shape = tuple[int, ...]
COPIED = "torch.nn.modules.linear.Identity"
"""Its backward hands the gradient on as it is, and the harness copies it: as it does for kernels that work in place."""


def add(public: Public, rows: Sequence[Row]) -> None:
    """Add the timings of products, attention, softmax and cross-entropy to `public`.

    Raises:
        InputError: a shape or a time is not what its column holds.
    """
    found = Collector()
    held = [row for row in rows if row["db"] == SESSION]
    copies = {_elements(_shapes(row)[0]): _seconds(row, "bwd") for row in held if row["op"] == COPIED}
    for row in held:
        shapes, name = _shapes(row), row["op"].rpartition(".")[2]
        if name in ("fused_dense_func", "baddbmm", "bmm"):
            _product(found, row, name, shapes)
        elif name == "flash_attn_qkvpacked_func":
            _attention(found, row, shapes[0])
        elif name in MOVES:
            _rows(found, row, MOVES[name][0], shapes[0], copies.get(_elements(shapes[0]), 0.0))
    found.into(public)


def _product(found: Collector, row: Row, name: str, shapes: list[Shape]) -> None:
    """A layer's product; its backward time is that of both gradients, which do as much work each, and is halved.

    Of the batched products of attention both gradients are taken for products of the forward shape, as layers do.
    """
    batch = 1
    if name == "fused_dense_func":
        (n, k), m = shapes[1], _elements(shapes[0]) // shapes[1][1]
    else:
        batch, m, k = shapes[-2]
        n = shapes[-1][2]
    each = {"forward": (m, n, k), "dgrad": (m, k, n), "wgrad": (n, k, m)}
    if batch > 1:
        each = {"forward": (m, n, k), "dgrad": (m, n, k)}
    for direction, sizes in each.items():
        inputs = {name: float(x) for name, x in zip("mnk", sizes, strict=True)} | {"batch": float(batch)}
        time = _seconds(row, "fwd") if direction == "forward" else _seconds(row, "bwd") / 2
        family = "x".join(f"{v}" for v in sorted(sizes))
        found.add((L4_IN_TRAINING, "gemm", direction), inputs, time, family, row["source"])


def _attention(found: Collector, row: Row, qkv: Shape) -> None:
    """Causal flash attention on packed (batch, seq, 3, heads, head dimension)."""
    batch, seq, _, heads, width = qkv
    flop = 2.0 * batch * heads * seq**2 * width  # 4 b h s^2 d, halved by the causal mask
    for direction, factor, part in (("forward", 1.0, "fwd"), ("backward", FLASH_BACKWARD_FLOP, "bwd")):
        inputs = {"flop": factor * flop, "seq": float(seq), "rows": float(batch * heads * seq)}
        family = f"{batch} x {heads} heads, {seq}"
        found.add((L4_IN_TRAINING, "attention", direction), inputs, _seconds(row, part), family, row["source"])


MOVES = {
    "scaled_upper_triang_masked_softmax_fn": ("softmax", volume.softmax),
    "_vocab_parallel_cross_entropy": ("cross_entropy", volume.cross_entropy),
}
"""Operation -> the kernel that it is, and the bytes per element that layers count for it."""


def _rows(found: Collector, row: Row, op: str, shape: Shape, copy_s: float) -> None:
    """A kernel over rows; of the softmax, which works in place, the harness's copy is taken off its backward."""
    elements = _elements(shape)
    for direction, part in (("forward", "fwd"), ("backward", "bwd")):
        size = float(MOVES[row["op"].rpartition(".")[2]][1](direction, FP16)) * elements
        inputs = {"bytes": size, "columns": float(shape[-1])}
        time = _seconds(row, part) - (copy_s if (op, direction) == ("softmax", "backward") else 0.0)
        found.add((L4_IN_TRAINING, op, direction), inputs, time, f"{elements}", row["source"])


def _shapes(row: Row) -> list[Shape]:
    """Return the shapes of the tensors that a row names: `x[1, 2048]float16;weight[8, 2048]float16`."""
    held = [re.fullmatch(r"\w+\[([0-9, ]+)\]\w+", text) for text in row["tensor_shapes"].split(";")]
    if not all(held):
        allowed = "names, sizes and types of tensors such as x[1, 2048]float16;y[8]float16"
        raise InputError(f"{row['']}.tensor_shapes", row["tensor_shapes"], allowed)
    return [tuple(int(n) for n in match[1].split(",") if n.strip()) for match in held if match]


def _elements(shape: Shape) -> int:
    product = 1
    for n in shape:
        product *= n
    return product


def _seconds(row: Row, part: str) -> float:
    return number(row, f"{part}_mean_ms") / 1e3
