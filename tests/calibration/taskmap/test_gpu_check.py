"""The check of tuned schedules, interpreted: what it says of rows, that it keeps them, and that its shapes are fair."""

import json
from dataclasses import replace
from importlib.util import find_spec
from math import sqrt
from types import SimpleNamespace

import pytest
import torch

from calibration import checked
from calibration.taskmap import gpu_check, gpu_tune
from calibration.taskmap.contraction import DGRAD, FORWARD, WGRAD
from calibration.taskmap.gpu_check import PROBED, check, operands, setting, shapes, summary
from tests.calibration.taskmap.problems import product

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_shapes_are_layers_of_training_that_no_fit_has_seen():
    found = shapes()
    assert len(found) == 10 and found == shapes()
    assert [contraction.name for contraction, _ in found[:4]] == ["forward", "dgrad", "wgrad", "forward"]
    assert not any(dict(sizes) in PROBED for _, sizes in found)
    assert all(size % 512 == 0 for _, sizes in found for size in sizes.values())


@pytest.mark.parametrize("contraction", [FORWARD, DGRAD, WGRAD], ids=lambda c: c.name)
def test_operands_are_the_products(contraction):
    problem = product(contraction, 5, 7, 3)
    left, right = operands(contraction, problem.sizes, problem.a.ravel(), problem.b.ravel())
    assert torch.allclose((left @ right).double(), problem.wanted, atol=1e-5)


def test_a_summary_of_rows():
    rows = [
        {"tuning_s": 2.0, "schedules": 9},
        {"tuning_s": 1.0, "of_cublas": 0.5, "relative_error": 0.01},
        {"tuning_s": 1.0, "of_cublas": 1.0, "relative_error": 0.02},
        {"top10_holds_best": True},
        {"top10_holds_best": False},
        {"fused_speedup": 1.5},
        {"failure": "OSError: gone"},
    ]
    assert summary(rows) == {
        "geomean_of_cublas": pytest.approx(sqrt(0.5)),
        "schedules": 9,
        "tuning_s": 4.0,
        "top10_holds_best": 0.5,
        "fused_speedup": 1.5,
        "max_relative_error": 0.02,
        "failed": 1,
    }
    assert summary([])["geomean_of_cublas"] is None


@pytest.mark.slow
@needs_triton
def test_it_runs_interpreted():
    kept = []
    found = check("cpu", 300.0, lambda so_far: kept.append(len(so_far["rows"])))
    assert found["complete"] and found["failed"] == 0
    assert [row["kind"] for row in found["rows"]].count("product") == 4
    assert kept == list(range(1, len(found["rows"]) + 1))
    assert found["by_dtype"]["bfloat16"]["max_relative_error"] < 1e-2
    assert found["by_dtype"]["float32"]["max_relative_error"] < 1e-6
    assert found["by_dtype"]["bfloat16"]["top10_holds_best"] in (0.0, 0.5, 1.0)
    assert found["by_dtype"]["float32"]["top10_holds_best"] is None
    assert found["geomean_of_cublas"] > 0 and found["fused_speedup"] > 0 and found["tuning_s"] > 0
    json.dumps(found)


@needs_triton
def test_what_time_or_an_error_leaves_is_kept(monkeypatch):
    clock = iter(float(n) for n in range(1_000))
    monkeypatch.setattr(checked, "monotonic", lambda: next(clock))
    one = replace(setting("cpu"), dtypes=("float32",))
    monkeypatch.setattr(gpu_check, "setting", lambda device: one)

    def fail(*given):
        raise OSError("gone")

    monkeypatch.setattr(gpu_check, "tune", fail)
    found = check("cpu", 5.0)
    assert not found["complete"]
    assert [row["kind"] for row in found["rows"][:2]] == ["learned", "learned"]
    assert found["rows"][2:] == [{"dtype": "float32", "failure": "OSError: gone"}] * 2
    assert found["failed"] == 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_kernel_is_compiled_without_being_run(monkeypatch, fails):
    asked = []

    def warmup(*given, **named):
        asked.append((given, named))
        if fails:
            raise RuntimeError("out of resources")

    schedule = setting("cpu").every(2)[0]
    monkeypatch.setattr(gpu_tune, "compiled", lambda program: SimpleNamespace(function=SimpleNamespace(warmup=warmup)))
    assert gpu_tune._compile(("forward", "bfloat16", schedule)) != fails
    ((given, named),) = asked
    assert given == (torch.bfloat16,) * 3 + (4096,) * 3
    gpu_tune._compile(("dgrad", "bfloat16", replace(schedule, bulk=True)))
    (a, b, *_), _ = asked[1]
    assert (a.block_shape, b.block_shape) == ([schedule.rows, schedule.depth], [schedule.depth, schedule.columns])
    assert (named["num_warps"], named["num_stages"]) == (schedule.warps, schedule.stages)


@needs_triton
def test_what_is_timed_is_compiled_before(monkeypatch):
    """Probes, what is ranked first at any shape, and in the end all."""
    compiled, timed = set(), set()
    monkeypatch.setattr(
        gpu_check, "compile_ahead", lambda c, dtype, some, n: compiled.update((c.name, s) for s in some)
    )

    def seconds(bench, schedule):
        assert (bench.contraction.name, schedule) in compiled
        timed.add((bench.contraction.name, schedule))
        return 1e-3 + schedule.stages * 1e-5

    monkeypatch.setattr(gpu_tune.BlockBench, "__call__", seconds)
    one = replace(setting("cpu"), dtypes=("bfloat16",), ahead=3)
    for _, part in gpu_check._parts(one):
        part()
    assert timed == compiled and len(timed) > 2 * one.top


@pytest.mark.slow
@needs_triton
def test_processes_that_compile_stay():
    """Where Triton interprets there is nothing to compile, and it is told so."""
    some = setting("cpu").every(2)[:2]
    assert gpu_tune.compile_ahead(FORWARD, "bfloat16", some, 1) == 2
    assert gpu_tune._pool(1) is gpu_tune._pool(1)
