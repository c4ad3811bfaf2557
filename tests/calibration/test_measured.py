"""Samples of a session become a profile: from known parameters plus noise, and from the public measurements."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibration.collectives import FITTED, SIZES
from calibration.collectives import Measured as Collective
from calibration.collectives import predict as predict_links
from calibration.concurrent import measure
from calibration.fit import predict
from calibration.kernels.convolution import Convolution, product
from calibration.kernels.family import Machine
from calibration.kernels.work import evaluate
from calibration.measured import build_profile, read_rows
from calibration.memory import FILE as MEMORY
from calibration.memory import SIMULATED, DeviceMemory
from calibration.neighbours import Beside
from calibration.published.tables import read_public
from calibration.store import SCHEMA
from sim.catalog import folder as catalog
from sim.costs.contention import rows as matrix
from sim.costs.kernels import FALLBACK, KERNELS, form_of
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, level_of, run_level
from sim.engine.allocations import measured_settings
from sim.engine.contended import sharing
from sim.engine.program import Stream
from sim.specs import Cluster
from sim.specs.fields import InputError
from tests.calibration.test_concurrent import TRUTH as STREAMS_TRUTH
from tests.calibration.test_concurrent import Device as Streams
from tests.full import fully
from tests.oracle import reference

TRUTH: dict[str, dict[str, dict[str, float]]] = {
    "cpu": {
        "gemm": {"rate": 6e10, "bandwidth": 2e10, "t0": 2e-6, "p": 2.0, "m0": 4.0, "n0": 8.0, "k0": 16.0},
        "attention": {"rate": 3e10, "t0": 5e-6, "s0": 40.0, "r0": 0.0},
        "norm": {"bandwidth": 1e10, "t0": 2e-6, "c0": 30.0},
        "": {"bandwidth": 1.5e10, "t0": 1e-6},
    },
    "cuda": {
        "gemm": {"rate": 7e14, "bandwidth": 3.5e12, "t0": 3e-6, "p": 1.6, "m0": 60.0, "n0": 60.0, "k0": 100.0}
        | {"waves": 0.7, "tile_m": 128.0, "tile_n": 256.0, "units": 132.0},
        "attention": {"rate": 5e14, "t0": 5e-6, "s0": 400.0, "r0": 3e4},
        "norm": {"bandwidth": 2e12, "t0": 4e-6, "c0": 100.0, "spill": 0.5, "c1": 6000.0},
        "": {"bandwidth": 3e12, "t0": 3e-6},
    },
}
NOISE = 0.04


def size(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.round(np.exp(rng.uniform(np.log(low), np.log(high)))))


def shape(op: str, kind: str, use: str, rng: np.random.Generator) -> dict[str, float]:
    top = (2.0 if use == "larger" else 1.0) * (8192 if kind == "cuda" else 1024)
    low = top / 2 if use == "larger" else 16
    if op == "gemm":
        return {name: size(rng, low, top) for name in "mnk"} | {"batch": 1.0, "item": 4.0 if kind == "cpu" else 2.0}
    if op == "attention":
        seq, rows = size(rng, max(64, low / 4), top), size(rng, 8 * low, 32 * top)
        return {"flop": 4 * rows * seq * 128 / 2, "seq": seq, "rows": rows, "causal": 1.0}
    columns = size(rng, max(64, low), top)
    return {"bytes": 4 * columns * size(rng, max(64, low), top), "columns": columns}


def rows(kind: str, counts: dict[str, int], skip: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    rng, dtype = np.random.default_rng(11), "float32" if kind == "cpu" else "bfloat16"
    for op, direction in (key for key in (*KERNELS, *FALLBACK) if key[0] != "convolution"):
        truth = TRUTH[kind].get(op if op != "softmax" else "norm", TRUTH[kind][""])
        form = form_of(op, direction)
        held = {n: v for n, v in truth.items() if n in form.names} | {n: 0.0 for n in form.parameters if n not in truth}
        for use in [u for u, n in counts.items() for _ in range(n)]:
            if op in skip:
                continue
            x = shape(op, kind, use, rng)
            inputs = {n: np.array([x[n]]) for n in form.inputs}
            inputs |= {"element": np.array([x["item"]])} if op == "gemm" else {}
            t = float(predict(form.id, inputs, held)[0] * np.exp(rng.normal(0, NOISE)))
            group = "x".join(f"{v:g}" for v in x.values())
            flop = 2 * x["m"] * x["n"] * x["k"] if op == "gemm" else x.get("flop", 0.0)
            yield {
                "op": op, "direction": direction, "dtype": dtype, "layout": "", "implementation": "made",
                "group": group, "use": use, "id": f"{op}/{direction}/{group}/<b>", "calls": 1, "t_s": t, "flop": flop,
                "bytes": x.get("bytes", 1e6), "shape": json.dumps(x), "flagged": False,
                "sentinel_ratio": 1.0,
            }  # fmt: skip


def folder(path: Path, kind: str, table: list[dict[str, Any]], cores: int = 132) -> Path:
    versions = {"python": "3.11", "torch": "2.13.0"} | ({"cuda": "12.8"} if kind == "cuda" else {})
    fingerprint = {"vendor": "x", "name": "<i>chip</i>", "cores": cores, "versions": versions, "threads": 1}
    session = {"session": "abc", "date": "2026-11-21", "method": "made up", "fingerprint": fingerprint}
    path.mkdir(exist_ok=True)
    (path / "session.json").write_text(json.dumps(session))
    pq.write_table(pa.Table.from_pylist(table, schema=SCHEMA), path / "samples.parquet")
    return path


COUNTS = {"fit": 60, "random": 10, "larger": 5}
FEW = {"fit": 8}
"""Of a family: so few that its fit tries no further terms, which takes most of the time."""
BESIDE_PRODUCTS = tuple({op for op, _ in (*KERNELS, *FALLBACK)} - {"gemm", "elementwise"})
"""What is left out where it does not matter which kernels there are: of all but products a relative's numbers do."""


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind: str = request.param
    table = list(rows(kind, COUNTS))
    for row in table[::50]:  # flagged and wildly off: no fit may see them
        table.append(row | {"flagged": True, "t_s": 1e3 * row["t_s"], "id": row["id"] + "!"})
    out = folder(tmp_path_factory.mktemp("profiles") / kind, kind, table)
    told: list[str] = []
    build_profile(out, told.append)
    assert told
    return kind, out


@pytest.mark.slow
def test_parameters_are_found_again(built: tuple[str, Path]) -> None:
    kind, out = built
    profile = load_profile(str(out))
    assert profile.dtype == {"cpu": "float32", "cuda": "bfloat16"}[kind]
    for op, names in (("gemm", ("rate", "waves")), ("attention", ("rate",)), ("elementwise", ("bandwidth", "t0"))):
        truth = TRUTH[kind].get(op, TRUTH[kind][""])
        for model in [m for m in profile.models if m.op == op]:
            for name in names:
                if name in truth:
                    # Knees and saturations stand in for each other a little: the rate is known to 10 %.
                    assert model.parameters[name] == pytest.approx(truth[name], rel=0.2 if name == "waves" else 0.1)
    if kind == "cuda":
        gemm = profile.model_of(("gemm", "forward"))
        assert (gemm.parameters["tile_m"], gemm.parameters["tile_n"]) == (128, 256)


@pytest.mark.slow
def test_products_of_two_implementations_are_fitted_apart(tmp_path: Path) -> None:
    table = list(rows("cpu", FEW, BESIDE_PRODUCTS))
    own = [row | {"implementation": "matmul"} if row["op"] == "gemm" else row for row in table]
    more = [row | {"implementation": "task-mapped", "t_s": row["t_s"] / 2} for row in table if row["op"] == "gemm"]
    alone, both = (build_profile(folder(tmp_path / name, "cpu", t)) for name, t in {"a": own, "b": more + own}.items())
    assert both.with_products("library").values == both.values == alone.values
    assert both.kernel_sigma_log == alone.kernel_sigma_log
    rates = both.product_rates
    assert rates["library"] == alone.product_rates["library"]
    assert rates["task-mapped"] == pytest.approx(2 * rates["library"], rel=0.05)
    assert "task-mapped" in (tmp_path / "b" / "report.html").read_text("utf-8")


def test_errors_are_those_of_the_noise(built: tuple[str, Path]) -> None:
    profile = load_profile(str(built[1]))
    for model in profile.models:
        assert model.cross_validation is not None
        assert model.cross_validation.mape < 6.0  # the mean of |normal(0, 4 %)| is 3.2 %
        assert model.cross_validation.coverage90 > 0.8
        assert model.held_out["random"].n == 10
        assert model.held_out["random"].mape < 7.0
        assert model.held_out["larger"].mape < 15.0
        assert model.half_width(1e9) < 0.12
        assert model.n_train == 60


def test_flagged_samples_are_counted_and_left_out(built: tuple[str, Path]) -> None:
    profile = load_profile(str(built[1]))
    assert sum(m.n_flagged for m in profile.models) == len(
        [r for r in read_rows(built[1] / "samples.parquet") if r["flagged"]]
    )


def test_the_interval_of_new_shapes_is_near_its_nominal_level(built: tuple[str, Path]) -> None:
    kind, out = built
    profile, inside = load_profile(str(out)), []
    for row in rows(kind, {"random": 25}):
        x = json.loads(row["shape"])
        model = profile.model_of((row["op"], row["direction"]))
        inputs = {n: np.array([x[n]]) for n in form_of(*model.key).inputs}
        inputs |= {"element": np.array([x["item"]])} if row["op"] == "gemm" else {}
        expected = predict(model.form, inputs, model.parameters)[0]
        size = 2 * x["m"] * x["n"] * x["k"] if row["op"] == "gemm" else x.get("flop", x.get("bytes"))
        inside.append(abs(np.log(row["t_s"] / expected)) <= model.half_width(size))
    assert 0.72 <= np.mean(inside) <= 0.92


def test_a_report_stands_beside_the_profile(built: tuple[str, Path]) -> None:
    text = (built[1] / "report.html").read_text("utf-8")
    assert "<i>chip</i>" not in text
    assert "&lt;i&gt;chip&lt;/i&gt;" in text
    assert "/&lt;b&gt;!" in text
    assert "<b>!" not in text
    assert "http" not in text.split("<script")[0].replace("http-equiv", "")


@pytest.mark.slow
def test_kernels_without_samples_enough_have_a_relatives_numbers(tmp_path: Path) -> None:
    table = list(rows("cpu", FEW, skip=("norm", "softmax", "gelu")))
    table = [r for r in table if (r["op"], r["direction"]) not in (("gemm", "wgrad"), ("attention", "backward"))]
    profile = build_profile(folder(tmp_path / "p", "cpu", table))
    held = {m.key: m for m in profile.models}
    assert held["gemm", "wgrad"].status == held["norm", "any"].status == "scaled"
    assert held["gemm", "wgrad"].parameters["rate"] == held["gemm", "forward"].parameters["rate"]
    assert held["norm", "any"].parameters["bandwidth"] == held["elementwise", "any"].parameters["bandwidth"]
    assert ("gelu", "forward") not in held
    own, other = held["gemm", "forward"].half_width(1e9), held["gemm", "wgrad"].half_width(1e9)
    assert own < log(2) < other < 1.1 * log(2)  # what is another kernel's is known to a factor of two


@pytest.mark.slow
def test_relatives_of_relatives(tmp_path: Path) -> None:
    """Where attention was not measured, its backward has the numbers of its forward, and this those of products."""
    table = [row for row in rows("cpu", FEW) if row["op"] != "attention"]
    held = {m.key: m for m in build_profile(folder(tmp_path / "p", "cpu", table)).models}
    rates = [held[key].parameters["rate"] for key in (("attention", "backward"), ("gemm", "forward"))]
    assert rates[0] == rates[1]
    assert held["attention", "backward"].half_width(1e9) > held["attention", "forward"].half_width(1e9)


@pytest.mark.slow
def test_too_few_products_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    table = [r for r in rows("cpu", {"fit": 6}) if r["op"] != "gemm"]
    out = folder(tmp_path / "p", "cpu", table)
    with pytest.raises(InputError, match="samples: got 0; allowed: at least 5 fitted samples of gemm/forward"):
        build_profile(out)
    assert sorted(p.name for p in out.iterdir()) == ["samples.parquet", "session.json"]


@pytest.mark.parametrize(
    ("column", "value", "path"),
    [
        ("t_s", float("nan"), "t_s"),
        ("t_s", -1.0, "t_s"),
        ("t_s", 1e300, "t_s"),
        ("shape", "[1]", "shape"),
        ("shape", '{"m": "x"}', "shape"),
        ("shape", '{"m": 1e-300}', "shape"),
        ("shape", "[" * 9_000, "shape"),
        ("flop", float("nan"), "flop"),
        ("op", "convolution", "shape"),
        ("op", "collective", "shape"),
        ("direction", "gaps", "shape"),
    ],
)
def test_samples_that_cannot_be_are_named(tmp_path: Path, column: str, value: Any, path: str) -> None:
    table = [r | {column: value} for r in list(rows("cpu", {"fit": 1}))[:3]]
    with pytest.raises(InputError) as caught:
        read_rows(folder(tmp_path / "p", "cpu", table) / "samples.parquet")
    assert caught.value.path.endswith(f"[0].{path}")


def test_a_collective_of_another_library_is_named(tmp_path: Path) -> None:
    own = {"op": "collective", "direction": "all_reduce", "implementation": "mpi", "shape": '{"n": 2, "size": 4}'}
    out = folder(tmp_path / "p", "cpu", [next(iter(rows("cpu", {"fit": 1}))) | own])
    with pytest.raises(
        InputError, match=r"direction: got .*'mpi'.*; allowed: one of all_reduce, .* by one of gloo, nccl"
    ):
        read_rows(out / "samples.parquet")


def test_files_that_are_no_samples_are_named(tmp_path: Path) -> None:
    (tmp_path / "samples.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="whole Parquet file"):
        read_rows(tmp_path / "samples.parquet")
    pq.write_table(pa.table({"op": ["gemm"]}), tmp_path / "samples.parquet")
    with pytest.raises(InputError, match="the columns op"):
        read_rows(tmp_path / "samples.parquet")


@fully
def test_public_measurements_as_samples(tmp_path: Path) -> None:
    """A100's products, attention and vectors as if sampled: every parameter free, and the errors stay small."""
    public = read_public([reference("kernels/bf16_efficiency_a100_b200.csv"), reference("kernels/vector_fp32.csv")])
    table = []
    names = {"gemm": "NVIDIA A100 PCIe", "attention": "NVIDIA A100 PCIe"}
    for op, direction in KERNELS:
        held = public.of(names.get(op, "NVIDIA A100 80GB PCIe"), op, direction)
        for n in range(len(held)):
            x = {name: float(v[n]) for name, v in held.inputs.items()}
            table.append(
                {"op": op, "direction": direction, "dtype": "bfloat16", "implementation": "public", "use": "fit"}
                | {"group": held.family[n], "id": f"{op}{direction}{n}", "t_s": float(held.seconds[n]), "flop": 1.0}
                | {"bytes": 1.0, "shape": json.dumps(x), "flagged": False}
            )
    profile = build_profile(folder(tmp_path / "p", "cuda", table, cores=108))
    limits = {"gemm": 4.3, "attention": 8.0, "elementwise": 1.2, "norm": 2.6, "softmax": 9.5}
    for model in profile.models:
        assert model.cross_validation is not None
        assert model.cross_validation.mape < limits[model.op], model.key


@pytest.mark.slow
def test_convolutions_are_fitted_as_their_implicit_products(tmp_path: Path) -> None:
    family, truth = Convolution(), TRUTH["cpu"]["gemm"] | {"rate": 2e10}
    table = list(rows("cpu", FEW))
    for case in family.cases(Machine("cpu", 1e12), "full"):
        sizes = product(case.direction, case.shape)
        assert 2 * sizes["m"] * sizes["n"] * sizes["k"] == evaluate(family.flop, case.shape)
        inputs = {n: np.array([x]) for n, x in sizes.items()} | {"element": np.array([4.0])}
        about = {name: getattr(case, name) for name in ("op", "direction", "dtype", "layout", "group", "use", "id")}
        t = float(predict("gemm-pnorm", inputs, truth)[0])
        shown = json.dumps(dict(case.shape))
        table.append({**table[0], **about, "implementation": "aten", "t_s": t, "shape": shown})
    built = build_profile(folder(tmp_path / "p", "cpu", table))
    for direction in ("forward", "dgrad", "wgrad"):
        model = built.model_of(("convolution", direction))
        assert (model.op, model.status) == ("convolution", "fitted")
        sizes = product(direction, {"batch": 4, "pixels": 28, "inputs": 128, "outputs": 128, "kernel": 3})
        wanted = predict(
            "gemm-pnorm", {n: np.array([x]) for n, x in sizes.items()} | {"element": np.array([4.0])}, truth
        )
        assert model.seconds(sizes | {"element": 4}) == pytest.approx(float(wanted[0]), rel=0.03)


def test_the_sessions_own_collectives_are_fitted(tmp_path: Path) -> None:
    truth = {"intra_efficiency_reduce": 0.5, "intra_efficiency_gather": 0.4, "intra_alpha": 1e-4}
    truth |= {"intra_fill_s": 5e-5, "intra_fill_bytes": 1e5}
    blank = [Collective(name, 2, size, "gloo", (1.0,), 1, 0.0) for name in FITTED for size in SIZES]
    seconds = predict_links(blank, 2e9, truth)
    table = list(rows("cpu", FEW, BESIDE_PRODUCTS))
    for made, time in zip(blank, seconds.tolist(), strict=True):
        table.append(
            {key: (made.row | {"flagged": False, "sentinel_ratio": 1.0, "t_s": time})[key] for key in table[0]}
        )
    out = folder(tmp_path / "p", "cpu", table)
    known = json.loads((Path(str(catalog("devices"))) / "cpu.json").read_text())
    known["intra_bytes_per_s"]["value"] = 2e9
    (out / "device.json").write_text(json.dumps(known))
    profile = build_profile(out)
    assert profile.collectives["intra_efficiency_reduce"] == pytest.approx(0.5, rel=0.05)
    assert profile.collectives_source.startswith("measured, gloo between 2 processes")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_was_measured_despite_load_is_used_and_told(tmp_path: Path, kind: str) -> None:
    table = [row | {"flagged": True, "sentinel_ratio": 1.05} for row in rows(kind, FEW, BESIDE_PRODUCTS)]
    out = folder(tmp_path / "p", kind, table)
    session = json.loads((out / "session.json").read_text()) | {"despite_load": True}
    (out / "session.json").write_text(json.dumps(session))
    profile = build_profile(out)
    assert {(m.n_flagged, m.n_disturbed) for m in profile.models if m.status == "fitted"} == {(0, FEW["fit"])}
    told = (out / "report.html").read_text()
    assert "0 flagged and left out; " + profile.disturbed_words in told
    assert "take part in no fit" not in told


@pytest.mark.slow
def test_a_disturbed_machine_still_gives_a_profile_which_says_so(tmp_path: Path) -> None:
    calm = list(rows("cpu", {"fit": 20}, tuple(set(BESIDE_PRODUCTS) - {"attention"})))
    told = {r["id"] for r in calm if r["op"] != "gemm"}  # of the products none is disturbed
    table = [r | {"flagged": True, "sentinel_ratio": 1.1} if r["id"] in told else r for r in calm]
    profile = build_profile(folder(tmp_path / "p", "cpu", table))
    fitted = [m for m in profile.models if m.status == "fitted"]
    assert {m.n_disturbed for m in fitted if m.op == "gemm"} == {None}
    assert {(m.n_train, m.n_disturbed) for m in fitted if m.op != "gemm"} == {(8, 8)}
    assert "attention" in profile.disturbed_words
    assert "gemm" not in profile.disturbed_words
    assert load_profile(str(tmp_path / "p")).disturbed_words == profile.disturbed_words


@pytest.mark.slow
def test_a_gpu_under_its_power_limit_is_not_disturbed(tmp_path: Path) -> None:
    """Its clock has states some per cent apart: what a processor's neighbours do is another thing."""
    made = rows("cuda", FEW, BESIDE_PRODUCTS)
    table = [row | {"flagged": True, "sentinel_ratio": 1.05} for row in made]
    profile = build_profile(folder(tmp_path / "p", "cuda", table))
    assert {m.n_disturbed for m in profile.models if m.status == "fitted"} == {None}
    for name, ratio in (("q", 1.2), ("r", 1.0)):  # a sentinel as it should be: something else disturbed them
        moved = [row | {"sentinel_ratio": ratio} for row in table]
        profile = build_profile(folder(tmp_path / name, "cuda", moved))
        assert None not in {m.n_disturbed for m in profile.models if m.status == "fitted"}


def test_products_that_no_tensor_unit_loads_are_left_out(tmp_path: Path) -> None:
    table = list(rows("cuda", FEW, BESIDE_PRODUCTS))
    aligned = {"m": 512.0, "n": 256.0, "k": 1024.0, "batch": 1.0, "item": 2.0}
    slow = {"layout": "NN", "shape": json.dumps(aligned | {"k": 1025.0}), "t_s": 1.0}
    table += [row | slow | {"id": row["id"] + "+"} for row in table if row["op"] == "gemm"]
    profile = build_profile(folder(tmp_path / "p", "cuda", table))
    assert {m.n_train for m in profile.models if m.op == "gemm"} == {FEW["fit"]}


def test_a_known_device_has_the_catalogs_links(tmp_path: Path) -> None:
    out = folder(tmp_path / "p", "cuda", list(rows("cuda", FEW, BESIDE_PRODUCTS)))
    session = json.loads((out / "session.json").read_text())
    session["fingerprint"]["name"] = "NVIDIA H100 80GB HBM3"
    (out / "session.json").write_text(json.dumps(session))
    made, known = build_profile(out), load_profile("h100-sxm-80gb")
    assert made.name == "h100-sxm-80gb"
    assert (made.collectives, made.collectives_source) == (known.collectives, known.collectives_source)


def test_kernels_side_by_side_become_what_a_neighbour_adds(tmp_path: Path) -> None:
    table = list(rows("cpu", FEW, BESIDE_PRODUCTS))
    blank = dict.fromkeys(SCHEMA.names) | {"flagged": False, "sentinel_ratio": 1.0}
    table += [blank | Beside("memory", n, 0, t_s, 9).row for n, t_s in ((1, 1e-3), (2, 1.4e-3))]
    out = folder(tmp_path / "p", "cpu", table)
    assert build_profile(out).beside == {"memory": pytest.approx(0.4)}
    alone, both = (Cluster.of("cpu", nodes=1, gpus_per_node=n, domain_gpus=n, profile=str(out)) for n in (1, 2))
    assert level_of(alone).parameters == RunLevel()
    assert level_of(both).parameters.memory_bound_slowdown == pytest.approx(1.4)
    assert level_of(both).parameters.gemm_slowdown == 1.0


@pytest.mark.slow
def test_a_profile_takes_up_the_sessions_memory_and_contention(tmp_path: Path) -> None:
    out = folder(tmp_path / "p", "cuda", list(rows("cuda", FEW, BESIDE_PRODUCTS)))
    other = Streams()
    measure(out, "of another day", 1e9, streams=other, now=lambda: other.clock)
    assumed = build_profile(out)
    assert assumed.memory.source.startswith("assumed") and assumed.contention == []  # of this session there is none
    constants = replace(SIMULATED, large_segment=2**25)
    found = DeviceMemory(constants=constants, as_simulated=False, workspace_bytes=7, context_bytes=8)
    session = {"memory": asdict(found)}
    (out / MEMORY).write_text(json.dumps(session))
    device = Streams()
    measure(out, "abc", 1e9, streams=device, now=lambda: device.clock)
    profile = build_profile(out)
    assert (profile.memory.workspace_bytes, profile.memory.context_bytes) == (7, 8)
    assert profile.memory.large_segment_bytes == 2**25
    (fitted,) = profile.contention
    assert (fitted.n_in, fitted.n_out, fitted.session) == (4, 1, "abc")
    assert np.array(fitted.matrix) == pytest.approx(np.array(matrix(STREAMS_TRUTH)), abs=0.02)
    placed = sharing(run_level(), profile, (4, 1))
    assert placed.slowdown[Stream.COMPUTE, Stream.COLLECTIVE] == fitted.matrix[0][1]
    assert measured_settings(SimpleNamespace(profile=profile)).large_segment_bytes == 2**25  # type: ignore[arg-type]
