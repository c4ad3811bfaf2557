"""Profiles of traces: what is fitted, what is scaled from a base, and what is refused with one clear error."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration import cli
from calibration.against import compare
from calibration.fit import predict
from calibration.folder import alone
from calibration.from_trace import ENOUGH, SCATTER, Traced, calibrate_trace, in_steps
from calibration.store import SAMPLES, SCHEMA, SESSION, read_samples
from calibration.trace_tree import DTYPES, read_tree
from sim.costs.kernels import SERIAL
from sim.costs.profile import ADAM_TENSORS, Fingerprint, load_profile
from sim.costs.spread import widening
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Plan
from sim.specs.catalog import models
from tests.calibration.traces import kernel, op, recorded, written

BASE, H200 = "a100-sxm-80gb", "h200-sxm-141gb"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """The profile of a recorded trace of a small GPT."""
    folder = tmp_path_factory.mktemp("traced")
    return calibrate_trace(recorded(folder, packed=False), folder / "mine")


def test_the_folder_is_a_profile_that_can_be_read(traced):
    assert load_profile(str(traced.folder)) == traced.profile
    assert (traced.profile.name, traced.profile.base, traced.profile.dtype) == ("mine", "cpu", "float32")
    assert traced.profile.estimate


def test_samples_have_the_columns_of_every_calibration(traced):
    rows = read_samples(traced.folder / "samples.parquet")
    assert list(rows[0]) == SCHEMA.names
    assert len({row["id"] for row in rows}) == len(rows)
    assert sum(row["n"] for row in rows) == sum(traced.recognised.values())
    for row in rows:
        assert 0 < row["t_min_s"] == row["t_s"] <= row["t_p10_s"] <= row["t_p90_s"]


def test_the_three_products_of_a_layer_are_held_out_together(traced):
    held = {"forward": set(), "dgrad": set(), "wgrad": set()}
    for row in read_samples(traced.folder / "samples.parquet"):
        if row["op"] == "gemm":
            held[row["direction"]].add(row["group"])
    assert held["forward"] == held["dgrad"] == held["wgrad"]
    assert held["forward"] >= {"64x128x192 batch=1", "64x64x128 batch=1"}


def test_what_was_not_fitted_is_told_and_keeps_the_bases_form(traced):
    assert traced.not_fitted["softmax any"].startswith("0 shapes")
    assert traced.not_fitted["attention forward"].startswith("1 shapes")
    held = {" ".join(m.key): m.status for m in traced.profile.models}
    assert all(held[name] == "scaled" for name in traced.not_fitted)
    assert {name for name, status in held.items() if status == "fitted"} == held.keys() - traced.not_fitted.keys()


def test_a_scaled_family_is_right_at_the_shape_it_was_scaled_to(traced):
    (row,) = [r for r in read_samples(traced.folder / "samples.parquet") if r["op"] == "adam"]
    model = traced.profile.model_of(("adam", "any"))
    found = predict(model.form, {"bytes": np.array([row["bytes"]])}, model.parameters)
    # What the simulator adds for tensors beyond those of a calibration is in the traced time too.
    further = model.parameters["t0"] * (json.loads(row["shape"])["tensors"] / ADAM_TENSORS - 1)
    assert further > 0
    assert found[0] + further == pytest.approx(row["t_s"], rel=1e-4)


SIZES = ((64, 64, 64), (128, 512, 128), (1024, 128, 512), (512, 2048, 512), (4096, 1024, 1024), (4096, 4096, 4096))


def products(factor: float, sizes: tuple[tuple[int, int, int], ...] = SIZES, base: str = BASE) -> list[dict[str, Any]]:
    """Return forward products that take `factor` times what the base says, on a device."""
    model = load_profile(base).model_of(("gemm", "forward"))
    times = [factor * model.seconds(dict(zip("mnk", size, strict=True)) | {"batch": 1}) for size in sizes]
    events = []
    for n, ((m, columns, k), seconds) in enumerate(zip(sizes, times, strict=True), start=1):
        dims = ((m, k), (k, columns))
        events += [op("aten::mm", 10.0 * n, 5.0, dims, "c10::BFloat16", External_id=n), kernel(n, seconds * 1e6)]
    return events


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.25, 1.0, 3.0])
def test_enough_shapes_give_back_the_times_that_made_them(tmp_path, factor):
    assert len(SIZES) >= ENOUGH
    found = calibrate_trace(written(tmp_path, products(factor)), tmp_path / "out", BASE).profile
    model, base = (p.model_of(("gemm", "forward")) for p in (found, load_profile(BASE)))
    assert model.status == "fitted"
    assert model.cross_validation is not None
    assert model.cross_validation.n == len(SIZES)
    new = {name: np.array([1024.0]) for name in "mnk"} | {"batch": np.ones(1)}
    taken, expected = (predict(m.form, new, m.parameters)[0] for m in (model, base))
    assert taken == pytest.approx(factor * expected, rel=0.25)


def test_waves_are_those_of_the_bases_multiprocessors(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(
        "calibration.from_trace.fit_families", lambda rows, flagged, traced, *_: counted.append(traced.cores) or []
    )
    for base in ("h100-sxm-80gb", "a100-sxm-80gb"):
        calibrate_trace(written(tmp_path, products(1.0)), tmp_path / base, base)
    assert counted == [132, 108]


def test_impossible_times_are_told_of_the_trace(tmp_path):
    trace = written(tmp_path, products(1e9))
    with pytest.raises(InputError, match=r"trace.json: got 'kernels of which no model can be made \(parameters"):
        calibrate_trace(trace, tmp_path / "out", BASE)
    assert not (tmp_path / "out").exists()


def test_few_shapes_scale_every_time_by_the_median_ratio(tmp_path):
    found = calibrate_trace(written(tmp_path, products(3.0, SIZES[:3])), tmp_path / "out", BASE)
    model, base = (p.model_of(("gemm", "forward")) for p in (found.profile, load_profile(BASE)))
    for name in ("rate", "bandwidth"):
        assert model.parameters[name] * 3 == pytest.approx(base.parameters[name], rel=1e-4)
    other, theirs = (p.model_of(("norm", "any")) for p in (found.profile, load_profile(BASE)))
    assert other.parameters["bandwidth"] * 3 == pytest.approx(theirs.parameters["bandwidth"], rel=1e-4)
    assert "the median ratio of all families" in other.source


LONG_SUMS = ((64, 64, 4096), (128, 128, 8192), (128, 512, 2048))
LARGE = ((8192, 8192, 8192), (16_384, 8192, 8192), (8192, 28_672, 8192))
SHORT = ((1024, 1024, 1024), (2048, 1024, 512), (1024, 4096, 512))


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "base"), [(LONG_SUMS, H200), (LARGE, H200), (SHORT, "b200")])
def test_scaled_products_take_in_a_step_what_they_took_in_the_traced_ones(tmp_path, sizes, base):
    """The floor of long sums is scaled too; what kernels alone gain or lose by the chip's clock, steps do not."""
    found = calibrate_trace(written(tmp_path, products(3.0, sizes, base)), tmp_path / "out", base)
    model, theirs = (p.model_of(("gemm", "forward")) for p in (found.profile, load_profile(base)))
    for size in sizes:
        shape = dict(zip("mnk", size, strict=True)) | {"batch": 1}
        assert model.seconds(shape) == pytest.approx(3 * theirs.seconds(shape), rel=1e-3)


def test_no_term_is_fitted_that_a_step_leaves_out():
    groups = in_steps("gemm-pnorm", {}, Fingerprint(versions={"cuda": "unknown"}))
    free = {name for group in groups for term in group for name in term.free}
    assert free == {"p", "m0", "n0", "k0", "t0", "waves", *SERIAL, "written"}


def test_families_that_nothing_was_seen_of_widen_the_interval(traced, tmp_path):
    """They are guessed: the profile passes for none that was measured."""
    assert traced.not_fitted and not traced.profile.measured
    widths = []
    for profile in ("cpu", str(traced.folder)):
        cluster = Cluster.of("cpu", nodes=1, gpus_per_node=1, profile=profile)
        step = simulate(models["gpt2"], cluster, Plan(global_batch=1))
        widths.append(step.step_time_interval_s[1] / step.step_time_s)
    assert widths[1] > widths[0]
    few = calibrate_trace(written(tmp_path, products(3.0, SIZES[:3])), tmp_path / "out", BASE).profile
    assert few.scaling_sigma_log == SCATTER


def test_steps_beyond_the_traced_shapes_are_less_sure(tmp_path):
    """Although most families are guessed: public runs know nothing of what the others were fitted to."""
    found = calibrate_trace(written(tmp_path, products(1.0)), tmp_path / "out", BASE)
    assert not found.profile.measured and found.profile.session
    cluster = Cluster.of(BASE, nodes=1, gpus_per_node=1, profile=str(found.folder))
    beyond = simulate(models["gpt3-175b"], cluster, Plan(global_batch=1))
    (told,) = [text for text in beyond.assumptions if text.startswith("outside the fitted shapes")]
    assert told.endswith("the interval is wider for it")
    wider = widening(beyond.profile, beyond.kernels)
    assert wider > 0.01
    assert beyond.sigma_log**2 >= beyond.level.sigma_log**2 + found.profile.scaling_sigma_log**2 + wider**2 - 1e-9


def test_samples_of_one_trace_are_unseen_by_the_profile_of_another(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    mine, other = (calibrate_trace(written(tmp_path / n, products(1.0)), tmp_path / n / "out", BASE) for n in "ab")
    assert mine.profile.session != other.profile.session
    _, compared, aside = compare(str(mine.folder), [other.folder / SAMPLES])
    assert [(one.kernel, one.n) for one in compared] == [("gemm forward", len(SIZES))] and not aside


def test_adam_in_fp32_counts_beside_passes_in_16_bit(tmp_path):
    """Masters and moments of mixed precision: without it the step would take what the base's does."""
    size, events = 10**8, products(1.0, SIZES[:3])
    step = {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#Adam.step", "pid": 1, "tid": 1, "args": {}}
    events += [step | {"ts": 1000.0, "dur": 50.0}, op("aten::_fused_adam_", 1001.0, 40.0, [[[size]]], External_id=99)]
    found = calibrate_trace(written(tmp_path, [*events, kernel(99, 2800.0)]), tmp_path / "out", BASE)
    model = found.profile.model_of(("adam", "any"))
    (taken,) = predict(model.form, {"bytes": np.array([28.0 * size])}, model.parameters)
    assert (found.profile.dtype, model.key) == ("bfloat16", ("adam", "any"))
    assert taken == pytest.approx(2800e-6, rel=1e-3)


@pytest.mark.parametrize("told", [True, False])
def test_an_optimizer_whose_sizes_torch_leaves_out_is_said(tmp_path, told):
    """A fused update of more than 30 tensors has an empty shape; nothing else in a trace says what was updated."""
    step = op("Optimizer.step#AdamW.step", 1000.0, 50.0) | {"cat": "user_annotation"}
    update = op("aten::_fused_adamw_", 1001.0, 40.0, [[[64, 64]] if told else []], External_id=99)
    trace = written(tmp_path, [*products(1.0, SIZES[:3]), step, update, kernel(99, 2800.0)])
    found = calibrate_trace(trace, tmp_path / "out", BASE)
    assert ("adam any" in found.recognised, "30 tensors" in found.not_fitted["adam any"]) == (told, not told)


@pytest.mark.parametrize("kinds", [("float", "c10::BFloat16", "c10::Half"), ("c10::Half", "float", "c10::BFloat16")])
def test_of_types_with_as_many_kernels_the_first_counts(tmp_path, kinds):
    events = [op("aten::mm", 10.0 * n, 5.0, ((8, 4), (4, 16)), kind) for n, kind in enumerate(kinds)]
    found = calibrate_trace(written(tmp_path, events), tmp_path / "out")
    assert found.profile.dtype == DTYPES[kinds[0]]


def test_on_a_device_the_median_of_equal_calls_counts(tmp_path):
    dims = ((8, 4), (4, 16))
    events = [op("aten::mm", 10.0 * n, 5.0, dims, External_id=n) for n in (1, 2, 3)]
    events += [kernel(n, duration) for n, duration in ((1, 2.0), (2, 50.0), (3, 4.0))]
    calibrate_trace(written(tmp_path, events), tmp_path / "out", BASE)
    (row,) = read_samples(tmp_path / "out" / "samples.parquet")
    assert (row["t_s"], row["t_min_s"], row["n"]) == (4e-6, 2e-6, 3)


def refused(path: Path, tmp_path: Path, base: str | None = BASE) -> str:
    """Return the one line that a trace is refused with; nothing may be left behind."""
    with pytest.raises(InputError) as told:
        calibrate_trace(path, tmp_path / "out", base)
    assert not (tmp_path / "out").exists()
    text = str(told.value)
    assert "\n" not in text
    return text


def test_a_trace_without_shapes_says_how_to_record_them(tmp_path):
    assert "record_shapes=True" in refused(recorded(tmp_path, shapes=False), tmp_path)


def test_a_trace_of_a_device_alone_says_how_to_record_operations(tmp_path):
    events = [op("ProfilerStep#1", 0.0, 9.0) | {"cat": "user_annotation"}, kernel(1, 5.0)]
    assert "without operations'; allowed: one of torch.profiler with ProfilerActivity.CPU" in refused(
        written(tmp_path, events), tmp_path
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "text that is not JSON"),
        (b"{}", "a list of events"),
        (b'{"traceEvents": []}', "a trace without operations"),
        (b'{"traceEvents": [7]}', "an object"),
        (b"[" * 100_000, "text that is not JSON"),
        (b"\x1f\x8bnot an archive", "a damaged archive"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "damaged archive"),
        (b"\xff\xfe\x00", "text that is not JSON"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, content, said):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert said in refused(path, tmp_path)


def test_no_such_file(tmp_path):
    assert "a readable trace" in refused(tmp_path / "none.json", tmp_path)


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sim.validation.traces.MAX_BYTES", 1_000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 1_000_000, mtime=0))
    assert "at most 1000 bytes" in refused(path, tmp_path)


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(("key", "value"), [("ts", NAN), ("ts", None), ("dur", -1.0), ("dur", INFINITE), ("ts", 1e300)])
def test_times_that_are_none_are_refused_with_their_place(tmp_path, key, value):
    path = written(tmp_path, [op("aten::mm", 0.0, 1.0, ((2, 2), (2, 2))) | {key: value}])
    assert f"traceEvents[0].{key}" in refused(path, tmp_path)


@pytest.mark.parametrize(
    "dims",
    [
        [[2, 3], [4, 5]],
        [[2**40, 2], [2, 2]],
        [[-2, 2], [2, 2]],
        [[2.5, 2], [2, 2]],
        [["2", 2], [2, 2]],
        [[[[[]]]], {}],
        [[0, 0], [0, 0]],
        [[2**31 - 1] * 10, [2**31 - 1] * 10],
        [[True, True], [True, True]],
        "no list",
        [None],
    ],
)
def test_shapes_that_are_none_make_no_kernel(tmp_path, dims):
    held = op("aten::mm", 0.0, 1.0, ((2, 2), (2, 2)))
    held["args"]["Input Dims"] = dims
    assert "without known kernels" in refused(written(tmp_path, [held]), tmp_path)


def test_products_of_sizes_beyond_64_bits_are_refused(tmp_path):
    size = 2**23
    events = [op("aten::mm", 100.0 * n, 10.0, ((size - n, size), (size, size))) for n in range(ENOUGH)]
    assert "no model can be made (parameters.bandwidth: got 2" in refused(written(tmp_path, events), tmp_path, "cpu")


def test_deep_nesting_is_read(tmp_path):
    events = [op("outer", float(n), 1e6 - 2 * n) for n in range(5_000)]
    found = read_tree(written(tmp_path, [*events, op("aten::mm", 6e3, 9.0, ((2, 2), (2, 2)))]))
    assert sum(1 for _ in found.all()) == 5_001


def test_arguments_of_other_kinds_are_left_out(tmp_path):
    strange = op("aten::mm", 0.0, 9.0, ((2, 2), (2, 2)))
    strange["args"] |= {"External id": [], "Sequence number": "x", "Input Strides": 7, "Concrete Inputs": {}}
    wild = kernel(1, 2.0) | {"args": {"External id": {"a": 1}, "correlation": [2]}}
    assert "without known kernels" in refused(written(tmp_path, [strange, wild]), tmp_path)


def test_a_base_is_asked_for_and_must_exist(tmp_path):
    on_device = written(tmp_path, products(1.0))
    assert refused(on_device, tmp_path, None).startswith("--base")
    assert refused(on_device, tmp_path, "a100").startswith("--base: got 'a100'")


@pytest.mark.slow
def test_a_base_is_of_the_same_kind_of_device(tmp_path):
    assert "a GPU's" in refused(written(tmp_path, products(1.0)), tmp_path, "cpu")
    assert "record with ProfilerActivity.CUDA" in refused(recorded(tmp_path), tmp_path)


def test_the_samples_of_a_measuring_session_are_not_written_over(tmp_path):
    held = tmp_path / "out"
    held.mkdir()
    for name in (SESSION, SAMPLES):
        (held / name).write_text("mine")
    with pytest.raises(InputError, match=r"--out: .*without session\.json"):
        calibrate_trace(written(tmp_path, products(3.0)), held, BASE)
    assert {file.name: file.read_text() for file in held.iterdir()} == {SESSION: "mine", SAMPLES: "mine"}


@pytest.mark.slow
def test_the_command_prints_what_was_fitted(tmp_path):
    out = tmp_path / "mine"
    arguments = ["--trace", str(written(tmp_path, products(2.0))), "--base", BASE, "--out", str(out), "--json"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["path"] == str(out / "profile.json")
    assert told["recognised"] == {"gemm forward": len(SIZES)}
    assert "gemm dgrad" in told["not_fitted"]
    assert told["device"] == BASE


def test_a_folder_of_a_catalog_profiles_name_is_told_as_a_folder(traced):
    told = replace(traced, folder=Path("cpu")).told
    assert "profile: ./cpu}" in told


@pytest.mark.slow
def test_the_command_says_how_to_go_on(tmp_path):
    """By a report, and a cluster with the device of the base: of the catalog, or of the folder of a calibration."""
    arguments = ["--trace", str(written(tmp_path, products(2.0)))]
    for name in ("mine", "again"):
        base = str(tmp_path / "mine") if name == "again" else BASE
        done = CliRunner().invoke(cli.app, [*arguments, "--base", base, "--out", str(tmp_path / name)])
        out = tmp_path / name
        assert f"{out}/report.html; cluster: {{device: {BASE}, profile: {out}}}; device of the base" in done.stderr
        assert "gemm forward" in (out / "report.html").read_text()
        cluster = Cluster.of(BASE, nodes=1, profile=str(out))
        assert simulate(models["gpt2"], cluster, Plan(global_batch=8)).step_time_s > 0


def test_the_command_takes_one_source_only(tmp_path):
    done = CliRunner().invoke(cli.app, ["--trace", str(tmp_path), "--device", "cpu"])
    assert isinstance(done.exception, InputError)
    assert "one of --device, --from and --trace" in str(done.exception)


def test_a_folder_that_another_process_writes_is_refused_and_left_alone(tmp_path):
    out = tmp_path / "out"
    with alone(out), pytest.raises(InputError, match=r"--out: got .* one that no other process writes"):
        calibrate_trace(written(tmp_path, products(3.0)), out, BASE)
    assert not out.exists()


def test_the_folder_is_kept_until_everything_is_written(tmp_path, monkeypatch):
    def tried(path, *_):
        with pytest.raises(InputError, match="one that no other process writes"), alone(path.parent):
            pass

    monkeypatch.setattr("calibration.from_trace.write_report", tried)
    calibrate_trace(written(tmp_path, products(3.0)), tmp_path / "out", BASE)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["profile.json", SAMPLES]
    with pytest.raises(InputError, match="a readable trace"):
        calibrate_trace(tmp_path / "none.json", tmp_path / "new", BASE)
    assert not (tmp_path / "new").exists()
