"""Bounds on mixed clusters: the best of every parameter is the one that makes kernels shorter."""

import numpy as np
import pytest

from calibration.fit import predict
from sim.costs.kernels import FORMS, Form
from sim.tuner.score import LESS_IS_FASTER

TILES = ("tile_m", "tile_n", "units")
"""Of a device's waves: no matter of more or less."""
PARAMETERS = [(form, name) for form in FORMS.values() for name in form.names if name not in TILES]
SHARES = ("waves", "boost", "throttled", "serial_hidden", "cached", "hidden", "padded", "written", "spill")
TIMES = ("t0", "odd_t0", "even_t0", "few_t0", "cold", "serial", "row_serial", "column_serial")
OTHERS = {"rate": 1e12, "bandwidth": 1e9, "p": 2.0, "odd": 2.0, "even": 2.0, "few": 2.0, "serial": 1e-2, "least": 3e3}


def longer(form: Form, name: str, sizes: dict[str, float]) -> np.ndarray:
    """Return how much longer kernels of 30, 500 and 7,000 take with more of a parameter than with less."""
    held = dict.fromkeys(form.names, 300.0) | dict.fromkeys(SHARES, 0.4) | dict.fromkeys(TIMES, 1e-6) | OTHERS
    x = {each: np.array([30.0, 500.0, 7e3]) for each in form.inputs} | {n: np.full(3, s) for n, s in sizes.items()}
    less, more = (predict(form.id, x, {n: held[n] * (t if n == name else 1) for n in form.names}) for t in (0.9, 1.1))
    return more - less


@pytest.mark.parametrize(("form", "name"), PARAMETERS, ids=[f"{form.id} {name}" for form, name in PARAMETERS])
def test_each_parameter_is_taken_for_what_makes_a_kernel_shorter(form: Form, name: str) -> None:
    rows, few = {"rows": 900.0, "head_dim": 96.0}, {"few": 2.0, "few_k": 40.0}
    found = [longer(form, name, sizes) for sizes in (rows, {"odd": 1.0, "even": 0.0}, {"odd": 0.0, "even": 1.0}, few)]
    changes = np.concatenate(found if form.id == "gemm-pnorm" else found[:1])
    assert (changes > 0).any() if f"_{name}".endswith(LESS_IS_FASTER) else (changes < 0).any()
    assert (changes >= -1e-12).all() if f"_{name}".endswith(LESS_IS_FASTER) else (changes <= 1e-12).all()
