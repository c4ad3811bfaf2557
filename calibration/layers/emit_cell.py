"""The point-wise part of a recurrent cell in C: one function forward, one backward, vectors along the inner axis.

Row r and column j of a step are batch and feature, or feature and batch. fp32 has an exponential of its own, which a
compiler turns into SIMD (relative error about 2e-7); fp64 takes the library's.
"""

from calibration.layers.cells import PEEPHOLES, SLOTS, Cell

SINGLE = """
static inline float of(float given, float found) {
  union { float value; int bits; } from = { given }, to = { found };
  to.bits |= -((from.bits & 0x7fffffff) > 0x7f800000) & 0x7fc00000;
  return to.value;
}
static inline float bounded(float x) { return x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x; }
static inline int twos(float x) { return (int)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f)); }
static inline float power(int n) { union { int bits; float value; } two = { (n + 127) << 23 }; return two.value; }
static inline float rise(float r) {
  return r * (1.0f + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
}
static inline float exponential(float given) {
  float x = bounded(given);
  int n = twos(x);
  return of(given, power(n) * (1.0f + rise(x - n * 0.693147181f)));
}
static inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }
static inline float hyperbolic(float given) {
  float x = bounded(2.0f * given);
  int n = twos(x);
  float part = rise(x - n * 0.693147181f), less = n ? power(n) * part + power(n) - 1.0f : part;
  return of(given, less / (less + 2.0f));
}
"""
"""e^x = 2^n e^r with |r| <= ln 2 / 2, e^r - 1 by its series to the sixth power; the hyperbolic tangent by e^2x - 1,
which of small numbers is e^r - 1, so that they keep their digits. A NaN stays one where compilers may forget it, by
`of`, whose whole numbers, unlike a choice, leave a loop to SIMD."""
DOUBLE = """
static inline double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static inline double hyperbolic(double x) { return tanh(x); }
"""
STRIDES = "long outer, long inner, long gate, long gate_row, long state_row"
ALONE = 16384
"""Numbers of a step from which on threads share it."""


def source(cell: Cell, columns: bool, real: str) -> str:
    """Return a C file with `forward` and `backward` of numbers of type `real`, float or double.

    forward(strides, gates, previous, cell, state, peephole, threads); backward(strides, output_row, carry_row, gates,
    previous, cell, peephole, d_output, d_state, d_cell, d_gates, threads), as `calibration.layers.pointwise` says.
    """
    forward, backward = _lstm(cell.peephole, columns) if cell.memory else _gru()
    lines = [
        "#include <math.h>",
        f"typedef {real} real;",
        SINGLE if real == "float" else DOUBLE,
        f"void forward({STRIDES}, real *gates, const real *previous, real *cell, real *state,",
        "  const real *peephole, int threads) {",
        *_loop([*_slots("gates", "s"), *_rows(("p", "previous"), ("c", "cell"), ("h", "state"))], forward),
        f"void backward({STRIDES}, long output_row, long carry_row, real *gates, real *previous, real *cell,",
        "  const real *peephole, real *d_output, real *d_state, real *d_cell, real *d_gates, int threads) {",
        *_loop(
            [
                *(*_slots("gates", "s"), *_slots("d_gates", "d")),
                *_rows(("p", "previous"), ("c", "cell")),
                *_rows(("dy", "d_output"), stride="output_row"),
                *_rows(("dh", "d_state"), ("dc", "d_cell"), stride="carry_row"),
            ],
            backward,
        ),
    ]
    return "\n".join(lines) + "\n"


def _slots(array: str, prefix: str) -> list[str]:
    return [f"real *restrict {prefix}{k} = {array} + r * gate_row + {k} * gate;" for k in range(SLOTS)]


def _rows(*named: tuple[str, str], stride: str = "state_row") -> list[str]:
    return [f"real *restrict {name} = (real *){array} + r * {stride};" for name, array in named]


def _loop(rows: list[str], body: list[str]) -> list[str]:
    """Return the loop over rows and columns, with the end of its function."""
    return [
        f"#pragma omp parallel for num_threads(threads) if (outer * inner >= {ALONE})",
        "  for (long r = 0; r < outer; r++) {",
        *(f"    {line}" for line in rows),
        "#pragma omp simd",
        "    for (long j = 0; j < inner; j++) {",
        *(f"      {line}" for line in body),
        "    }",
        "  }",
        "}",
    ]


def _lstm(peephole: bool, columns: bool) -> tuple[list[str], list[str]]:
    """Return the bodies of an LSTM's loops."""
    hidden, unit = ("outer", "r") if columns else ("inner", "j")
    w = [f"peephole[{k} * {hidden} + {unit}]" for k in range(PEEPHOLES)]

    def seen(k: int, what: str) -> str:
        return f" + {w[k]} * {what}" if peephole else ""

    forward = [
        f"real i = sigmoid(s0[j]{seen(0, 'p[j]')}), f = sigmoid(s1[j]{seen(1, 'p[j]')}), g = hyperbolic(s2[j]);",
        "real now = f * p[j] + i * g;",
        f"real o = sigmoid(s3[j]{seen(2, 'now')});",
        "s0[j] = i; s1[j] = f; s2[j] = g; s3[j] = o; c[j] = now; h[j] = o * hyperbolic(now);",
    ]
    backward = [
        "real i = s0[j], f = s1[j], g = s2[j], o = s3[j], flat = hyperbolic(c[j]), d = dy[j] + dh[j];",
        "real d_o = d * flat * o * (1 - o);",
        f"real d_c = dc[j] + d * o * (1 - flat * flat){seen(2, 'd_o')};",
        "real d_i = d_c * g * i * (1 - i), d_f = d_c * p[j] * f * (1 - f);",
        "d0[j] = d_i; d1[j] = d_f; d2[j] = d_c * i * (1 - g * g); d3[j] = d_o;",
        f"dc[j] = d_c * f{seen(0, 'd_i')}{seen(1, 'd_f')};",
    ]
    return forward, backward


def _gru() -> tuple[list[str], list[str]]:
    """Return the bodies of a GRU's loops; its slots are n, r, z and the part of n from the state."""
    forward = [
        "real r_gate = sigmoid(s1[j]), z = sigmoid(s2[j]), n = hyperbolic(s0[j] + r_gate * s3[j]);",
        "s0[j] = n; s1[j] = r_gate; s2[j] = z; h[j] = n + z * (p[j] - n);",
    ]
    backward = [
        "real n = s0[j], r_gate = s1[j], z = s2[j], d = dy[j] + dh[j];",
        "real d_n = d * (1 - z) * (1 - n * n);",
        "d0[j] = d_n; d1[j] = d_n * s3[j] * r_gate * (1 - r_gate);",
        "d2[j] = d * (p[j] - n) * z * (1 - z); d3[j] = d_n * r_gate; dh[j] = d * z;",
    ]
    return forward, backward
