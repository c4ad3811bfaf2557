"""Forms of kernel time: symbolic expressions in the shape and in a few fitted parameters.

A form is used twice, by the fit (parameters unknown) and by the layers (shape symbolic); there is no other
copy of it. Profiles store a form's id and numbers. Times in seconds, rates in FLOP/s and bytes/s.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sim.costs.algebra import Expr, ceiling, maximum, minimum, over, p_norm, root_of_squares, symbol, times

T = TypeVar("T")

BYTES_16BIT = 2
element_bytes = symbol("element_bytes")
"""Bytes of a weight and of an activation where no recipe makes them smaller: 2 (16 bit), or 4 (fp32)."""


@dataclass(frozen=True)
class Form:
    """A kernel-time expression: `seconds(inputs, parameters)`.

    `inputs` are shape quantities, `parameters` what a fit finds; `optional` are parameters of further terms with the
    values that switch these off. A profile may leave them out, `seconds` takes all of them.
    """

    id: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    seconds: Callable[[Mapping[str, Expr], Mapping[str, Expr]], Expr]
    optional: Mapping[str, float] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Every parameter, the optional ones last."""
        return (*self.parameters, *self.optional)

    def complete(self, parameters: Mapping[str, float]) -> dict[str, float]:
        """Return `parameters` with the neutral values of the terms they leave out."""
        return {**self.optional, **parameters}


def gemm_flop(m: Expr, n: Expr, k: Expr, batch: Expr = 1) -> Expr:
    """Return the FLOP of `batch` products of (m, k) and (k, n)."""
    return 2 * batch * m * n * k


def gemm_bytes(
    m: Expr, n: Expr, k: Expr, batch: Expr = 1, operand: Expr | None = None, element: Expr = BYTES_16BIT, dear: Expr = 1
) -> Expr:
    """Return the bytes that `batch` products read (at `operand` bytes an element, None: `element`) and write once.

    dear: how many bytes one that is written counts as.
    """
    return batch * ((element if operand is None else operand) * (m * k + k * n) + element * dear * m * n)


def _saturation(x: Expr, half: Expr) -> Expr:
    """Return x / (x + half): the share of the asymptotic rate reached at size x."""
    return x / (x + half)


def _whole_waves(m: Expr, n: Expr, batch: Expr, p: Mapping[str, Expr]) -> Expr:
    """Return the results that whole waves of whole tiles compute: at least batch * m * n.

    Tiles of (tile_m, tile_n) results run `units` at a time (NVIDIA, Matrix Multiplication Background User's Guide,
    sections "Tile quantization" and "Wave quantization").
    """
    tiles = batch * ceiling(m / p["tile_m"]) * ceiling(n / p["tile_n"])
    return ceiling(tiles / p["units"]) * p["units"] * p["tile_m"] * p["tile_n"]


SMALLEST_TILE = 64
"""Rows and columns of cuBLAS's smallest tile (the same guide, section "Typical Tile Dimensions in cuBLAS and
Performance"), which it takes where larger ones leave multiprocessors without work."""


NARROW_ROWS = ("odd", "even")
FEW = {"few": 0.0, "few_k0": 0.0, "few_t0": 0.0}
"""What the few channels of a network's first convolution cost: libraries pad them, and take other kernels for it."""
NARROW = {name: value for kind in NARROW_ROWS for name, value in ((kind, 1.0), (f"{kind}_t0", 0.0))} | FEW
"""What rows of matrices that do not all begin at multiples of 16 bytes cost a 16-bit product. A GPU's libraries take
other kernels for them, of narrow loads: odd: those of an odd number of elements; even: those of any other number that
`ALIGNED` does not divide. Those of a first convolution are the channels of one place (`FEW`)."""

ALIGNED = 8
"""Elements: 16-bit tensor cores want rows of 16 bytes (NVIDIA Deep Learning Performance guide, matrix products)."""


def narrow(*sizes: ArrayLike) -> dict[str, Any]:
    """Return 1 or 0 for `odd` and `even`: what rows of so many elements are, of which the worst decides."""
    odd = np.logical_or.reduce([np.mod(size, 2) > 0 for size in sizes])
    even = np.logical_or.reduce([np.mod(size, ALIGNED) > 0 for size in sizes]) & ~odd
    return {"odd": 1.0 * odd, "even": 1.0 * even}


def in_rows(direction: str, m: T, n: T, k: T) -> tuple[T, T]:
    """Return the sizes that lie in rows of a layer's matrices in a product of (m, k) and (k, n): never its samples."""
    return n, m if direction == "wgrad" else k


FEW_INPUTS = ("few", "few_k")


def few_channels(direction: str, m: Any, n: Any, k: Any, channels: Any) -> dict[str, Any]:
    """Return `few` and `few_k` of a convolution of fewer than `ALIGNED` channels: what is computed, over what is asked
    for, and elements that one result sums up, with channels padded to `ALIGNED` (NVIDIA, Optimizing Convolutional
    Layers User's Guide, section "Channels In and Out") and outputs to `SMALLEST_TILE`."""
    first, second = in_rows(direction, m, n, k)
    outputs, taps = (first, second) if direction == "forward" else (second, first)
    padded = ALIGNED / channels
    return {"few": padded * np.maximum(SMALLEST_TILE, outputs) / outputs, "few_k": padded * taps}


def _narrow(x: Mapping[str, Expr], p: Mapping[str, Expr]) -> tuple[Expr, Expr]:
    """Return how many times as long a product computes for its narrow rows, and by how much later it begins."""
    if "few" in x:
        return maximum(1, p["few"] * x["few"] * (1 + p["few_k0"] / x["few_k"])), p["few_t0"]
    kinds = [kind for kind in NARROW_ROWS if kind in x]
    return 1 + sum(x[k] * (p[k] - 1) for k in kinds), sum(x[k] * p[f"{k}_t0"] for k in kinds)


def _gemm(x: Mapping[str, Expr], p: Mapping[str, Expr]) -> Expr:
    m, n, k, batch = x["m"], x["n"], x["k"], x["batch"]
    flop = gemm_flop(m, n, k, batch)
    idle = p["waves"] * (2 * k * _whole_waves(m, n, batch, p) - flop)
    if "smallest_tile" in x:
        finer = {name: minimum(p[name], x["smallest_tile"]) for name in ("tile_m", "tile_n")}
        # No smaller tile is left that a library could take instead: all that is idle in these counts.
        idle = minimum(idle, 2 * k * _whole_waves(m, n, batch, {**p, **finer}) - flop)
    # Few rows and columns (m0, n0) are slow for what they leave idle: that is not slow for it once more. Each sum, idle
    # or not, waits for its first operands (k0).
    needed = flop / (_saturation(m, p["m0"]) * _saturation(n, p["n0"]))
    done = (needed + idle) / _saturation(k, p["k0"])
    slower, later = _narrow(x, p)
    # Short products end before the chip has slowed down to the clock that its power allows; long ones alone end later.
    sustained = 1 + (p["boost"] and p["boost"] * over(p["boost_flop"], flop + p["boost_flop"]))
    sustained -= p["throttled"] and p["throttled"] * over(flop**2, flop**2 + p["throttled_flop"] ** 2)
    compute = slower * done / (p["rate"] * sustained)
    element = x.get("element", BYTES_16BIT)
    size = gemm_bytes(m, n, k, batch, x.get("operand"), element, 1 + p["written"])
    work = p_norm(compute, size / p["bandwidth"], p["p"])
    # Every result is summed up in turn, in several parts where k is large: few results have nothing to do meanwhile.
    in_turn = p["serial"] * minimum(k, p["serial_k"])
    return p["t0"] + _fetched(size, p) + later + maximum(work, in_turn + times(1 - p["serial_hidden"], work))


def _fetched(size: Expr, p: Mapping[str, Expr]) -> Expr:
    """Return by how much later a kernel ends of which not all lies in a cache: `size` is what it reads and writes."""
    return p["cold"] and p["cold"] * over(size**2, size**2 + p["cold_bytes"] ** 2)


HEAD_TILE = 64
"""Columns of a head that kernels of fused attention are made for multiples of (cuDNN, FlashAttention)."""


def _attention(x: Mapping[str, Expr], p: Mapping[str, Expr]) -> Expr:
    eta = _saturation(x["seq"], p["s0"]) * _saturation(x["rows"], p["r0"])
    if "head_dim" in x:  # narrow heads spend more of their time on the exponentials of the scores
        wide = x["head_dim"] / (HEAD_TILE * ceiling(x["head_dim"] / HEAD_TILE))
        eta = times(eta * _saturation(x["head_dim"], p["d0"]), 1 - p["padded"] * (1 - wide))
    # Fewer rows than a wave of blocks has leave some of the chip idle; the last wave's blocks go on alone, key by key.
    work = times(maximum(1, p["least"] / x["rows"]), x["flop"] / (p["rate"] * eta))
    return p["t0"] + p["serial"] * x["seq"] + work


def _uncached(size: Expr, p: Mapping[str, Expr]) -> Expr:
    """Return the bytes that a transfer of `size` takes the time of: small ones are found in a cache."""
    return size * (1 - over(p["cached"], 1 + (size / p["b1"]) ** 2))


BY_ROW = {
    ("norm", "any"),
    ("norm", "backward"),
    ("embedding", "forward"),
    ("embedding", "backward"),
    ("residual", "backward"),
}
"""Kernels whose time depends on their rows beside what they move: a block works at each, or they are summed up."""


def _in_turn(traffic: Expr, x: Mapping[str, Expr], p: Mapping[str, Expr]) -> Expr:
    """Return how long `traffic` seconds of it take whose rows wait for each other, and a row's elements too.

    A norm's block works at one row (PyTorch, `layer_norm_kernel.cu`), and a multiprocessor holds so many blocks; sums
    over rows go from row to row, the more of them side by side the more rows there are. What is the longest of these
    hides most of the others.
    """
    if "rows" not in x:
        return traffic
    waiting = [p["row_serial"] * over(x["rows"], 1 + x["rows"] / p["serial_rows"])]
    if "column_serial" in p:
        waiting.append(p["column_serial"] * x["columns"])
    return root_of_squares(traffic, *waiting)


def _memory_bound(x: Mapping[str, Expr], p: Mapping[str, Expr]) -> Expr:
    traffic = _in_turn(_uncached(x["bytes"], p) / p["bandwidth"], x, p)
    return p["t0"] + _fetched(x["bytes"], p) + maximum(0, traffic - p["hidden"] * p["t0"])


def _row_wise(x: Mapping[str, Expr], p: Mapping[str, Expr]) -> Expr:
    columns = x["columns"]
    # A row that no longer fits what is near the arithmetic is read again; a steep step, from about 0.7 to 1.4 c1.
    again = 1 + p["spill"] * columns**8 / (columns**8 + p["c1"] ** 8)
    traffic = again * _uncached(x["bytes"], p) / (p["bandwidth"] * _saturation(columns, p["c0"]))
    return p["t0"] + _fetched(x["bytes"], p) + _in_turn(traffic, x, p)


WAVES = {"waves": 0.0, "tile_m": 128.0, "tile_n": 128.0, "units": 1.0}
BOOST = {"boost": 0.0, "boost_flop": 1.0, "throttled": 0.0, "throttled_flop": 1.0}
SERIAL = {"serial": 0.0, "serial_k": 1.0, "serial_hidden": 1.0}
WRITTEN = {"written": 0.0}
COLD = {"cold": 0.0, "cold_bytes": 1.0}
ATTENDED = {"d0": 0.0, "padded": 0.0, "serial": 0.0, "least": 0.0}
SPILL = {"spill": 0.0, "c1": 1.0}
ISSUED = {"hidden": 0.0}
CACHE = {"cached": 0.0, "b1": 1.0}
ROWS = {"row_serial": 0.0, "serial_rows": 1e18}
COLUMNS = {"column_serial": 0.0}
TIMED_ALONE = ("boost", "throttled", "cold")
"""Terms of kernels that were timed alone. Boost: a step keeps the chip at the clock that its power allows all along, so
that no product in it runs faster than the sustained rate. Throttled: what stands between the products of a step lets
the chip recover, as the steps of an H200 show, where a layer is not nearly all products (`layers.power`). Cold: what a
kernel of a step reads is taken to be in no cache (`in_a_step`)."""


def in_a_step(parameters: Mapping[str, float]) -> dict[str, float]:
    """Return the parameters of a kernel with a floor that contains the wait for memory outside the cache."""
    return {**parameters, "t0": parameters["t0"] + parameters.get("cold", 0.0)}


FORMS = {
    form.id: form
    for form in (
        Form(
            "gemm-pnorm",
            ("m", "n", "k", "batch"),
            ("rate", "bandwidth", "t0", "p", "m0", "n0", "k0"),
            _gemm,
            WAVES | BOOST | SERIAL | WRITTEN | COLD | NARROW,
        ),
        Form("attention-saturating", ("flop", "seq", "rows"), ("rate", "t0", "s0", "r0"), _attention, ATTENDED),
        Form("memory-bound", ("bytes",), ("bandwidth", "t0"), _memory_bound, CACHE | COLD | ISSUED | ROWS),
        Form(
            "row-wise",
            ("bytes", "columns"),
            ("bandwidth", "t0", "c0"),
            _row_wise,
            SPILL | CACHE | COLD | ROWS | COLUMNS,
        ),
    )
}
"""rate: asymptotic FLOP/s. bandwidth: bytes/s. t0: launch floor in s. p: sharpness of the roofline's knee. m0, n0, k0,
s0, r0, c0, d0: sizes at which half the rate is reached (0 = no penalty). waves: share of the work that whole waves
of tile_m x tile_n results on `units` multiprocessors or cores add. boost: relative rate above the sustained one of
products far smaller than boost_flop; throttled: share of the rate that products far larger than throttled_flop lose,
which alone draw all power for longer than a chip bears it. serial: seconds of an element of k by which a product of
few results takes longer, at most serial * serial_k, less `serial_hidden` of all other work; of fused attention,
seconds of a key by which it takes longer. written: by how much more a result's byte costs than an operand's. cold:
seconds that kernels of far more than cold_bytes wait for memory, which others find in a cache. least: rows of one
wave of blocks. padded: share of what a head lacks to a multiple of HEAD_TILE columns that is computed all the same.
spill: share of the traffic that rows much longer than c1 elements add. cached: share of the time that transfers far
smaller than b1 bytes save. hidden: share of the floor in which bytes move already, 1 where it is the issue of many
kernels. row_serial: seconds of a row beside others, where they are far fewer than serial_rows; column_serial: of an
element of the row that a block works at (`_in_turn`). odd, even: times as long as narrow rows let a product compute;
odd_t0, even_t0: seconds that it starts later (`NARROW`). few: times as long as others that a first convolution
computes, padded, of which few_k0 elements of k reach half the rate; few_t0: seconds that it starts later
(`few_channels`)."""

BOTH = ("forward", "backward")
KERNELS: dict[tuple[str, str], str] = {
    ("gemm", "forward"): "gemm-pnorm",
    ("gemm", "dgrad"): "gemm-pnorm",
    ("gemm", "wgrad"): "gemm-pnorm",
    ("attention", "forward"): "attention-saturating",
    ("attention", "backward"): "attention-saturating",
    ("elementwise", "any"): "memory-bound",
    ("norm", "any"): "row-wise",
    ("softmax", "any"): "row-wise",
}
"""What a profile must hold: (op, direction) -> form id."""

FALLBACK: dict[tuple[str, str], tuple[str, str]] = {
    **{("convolution", d): ("gemm", d) for d in ("forward", "dgrad", "wgrad")},
    **{(op, d): ("elementwise", "any") for op in ("gelu", "swiglu", "residual", "dropout") for d in BOTH},
    ("norm", "backward"): ("norm", "any"),
    ("softmax", "backward"): ("softmax", "any"),
    **{("cross_entropy", d): ("softmax", "any") for d in BOTH},
    **{("embedding", d): ("elementwise", "any") for d in BOTH},
    ("adam", "any"): ("elementwise", "any"),
}
"""What a profile may hold beside it: (op, direction) -> the kernel whose form it has, and whose numbers without it."""


def form_of(op: str, direction: str) -> Form:
    """Return the form of a kernel that a profile must or may hold; raises KeyError for others."""
    key = op, direction
    return FORMS[KERNELS[FALLBACK.get(key, key)]]


def size_of(inputs: Mapping[str, Expr]) -> Expr:
    """Return the FLOP of a kernel with these inputs of its form, or its bytes where it is bound by memory."""
    if "m" in inputs:
        return gemm_flop(inputs["m"], inputs["n"], inputs["k"], inputs["batch"])
    return inputs["flop"] if "flop" in inputs else inputs["bytes"]


def parameter(op: str, direction: str, name: str) -> str:
    """Return the symbol name of a profile parameter."""
    return f"{op}_{direction}_{name}"


@dataclass(frozen=True, eq=False)
class Call:
    """A kernel that a layer asked the time of, the inputs of its form there, and how many times a layer launches it.

    `part`: the operation of the layer that it is of (`belong`).
    """

    op: str
    direction: str
    inputs: Mapping[str, Expr]
    times: Expr = 1
    part: Any = None


_heard: ContextVar[list[Call] | None] = ContextVar("_heard", default=None)
_times: ContextVar[Expr] = ContextVar("_times", default=1)


@contextmanager
def listening() -> Iterator[list[Call]]:
    """Collect the kernels whose times are asked for inside the block."""
    heard: list[Call] = []
    token = _heard.set(heard)
    try:
        yield heard
    finally:
        _heard.reset(token)


@contextmanager
def repeating(times: Expr) -> Iterator[None]:
    """Count every kernel whose time is asked for inside the block `times` times."""
    token = _times.set(times * _times.get())
    try:
        yield
    finally:
        _times.reset(token)


def belong(part: object) -> None:
    """Say of the kernels whose times were asked for since this was last said of which operation they are."""
    heard = _heard.get() or []
    for i in range(len(heard) - 1, -1, -1):
        if heard[i].part is not None:
            break
        heard[i] = replace(heard[i], part=part)


def _note(op: str, direction: str, inputs: Mapping[str, Expr]) -> None:
    heard = _heard.get()
    if heard is not None:
        known = (*form_of(op, direction).inputs, "rows", *NARROW_ROWS, *FEW_INPUTS)
        heard.append(Call(op, direction, {n: inputs[n] for n in known if n in inputs}, _times.get()))


def seconds(op: str, direction: str, **inputs: Expr) -> Expr:
    """Return the time of one kernel with the profile's parameters as symbols."""
    _note(op, direction, inputs)
    return form_of(op, direction).seconds(inputs, symbols(op, direction))


def symbols(op: str, direction: str) -> dict[str, Expr]:
    """Return the symbols of the parameters of a kernel inside a step.

    Terms of `TIMED_ALONE` are off there.
    """
    return {
        name: 0.0 if name in TIMED_ALONE else symbol(parameter(op, direction, name))
        for name in form_of(op, direction).names
    }


def product_seconds(
    direction: str,
    m: Expr,
    n: Expr,
    k: Expr,
    batch: Expr = 1,
    plain: bool = False,
    op: str = "gemm",
    smallest_tile: Expr | None = None,
    rows: Mapping[str, Expr] | None = None,
) -> Expr:
    """Return the time of `batch` weight products at the plan's precision, or (`plain`) as no recipe touches them.

    op: the kernel that takes them, convolution for implicit ones. smallest_tile: rows and columns, where tiles may be
    smaller than the profile's. rows: whether those of its matrices are `narrow`, or what `few_channels` says of a
    convolution; None: neither.

    The symbols `rate_<direction>` (rate over the plain one) and `operand_bytes` come from the precision recipe,
    `gemm_slowdown` is what whole runs take longer than single kernels, `low_precision_slowdown` what 8- and 4-bit
    products take longer than the ratio of peaks says.
    """
    tiles = {} if smallest_tile is None else {"smallest_tile": smallest_tile}
    inputs = {"m": m, "n": n, "k": k, "batch": batch, "element": element_bytes, **tiles, **(rows or {})}
    if plain:
        return symbol("gemm_slowdown") * seconds(op, direction, **inputs)
    form = form_of(op, direction)
    held = symbols(op, direction)
    held["rate"] = held["rate"] * symbol(f"rate_{direction}")
    inputs["operand"] = symbol("operand_bytes")
    _note(op, direction, inputs)
    low = 1 + symbol("low_precision") * (symbol("low_precision_slowdown") - 1)
    return low * symbol("gemm_slowdown") * form.seconds(inputs, held)
