"""Kernels of a training step recognised among the operations of a torch profiler trace.

Matrix products are those that torch dispatches to (aten::mm, addmm, bmm), in the forward pass or as the two gradients
of one; what encloses a recognised operation is not counted again. Byte and FLOP formulas are those of the layers
(`sim.costs.layers`), at the size of the trace's elements.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from calibration.kernels.gemm import LAYOUT
from calibration.trace_tree import DTYPES, ELEMENT_BYTES, LARGEST, MOST_ELEMENTS, Dims, Recorded, Slice, elements
from sim.costs import volume
from sim.costs.layers.attention import FLASH_BACKWARD_FLOP

Product = tuple[int, int, int]
"""Rows, columns and inner dimension of a matrix product."""


@dataclass(frozen=True)
class Seen:
    """One kernel call of a trace: the key of its family, its shape by input name, its FLOP and bytes, its time."""

    op: str
    direction: str
    dtype: str
    implementation: str
    shape: Mapping[str, float]
    flop: float
    bytes: float
    seconds: float = 0.0
    launches: int = 1
    layout: str = ""


@dataclass
class Context:
    """What readers remember: shapes of forward products by autograd number, products met below a backward node, the
    first half of a cross-entropy's backward.

    Every thread has autograd numbers of its own: a forward pass that a GPU's backward thread repeats has others again.
    """

    forward: dict[int, list[Product]] = field(default_factory=lambda: defaultdict(list))
    met: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    half: list[Slice] = field(default_factory=list)


Reader = Callable[[Slice, Context], Seen | None]
PerElement = Callable[[Any], Any]


def kernels(recorded: Recorded) -> list[Seen]:
    """Return the recognised kernels in the order of time, with the host's time or that of their device kernels."""
    context = Context()
    _remember_forward(recorded, context)
    found: list[Seen] = []
    for root in recorded.slices:
        waiting = [root]
        while waiting:
            one = waiting.pop()
            seen = _read(one, context)
            if seen is None:
                waiting.extend(reversed(one.children))
            else:
                found += _timed(one, seen, context, recorded.on_device)
    return found + [seen for kernel in recorded.collectives for seen in _nccl(kernel)]


def _timed(one: Slice, seen: Seen, context: Context, on_device: bool) -> Iterator[Seen]:
    slices = [one, *context.half] if (seen.op, seen.direction) == ("cross_entropy", "backward") else [one]
    inside = [s for each in slices for s in each.below()]
    seconds = (sum(s.device_us for s in inside) if on_device else sum(s.duration_us for s in slices)) * 1e-6
    launches = sum(s.launches for s in inside) if on_device else 1
    if seen.op == "cross_entropy":
        context.half.clear()
    copied = next((s.copied for s in inside if s.copied), "")
    if copied:
        seen = _between(seen, copied)
    if seconds > 0 and all(v > 0 for v in seen.shape.values()):
        yield replace(seen, seconds=seconds, launches=launches)


def _between(seen: Seen, name: str) -> Seen:
    """Return a copy between host and device: half of the bytes of one inside the device, over another bus."""
    direction, memory = ("h2d" if "HtoD" in name else "d2h"), ("pinned" if "Pinned" in name else "pageable")
    size = seen.bytes / 2
    return replace(seen, op="copy", direction=direction, implementation=memory, shape={"bytes": size}, bytes=size)


def _nccl(kernel: Mapping[str, Any]) -> Iterator[Seen]:
    """Yield a collective from the arguments that torch gives its kernel."""
    known = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv")
    told = str(kernel["Collective name"]).replace("_", "").lower()
    direction = next((name for name in known if name.replace("_", "") in told), "")
    told_sizes = [kernel.get(f"{way} msg nelems") for way in ("In", "Out")]
    sizes = [n for n in told_sizes if type(n) is int and 0 < n <= MOST_ELEMENTS]
    ranks, dtype = kernel.get("Group size"), DTYPES.get(NCCL_TYPES.get(str(kernel.get("dtype")), ""), "")
    if direction and dtype and type(ranks) is int and 1 < ranks < LARGEST and len(sizes) == len(told_sizes):
        size = float(ELEMENT_BYTES[dtype] * max(sizes))
        shape = {"bytes": size, "ranks": ranks}
        yield Seen("collective", direction, dtype, "nccl", shape, 0.0, size, kernel["dur"] * 1e-6)


NCCL_TYPES = {"Float": "float", "BFloat16": "c10::BFloat16", "Half": "c10::Half", "Double": "double"}
"""Types of elements as torch names them beside a collective, and beside an operation."""


def _read(one: Slice, context: Context) -> Seen | None:
    if one.name in ADAM:
        return _optimizer(one)
    reader = READERS.get(one.name)
    return reader(one, context) if reader else None


def _remember_forward(recorded: Recorded, context: Context) -> None:
    for one in recorded.all():
        first = {"aten::mm": 0, "aten::addmm": 1}.get(one.name)
        if first is not None and one.sequence is not None:
            a, b = one.dims(first), one.dims(first + 1)
            if len(a) == 2 and len(b) == 2:
                context.forward[one.sequence].append((a[0], b[1], a[1]))


def _product(first: int) -> Reader:
    """Return the reader of a matrix product whose first factor is input `first`."""

    def read(one: Slice, context: Context) -> Seen | None:
        a, b = one.dims(first), one.dims(first + 1)
        if len(a) < 2 or len(a) != len(b) or a[-1] != b[-2]:
            return None
        m, k, n = a[-2], a[-1], b[-1]
        batch = a[0] if len(a) == 3 else 1
        node = one.backward
        if node is None:
            return _gemm(one, "forward", m, n, k, batch)
        if batch > 1:  # both gradients of a product of activations (attention's) count as dgrad
            return _gemm(one, "dgrad", m, n, k, batch)
        candidates = context.forward.get(-1 if node.sequence is None else node.sequence, [])
        known = next((of for of in candidates if any(_fits((m, n, k), of))), candidates[0] if candidates else None)
        direction = _gradient(one, node, (m, n, k), known, context, first)
        if direction == "wgrad" and known and (m, n) == (known[2], known[1]):
            m, n = n, m  # autograd made the transposed weight gradient: the same product, seen from the other side
        return _gemm(one, direction, m, n, k)

    return read


def _gradient(
    one: Slice, node: Slice, shape: Product, known: Product | None, context: Context, first: int
) -> Literal["dgrad", "wgrad"]:
    """Return which gradient of the forward product `known` (m, n, k) a product below the autograd node `node` is."""
    order = context.met[id(node)]
    context.met[id(node)] += 1
    if known is None:
        return "wgrad" if one.transposed(first) else "dgrad"
    as_input, as_weight = _fits(shape, known)
    if as_input and as_weight:  # square: autograd makes the input's gradient first
        return "dgrad" if order == 0 and not one.transposed(first) else "wgrad"
    return "wgrad" if as_weight else "dgrad"


def _fits(shape: Product, of: Product) -> tuple[bool, bool]:
    """Return whether a product can be the gradient of the first and of the second factor of another."""
    (rows, columns, inner), (m, n, k) = shape, of
    return (rows, columns, inner) == (m, k, n), inner == m and {rows, columns} == {n, k}


def _gemm(one: Slice, direction: str, m: int, n: int, k: int, batch: int = 1) -> Seen:
    e = ELEMENT_BYTES.get(one.dtype, 0)
    shape = {"m": m, "n": n, "k": k, "batch": batch, "item": e}
    moved = batch * e * (m * k + k * n + m * n)
    return Seen("gemm", direction, one.dtype, "matmul", shape, 2.0 * batch * m * n * k, moved, layout=LAYOUT[direction])


def _linear(one: Slice, context: Context) -> Seen | None:
    """Read a linear layer that no product is seen in (a fused library call)."""
    if any(s.name in ("aten::mm", "aten::addmm", "aten::bmm") for s in one.below()):
        return None
    x, weight = one.dims(0), one.dims(1)
    if len(x) < 1 or len(weight) != 2 or x[-1] != weight[1]:
        return None
    return _gemm(one, "forward", elements(x) // max(1, x[-1]), weight[0], x[-1])


def _attention(direction: str, query: int, causal: int, implementation: str) -> Reader:
    """Return the reader of a fused attention whose query is input `query`, and whose input `causal` is the switch.

    FLOP as in `layers.attention`: 4 s^2 d a head, halved by the causal mask, 2.5 times that backward.
    """

    def read(one: Slice, _: Context) -> Seen | None:
        q, k, v = (one.dims(query + i) for i in range(3))
        if not all(len(x) == 4 for x in (q, k, v)):
            return None
        rows, keys = q[0] * q[1] * q[2], k[2]
        masked = 0.5 if one.text(causal) in ("True", "1") else 1.0
        factor = 1.0 if direction == "forward" else FLASH_BACKWARD_FLOP
        flop = factor * 2.0 * rows * keys * masked * (q[3] + v[3])
        moved = factor * ELEMENT_BYTES.get(one.dtype, 0) * (2 * elements(q) + elements(k) + elements(v))
        shape = {"flop": flop, "seq": keys, "rows": rows}
        return Seen("attention", direction, one.dtype, implementation, shape, flop, moved)

    return read


def _row_wise(op: str, direction: str, per: PerElement, implementation: str = "aten") -> Reader:
    """Return the reader of an operation on the rows of its first input; `per`: its bytes per element of them."""

    def read(one: Slice, _: Context) -> Seen | None:
        dims = one.dims(0)
        if not dims:
            return None
        size = float(per(ELEMENT_BYTES.get(one.dtype, 0)) * elements(dims))
        shape = {"bytes": size, "rows": elements(dims) / max(1, dims[-1]), "columns": dims[-1]}
        return Seen(op, direction, one.dtype, implementation, shape, 0.0, size)

    return read


def _cross_entropy(one: Slice, context: Context) -> Seen | None:
    return _row_wise("cross_entropy", "forward", partial(volume.cross_entropy, "forward"))(one, context)


def _loss_backward(one: Slice, context: Context) -> None:
    """Keep the loss's gradient; that of the log-softmax behind it completes the cross-entropy."""
    context.half[:] = [one]


def _log_softmax_backward(one: Slice, context: Context) -> Seen | None:
    dims = one.dims(0)
    whole = bool(context.half) and context.half[0].dims(1) == dims
    name, per = ("cross_entropy", volume.cross_entropy) if whole else ("softmax", volume.softmax)
    reader = _row_wise(name, "backward", partial(per, "backward"))
    return reader(one, context)


def _moved(op: str, direction: str, per: PerElement, implementation: str = "aten") -> Reader:
    """Return the reader of a memory-bound operation; `per`: its bytes per element of its first input."""

    def read(one: Slice, _: Context) -> Seen | None:
        dims = one.dims(0)
        size = float(elements(dims) * per(ELEMENT_BYTES.get(one.dtype, 0)))
        return Seen(op, direction, one.dtype, implementation, {"bytes": size}, 0.0, size) if dims else None

    return read


def _gelu(direction: str, kind: int) -> Reader:
    """Return the reader of GELU or its gradient, whose input `kind` says how it is approximated."""

    def read(one: Slice, context: Context) -> Seen | None:
        per = partial(volume.activation, direction, gated=False)
        return _moved("gelu", direction, per, "tanh" if one.text(kind) == "tanh" else "erf")(one, context)

    return read


def _pointwise(one: Slice, _: Context) -> Seen | None:
    """Read an element-wise operation: its inputs, and a result of the shape that they are broadcast to."""
    shapes = [d for d in (one.dims(i) for i in range(3)) if d]
    longest = max(map(len, shapes), default=0)
    made = [max(sizes) for sizes in zip(*((1,) * (longest - len(d)) + d for d in shapes), strict=True)]
    size = float(ELEMENT_BYTES.get(one.dtype, 0) * (sum(map(elements, shapes)) + elements(tuple(made))))
    name = one.name.removeprefix("aten::").rstrip("_")
    return Seen("elementwise", "any", one.dtype, name, {"bytes": size}, 0.0, size) if one.dtype else None


def _copy(one: Slice, _: Context) -> Seen | None:
    """Read a copy; one between types moves as many bytes as the two tensors have."""
    size = float((one.item(0) + one.item(1)) * elements(one.dims(0)))
    return Seen("elementwise", "any", one.dtype, "copy", {"bytes": size}, 0.0, size) if one.dtype else None


def _embedding(one: Slice, _: Context) -> Seen | None:
    """Read rows of a table: as many bytes as are written."""
    table, rows = one.dims(0), elements(one.dims(1))
    each = volume.embedding("forward", ELEMENT_BYTES.get(one.dtype, 0))
    size = float(each * rows * (table[-1] if table else 0))
    return Seen("embedding", "forward", one.dtype, "gather", {"bytes": size}, 0.0, size) if table else None


def _dropout(one: Slice, context: Context) -> Seen | None:
    drawn = any(s.name == "aten::bernoulli_" for s in one.below())
    return _moved("dropout", "forward", volume.dropout)(one, context) if drawn else None


ADAM = ("Optimizer.step#Adam.step", "Optimizer.step#AdamW.step")
"""Steps with two moments; others (RMSprop, NAdam) end in the same updates but move other bytes."""

UPDATES = {"aten::_fused_adam_": 0, "aten::_fused_adamw_": 0, "aten::_foreach_addcdiv_": 0, "aten::addcdiv_": 0}
"""Operations that stand once a parameter (or a list of them) in an Adam step, and their input that is it."""


def _optimizer(one: Slice) -> Seen | None:
    """Read an Adam step as a whole: parameters, gradients and two moments read, three written."""
    calls = list(_updates(one))
    tensors = [elements(d) for s in calls for d in s.list_dims(UPDATES[s.name])]
    if not sum(tensors):
        return None
    kinds = {"_fused": "fused", "_foreach": "foreach"}
    names = {s.name for s in one.below() if s.name in UPDATES}
    implementation = next((v for k, v in kinds.items() if any(k in name for name in names)), "for-loop")
    dtype = calls[0].dtype or "float32"
    size = 7.0 * ELEMENT_BYTES[dtype] * sum(tensors)
    return Seen("adam", "any", dtype, implementation, {"bytes": size, "tensors": len(tensors)}, 0.0, size)


def without_sizes(recorded: Recorded) -> bool:
    """Return whether an optimizer's step updates lists that torch does not tell the shapes of: of more than 30."""
    steps = (one for one in recorded.all() if one.name in ADAM)
    return any(_optimizer(one) is None and any(s.name in UPDATES for s in one.below()) for one in steps)


def _updates(step: Slice) -> Iterator[Slice]:
    """Yield the updates of an optimizer's step; those that a list's update is made of where torch does not tell it."""
    waiting = [step]
    while waiting:
        one = waiting.pop()
        if one.name in UPDATES and one.list_dims(UPDATES[one.name]):
            yield one
        else:
            waiting.extend(reversed(one.children))


def _collective(one: Slice, _: Context) -> Seen | None:
    """Read a gloo collective, whose slice lasts until it has ended, on one rank."""
    name = one.name.split(":")[-1]
    dims: list[Dims] = one.list_dims(0)
    size = float(sum(elements(d) for d in dims) * ELEMENT_BYTES.get(one.dtype, 4))
    return Seen("collective", name, one.dtype or "float32", "gloo", {"bytes": size}, 0.0, size) if dims else None


def _everything() -> dict[str, Reader]:
    made: dict[str, Reader] = {
        "aten::mm": _product(0),
        "aten::addmm": _product(1),
        "aten::bmm": _product(0),
        "aten::baddbmm": _product(1),
        "aten::linear": _linear,
        "aten::native_layer_norm": _row_wise("norm", "any", partial(volume.norm, "forward"), "layernorm"),
        "aten::native_layer_norm_backward": _row_wise(
            "norm", "backward", partial(volume.norm, "backward"), "layernorm"
        ),
        "aten::_fused_rms_norm": _row_wise("norm", "any", partial(volume.norm, "forward"), "rmsnorm"),
        "aten::_fused_rms_norm_backward": _row_wise("norm", "backward", partial(volume.norm, "backward"), "rmsnorm"),
        "aten::_softmax": _row_wise("softmax", "any", partial(volume.softmax, "forward")),
        "aten::_safe_softmax": _row_wise("softmax", "any", partial(volume.softmax, "forward")),
        "aten::_log_softmax": _row_wise("softmax", "any", partial(volume.softmax, "forward")),
        "aten::_softmax_backward_data": _row_wise("softmax", "backward", partial(volume.softmax, "backward")),
        "aten::_log_softmax_backward_data": _log_softmax_backward,
        "aten::nll_loss_backward": _loss_backward,
        "aten::cross_entropy_loss": _cross_entropy,
        "aten::gelu": _gelu("forward", 1),
        "aten::gelu_backward": _gelu("backward", 2),
        "aten::dropout": _dropout,
        "aten::native_dropout": _moved("dropout", "forward", volume.dropout),
        "aten::native_dropout_backward": _moved("dropout", "backward", volume.dropout),
        "aten::embedding": _embedding,
        "aten::embedding_dense_backward": _moved(
            "embedding", "backward", partial(volume.embedding, "backward"), "dense"
        ),
        "aten::copy_": _copy,
    }
    for kind, name, causal in (
        ("flash", "aten::_scaled_dot_product_flash_attention_for_cpu", (4, 7)),
        ("flash", "aten::_scaled_dot_product_flash_attention", (4, 11)),
        ("efficient", "aten::_scaled_dot_product_efficient_attention", (6, 11)),
        ("cudnn", "aten::_scaled_dot_product_cudnn_attention", (6, 14)),
    ):
        made[name] = _attention("forward", 0, causal[0], kind)
        made[f"{name}_backward"] = _attention("backward", 1, causal[1], kind)
    pointwise = ("add", "sub", "mul", "div", "silu", "silu_backward", "tanh", "sigmoid", "relu", "threshold_backward")
    made |= {f"aten::{name}{end}": _pointwise for name in pointwise for end in ("", "_")}
    return made | {f"gloo:{name}": _collective for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")}


READERS: Mapping[str, Reader] = _everything()
