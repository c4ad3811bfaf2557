"""Tempo's layers in C (arXiv 2210.10246): GELU both ways, LayerNorm and the core of attention backward, a pass each.

Vectors run along rows; threads share rows, or numbers where there are none. A NaN stays one where compilers may forget
it, in GELU's table.
"""

from calibration.layers.emit_cell import SINGLE
from calibration.layers.gelu_table import ENTRIES, NEAR, SLOPE, series, table

REALS = {
    "float": ("int", "0x7fffffff", "0x7f800000", "sqrtf", "fabsf"),
    "double": ("long long", "0x7fffffffffffffff", "0x7ff0000000000000", "sqrt", "fabs"),
}
"""Of a number: whole numbers of its size, those bits that are not its sign, those of infinity, and functions."""
ALONE = 16384
"""Numbers from which on threads share them."""


def source(real: str) -> str:
    """Return a C file of functions on numbers of type `real`, float or double.

    gelu(size, x, y, right, threads); gelu_backward(size, entries, y, right, dy, dx, threads);
    norm_backward(rows, columns, kept, rstd, gamma, shift, inverse, dy, dx, sums [threads, 2, columns], threads);
    core_backward(rows, columns, scale, shares, kept, d, dropped, threads), as `calibration.layers.tempo_kernels` says.
    """
    whole, magnitude, infinity, root, absolute = REALS[real]
    lines = [
        "#include <math.h>",
        "#include <omp.h>",
        f"typedef {real} real;",
        SINGLE,
        f"static inline int no_number(real x) {{ union {{ real value; unsigned {whole} bits; }} u = {{ x }};",
        f"  return (u.bits & {magnitude}) > {infinity}; }}",
        *(_single() if real == "float" else _double()),
        *_gelu(root, absolute),
        *_norm(),
        *_core(),
    ]
    return "\n".join(lines) + "\n"


def _single() -> list[str]:
    """Return the share of a normal distribution below x: by one series about 0, by another in either tail."""
    near, tail = (_horner(each, name) for each, name in zip(series(), ("t * t", "q"), strict=True))
    return [
        "static inline float below(float x) {",
        f"  float t = fabsf(x), q = 1.0f / (1.0f + {SLOPE}f * t), rest = exponential(-0.5f * t * t) * ({tail});",
        f"  float close = 0.5f + x * ({near}), far = x < 0.0f ? rest : 1.0f - rest;",
        f"  return t < {NEAR}f ? close : far;",
        "}",
    ]


def _horner(coefficients: tuple[float, ...], name: str) -> str:
    *rest, made = (f"{c!r}f" for c in coefficients)
    for c in reversed(rest):
        made = f"{c} + {name} * ({made})"
    return made


def _double() -> list[str]:
    return ["static inline double below(double x) { return 0.5 * erfc(-0.70710678118654752440 * x); }"]


def _gelu(root: str, absolute: str) -> list[str]:
    held = table()
    return [
        "void gelu(long size, const real *restrict x, real *restrict y, unsigned char *restrict right, int threads) {",
        f"#pragma omp parallel for simd num_threads(threads) if (size >= {ALONE})",
        "  for (long j = 0; j < size; j++) {",
        "    y[j] = x[j] * below(x[j]);",
        f"    right[j] = x[j] >= (real){held.at!r};",
        "  }",
        "}",
        "void gelu_backward(long size, const real *restrict entries, const real *restrict y,",
        "  const unsigned char *restrict right, const real *restrict dy, real *restrict dx, int threads) {",
        f"  const real left_step = {float(held.steps[0])!r}, right_step = {float(held.steps[1])!r};",
        f"  const int last = {ENTRIES - 2};",
        f"#pragma omp parallel for simd num_threads(threads) if (size >= {ALONE})",
        "  for (long j = 0; j < size; j++) {",
        f"    real u = {root}({absolute}(y[j] - (real){held.minimum!r})) * (right[j] ? right_step : left_step);",
        "    u = u > last + 1 ? last + 1 : u;",
        "    int k = (int)u;",
        "    k = k < 0 ? 0 : k > last ? last : k;",
        "    real f = u - k;",
        f"    k += right[j] ? {ENTRIES} : 0;",
        "    real slope = entries[k] + f * (entries[k + 1] - entries[k]);",
        "    dx[j] = dy[j] * (no_number(y[j]) ? y[j] : slope);",
        "  }",
        "}",
    ]


def _norm() -> list[str]:
    return [
        "void norm_backward(long rows, long columns, const real *kept, const real *rstd, const real *restrict gamma,",
        "  const real *restrict shift, const real *restrict inverse, const real *dy, real *dx, real *sums,",
        "  int threads) {",
        f"#pragma omp parallel num_threads(threads) if (rows * columns >= {ALONE})",
        "  {",
        "    real *restrict on_gamma = sums + 2 * columns * omp_get_thread_num();",
        "    real *restrict on_beta = on_gamma + columns;",
        "#pragma omp for",
        "    for (long r = 0; r < rows; r++) {",
        "      const real *restrict k = kept + r * columns, *restrict d = dy + r * columns;",
        "      real *restrict out = dx + r * columns, mean = 0, projected = 0;",
        "#pragma omp simd reduction(+ : mean, projected)",
        "      for (long j = 0; j < columns; j++) {",
        "        real n = (k[j] - shift[j]) * inverse[j], g = d[j] * gamma[j];",
        "        mean += g; projected += g * n; on_gamma[j] += d[j] * n; on_beta[j] += d[j];",
        "      }",
        "      mean /= columns; projected /= columns;",
        "#pragma omp simd",
        "      for (long j = 0; j < columns; j++) {",
        "        real n = (k[j] - shift[j]) * inverse[j], g = d[j] * gamma[j];",
        "        out[j] = (g - mean - n * projected) * rstd[r];",
        "      }",
        "    }",
        "  }",
        "}",
    ]


def _core() -> list[str]:
    return [
        "void core_backward(long rows, long columns, real scale, const real *shares, const unsigned char *kept,",
        "  real *d, real *dropped, int threads) {",
        f"#pragma omp parallel for num_threads(threads) if (rows * columns >= {ALONE})",
        "  for (long r = 0; r < rows; r++) {",
        "    const real *restrict s = shares + r * columns;",
        "    const unsigned char *restrict left = kept + r * columns;",
        "    real *restrict above = d + r * columns, *restrict again = dropped + r * columns, projected = 0;",
        "#pragma omp simd reduction(+ : projected)",
        "    for (long j = 0; j < columns; j++) {",
        "      again[j] = s[j] * (scale * left[j]); projected += again[j] * above[j];",
        "    }",
        "#pragma omp simd",
        "    for (long j = 0; j < columns; j++)",
        "      above[j] = again[j] * above[j] - s[j] * projected;",
        "  }",
        "}",
    ]
