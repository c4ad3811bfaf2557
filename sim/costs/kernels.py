"""Forms of kernel time: symbolic expressions in the shape and in a few fitted parameters.

A form is used twice, by the fit (parameters unknown) and by the layers (shape symbolic); there is no other
copy of it. Profiles store a form's id and numbers. Times in seconds, rates in FLOP/s and bytes/s.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sim.costs.algebra import Expr, p_norm, symbol

BYTES_16BIT = 2
element_bytes = symbol("element_bytes")
"""Bytes of a weight and of an activation where no recipe makes them smaller: 2 (16 bit), or 4 (fp32)."""


@dataclass(frozen=True)
class Form:
    """A kernel-time expression: `seconds(inputs, parameters)`.

    `inputs` are shape quantities, `parameters` what a fit finds.
    """

    id: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    seconds: Callable[[Mapping[str, Expr], Mapping[str, Expr]], Expr]


def gemm_flop(m: Expr, n: Expr, k: Expr, batch: Expr = 1) -> Expr:
    """Return the FLOP of `batch` products of (m, k) and (k, n)."""
    return 2 * batch * m * n * k


def gemm_bytes(
    m: Expr, n: Expr, k: Expr, batch: Expr = 1, operand: Expr | None = None, element: Expr = BYTES_16BIT
) -> Expr:
    """Return the bytes that `batch` products read (at `operand` bytes an element, None: `element`) and write once."""
    return batch * ((element if operand is None else operand) * (m * k + k * n) + element * m * n)


def _saturation(x: Expr, half: Expr) -> Expr:
    """Return x / (x + half): the share of the asymptotic rate reached at size x."""
    return x / (x + half)


def _gemm(x: Mapping[str, Expr], p: Mapping[str, Expr]) -> Expr:
    m, n, k, batch = x["m"], x["n"], x["k"], x["batch"]
    eta = _saturation(m, p["m0"]) * _saturation(n, p["n0"]) * _saturation(k, p["k0"])
    compute = gemm_flop(m, n, k, batch) / (p["rate"] * eta)
    size = gemm_bytes(m, n, k, batch, x.get("operand"), x.get("element", BYTES_16BIT))
    return p["t0"] + p_norm(compute, size / p["bandwidth"], p["p"])


def _attention(x: Mapping[str, Expr], p: Mapping[str, Expr]) -> Expr:
    eta = _saturation(x["seq"], p["s0"]) * _saturation(x["rows"], p["r0"])
    return p["t0"] + x["flop"] / (p["rate"] * eta)


def _memory_bound(x: Mapping[str, Expr], p: Mapping[str, Expr]) -> Expr:
    return p["t0"] + x["bytes"] / p["bandwidth"]


def _row_wise(x: Mapping[str, Expr], p: Mapping[str, Expr]) -> Expr:
    return p["t0"] + x["bytes"] / (p["bandwidth"] * _saturation(x["columns"], p["c0"]))


FORMS = {
    form.id: form
    for form in (
        Form("gemm-pnorm", ("m", "n", "k", "batch"), ("rate", "bandwidth", "t0", "p", "m0", "n0", "k0"), _gemm),
        Form("attention-saturating", ("flop", "seq", "rows"), ("rate", "t0", "s0", "r0"), _attention),
        Form("memory-bound", ("bytes",), ("bandwidth", "t0"), _memory_bound),
        Form("row-wise", ("bytes", "columns"), ("bandwidth", "t0", "c0"), _row_wise),
    )
}
"""rate: asymptotic FLOP/s. bandwidth: bytes/s. t0: launch floor in s. p: sharpness of the roofline's knee.
m0, n0, k0, s0, r0, c0: sizes at which half the rate is reached (0 = no penalty)."""

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


def parameter(op: str, direction: str, name: str) -> str:
    """Return the symbol name of a profile parameter."""
    return f"{op}_{direction}_{name}"


def seconds(op: str, direction: str, **inputs: Expr) -> Expr:
    """Return the time of one kernel with the profile's parameters as symbols."""
    form = form_of(op, direction)
    return form.seconds(inputs, {name: symbol(parameter(op, direction, name)) for name in form.parameters})


def product_seconds(direction: str, m: Expr, n: Expr, k: Expr, batch: Expr = 1, plain: bool = False) -> Expr:
    """Return the time of `batch` weight products at the plan's precision, or (`plain`) as no recipe touches them.

    The symbols `rate_<direction>` (rate over the plain one) and `operand_bytes` come from the precision recipe,
    `gemm_slowdown` is what whole runs take longer than single kernels, `low_precision_slowdown` what 8- and 4-bit
    products take longer than the ratio of peaks says.
    """
    if plain:
        return symbol("gemm_slowdown") * seconds("gemm", direction, m=m, n=n, k=k, batch=batch, element=element_bytes)
    form = FORMS[KERNELS["gemm", direction]]
    held = {name: symbol(parameter("gemm", direction, name)) for name in form.parameters}
    held["rate"] = held["rate"] * symbol(f"rate_{direction}")
    inputs = {"m": m, "n": n, "k": k, "batch": batch, "operand": symbol("operand_bytes"), "element": element_bytes}
    low = 1 + symbol("low_precision") * (symbol("low_precision_slowdown") - 1)
    return low * symbol("gemm_slowdown") * form.seconds(inputs, held)
