"""Terms are taken where they help, and left where they do not."""

import numpy as np
import pytest

from calibration.fit import Free, fold_together, predict
from calibration.samples import Samples
from calibration.terms import base_term, measured_terms
from calibration.variants import Term, choose, mean_error, together
from sim.costs.profile import Fingerprint

RATE, HALF = Free(1e14, 1e12, 1e16), Free(50.0, 1e-2, 1e4)
FIXED = {"bandwidth": 1e12, "t0": 0.0, "p": 1.0, "m0": 0.0, "n0": 0.0, "k0": 0.0}
TRUTH = {"waves": 0.8, "tile_m": 128.0, "tile_n": 128.0, "units": 108.0}
WAVES = [
    Term(f"tiles of {n:g}", {"waves": Free(0.5, 1e-3, 1.0)}, {"tile_m": n, "tile_n": n, "units": 108.0})
    for n in (64.0, 128.0, 256.0)
]


def made(direction: str, rate: float, noise: float = 0.02, **more: float) -> Samples:
    rng = np.random.default_rng(5)
    x = {name: np.exp(rng.uniform(np.log(256), np.log(8192), 80)).round() for name in ("m", "n", "k")}
    x["batch"] = np.ones(80)
    seconds = predict("gemm-pnorm", x, {**FIXED, "rate": rate, **more}) * np.exp(rng.normal(0, noise, 80))
    return Samples("d", "gemm", direction, x, seconds, tuple(map(str, range(80))), "made up")


def test_the_tiles_that_were_there_are_found() -> None:
    parts = {"forward": made("forward", 2e14, **TRUTH), "wgrad": made("wgrad", 1e14, **TRUTH)}
    found = choose("gemm-pnorm", parts, Term("rates", {"rate": RATE}, FIXED), [WAVES], ("rate",))
    assert found.terms == ("rates", "tiles of 128")
    assert mean_error(found.fits, parts) < 3.0
    rates = {d: fit.solution.parameters for d, fit in found.fits.items()}
    assert rates["forward"]["rate"] == pytest.approx(2e14, rel=0.03)
    assert rates["wgrad"]["rate"] == pytest.approx(1e14, rel=0.03)
    assert rates["wgrad"]["waves"] == rates["forward"]["waves"] == pytest.approx(0.8, abs=0.1)
    assert set(rates["wgrad"]) == set(rates["forward"])
    assert "+ tiles of 64" in found.note


def test_terms_that_do_not_help_are_left_out() -> None:
    parts = {"forward": made("forward", 2e14)}
    sizes = Term("sizes", dict.fromkeys(("m0", "n0", "k0"), HALF))
    found = choose(
        "gemm-pnorm", parts, Term("rate", {"rate": RATE}, FIXED), [[sizes, together(sizes, WAVES[0])], WAVES]
    )
    assert found.terms == ("rate",)
    assert len(found.tried) == 6


def test_few_samples_are_not_asked_for_many_terms() -> None:
    some = made("forward", 2e14, **TRUTH).where(np.arange(80) < 7)
    found = choose("gemm-pnorm", {"": some}, Term("rate", {"rate": RATE}, FIXED), [WAVES])
    assert tuple(found.tried) == ("rate",)


def test_a_family_has_one_fold_in_all_parts() -> None:
    parts = {d: made(d, 1e14) for d in ("forward", "dgrad")}
    folds = fold_together(parts)
    assert (folds["forward"] == folds["dgrad"]).all()


def test_rows_of_a_gpus_kernels_are_found_to_wait_in_turn() -> None:
    rng = np.random.default_rng(7)
    rows, columns = (2.0 ** rng.integers(low, high, 40) for low, high in ((6, 15), (7, 15)))
    x = {"bytes": 6 * rows * columns, "columns": columns, "rows": rows}
    truth = {"bandwidth": 2e12, "t0": 3e-6, "c0": 0.0, "row_serial": 5e-9, "serial_rows": 1e4, "column_serial": 1.5e-9}
    seconds = predict("row-wise", x, truth) * np.exp(rng.normal(0, 0.02, 40))
    parts = {"backward": Samples("", "norm", "backward", x, seconds, tuple(map(str, range(40))), "made up")}
    gpu, cpu = (Fingerprint(vendor="x", name="x", cores=132, threads=1, versions=of) for of in ({"cuda": "12"}, {}))
    found = choose("row-wise", parts, base_term("row-wise", parts), measured_terms("row-wise", parts, gpu))
    assert "row & rows & column" in found.terms and mean_error(found.fits, parts) < 3
    told = found.fits["backward"].solution.parameters
    assert told["row_serial"] == pytest.approx(5e-9, rel=0.1)
    assert told["column_serial"] == pytest.approx(1.5e-9, rel=0.1)
    assert not any("row" in t.name for group in measured_terms("row-wise", parts, cpu) for t in group)
