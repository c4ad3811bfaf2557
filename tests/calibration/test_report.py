"""The calibration report: whole with any number of families, and nothing from a file is markup."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from calibration.fit import Fit, Free, cross_validate
from calibration.intervals import coverage, size_bins
from calibration.report import LEGEND_ROW, MOST_PERCENT, Family, errors_table, page, residuals, roofline, verdict
from calibration.samples import Samples
from calibration.whole import Whole
from sim.costs.fitted import Errors, KernelModel
from sim.costs.profile import Fingerprint, Profile, load_profile

EVIL = "</script><script>alert(1)</script>"


def family(op: str = "gemm", noise: float = 0.1, larger: float = 1.0) -> Family:
    rng = np.random.default_rng(2)
    x = {name: 2.0 ** rng.integers(6, 13, 60) for name in ("m", "n", "k")} | {"batch": np.ones(60)}
    flop = 2 * x["m"] * x["n"] * x["k"]
    samples = Samples(
        "d", op, "forward", x, flop / 1e12 * np.exp(rng.normal(0, noise, 60)), tuple(map(str, range(60))), "s"
    )
    fixed = {"bandwidth": 1e12, "t0": 0.0, "p": 1.0, "m0": 0.0, "n0": 0.0, "k0": 0.0}
    fit: Fit = cross_validate("gemm-pnorm", samples, {"rate": Free(1e12, 1e9, 1e15)}, fixed)
    model = KernelModel(
        op=op, direction="forward", form="gemm-pnorm", implementation=EVIL, parameters=fit.solution.parameters,
        n_train=60, n_test=60, n_flagged=3, bins=size_bins(fit, samples), status="fitted", source=EVIL,
        cross_validation=Errors(mape=8.0, median=6.0, p90=15.0, bias=-1.0, coverage90=0.9, n=60),
        held_out={"random": Errors(mape=9.5, median=6.0, p90=15.0, bias=-1.0, coverage90=0.9, n=7)},
    )  # fmt: skip
    beyond = replace(samples, inputs={k: 4 * v for k, v in x.items()}, seconds=larger * 64 * samples.seconds)
    return Family(model, samples, fit, {"larger": beyond}, coverage(fit, samples), flop, flop / 30)


@pytest.fixture(scope="module")
def evil() -> Profile:
    print_of = Fingerprint(vendor=EVIL, name=EVIL, cores=4, versions={"torch": EVIL})
    return replace(load_profile("a100-pcie-80gb"), name=EVIL, session=EVIL, method=EVIL, fingerprint=print_of)


def test_nothing_from_a_file_is_markup(evil: Profile) -> None:
    text = page(evil, [family()], [{"id": EVIL, "t_s": 1.0}])
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert text.count("</script>") == text.count("<script")


def test_every_part_is_there_and_its_figures_are_data(evil: Profile) -> None:
    text = page(evil, [family(), family("other")], [{"id": "x", "t_s": 1.0}])
    for title in ("Errors by kernel", "Roofline", "Residuals by size", "Do the intervals hold?", "Flagged", "Device"):
        assert title in text
    held = re.findall(r'<script type="application/json" data-plot="([^"]+)">(.*?)</script>', text)
    assert [name for name, _ in held] == ["roofline", "bandwidth", "residuals-0", "residuals-1", "coverage"]
    assert all(json.loads(data)["figure"]["data"] is not None for _, data in held)


def test_a_profile_without_families_has_a_page(evil: Profile) -> None:
    text = page(evil, [], [])
    assert "No matrix product" in text
    assert "products of 4096 x 4096 x 4096: library " in text


def test_errors_by_use_stand_in_their_columns() -> None:
    cells = re.findall(r"<td>(.*?)</td>", errors_table([family()]))
    assert cells[1:3] == ["60", "3"]
    assert cells[3:7] == ["8.0", "6.0", "15.0", "−1.0"]
    assert cells[7:] == ["9.5 (7)", "–", "–"]


def test_blocks_and_steps_stand_beside_their_predictions(evil: Profile) -> None:
    whole = [Whole(EVIL, 9e-3, (8e-3, 9.5e-3), 1e-2), Whole("step", 1.1e-2, (9e-3, 1.2e-2), 1e-2)]
    text = page(evil, [], [], whole)
    assert "off on average, 1 of 2 inside" in text
    assert "<td>9.00 ms</td>" in text and "<td>−10.0</td>" in text
    assert text.count("</script>") == text.count("<script")
    assert "Blocks and steps" not in page(evil, [], [])


def test_the_verdict_weighs_the_directions() -> None:
    one = family()
    said = verdict([one])
    assert said.startswith("Matrix products of shapes that the fit had not seen are predicted to 8.0 %")
    rough = replace(one.model, cross_validation=replace(one.model.cross_validation, mape=24.0))
    assert "predicted to 16.0 %" in verdict([one, replace(one, model=replace(rough, direction="dgrad"))])
    others = replace(one, model=replace(rough, implementation="task-mapped"))
    assert verdict([one, others]) == said  # a plan reads these only where it asks for them


def test_residuals_show_held_out_shapes_apart_and_stay_on_the_page() -> None:
    figure = residuals([family(larger=10.0)], "light")
    fitted, beyond = figure.data[2], figure.data[3]
    assert len(fitted.x) == len(beyond.x) == 60
    assert max(beyond.y) == MOST_PERCENT
    assert fitted.marker.symbol == "circle"
    assert beyond.marker.symbol == "circle-open"


def test_the_roof_is_the_fitted_rate() -> None:
    one = family()
    figure = roofline([one], "dark")
    assert len(figure.data) == 1  # no memory-bound kernel, no roof
    assert np.median(figure.data[0].y) == pytest.approx(one.model.parameters["rate"], rel=0.1)


@pytest.mark.parametrize(("kernels", "rows"), [(1, 1), (3, 1), (4, 2), (16, 6)])
def test_the_plot_begins_below_the_legend_of_a_narrow_figure(kernels, rows) -> None:
    figure = roofline([family()] * kernels, "light")
    assert figure.layout.margin.t == 56 + LEGEND_ROW * (rows - 1)


@pytest.mark.parametrize(("wider", "tick"), [(1.0, 1), (1e-4, "D2")])
def test_an_axis_of_few_decades_has_ticks_between_them(wider, tick) -> None:
    one = family()
    near = one.samples.size.min() * (1 + wider * (one.samples.size / one.samples.size.min() - 1))
    kept = replace(one.samples, inputs={"m": near / 2, "n": np.ones(60), "k": np.ones(60), "batch": np.ones(60)})
    assert residuals([replace(one, samples=kept, others={})], "light").layout.xaxis.dtick == tick
