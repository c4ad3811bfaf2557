"""GPUs and their spaces of block schedules: from the GPU alone, small, and every schedule of them right."""

from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from calibration.taskmap.contraction import FORWARD
from calibration.taskmap.emit_triton import options
from calibration.taskmap.gpu import CATALOG, GENERATIONS, of_catalog, of_properties
from calibration.taskmap.gpu_space import MOST, BlockSchedule, block_schedules, fits
from calibration.taskmap.interpret import interpret
from calibration.taskmap.triton_kernel import compiled
from sim.catalog import names
from sim.specs.fields import InputError
from tests.calibration.taskmap.problems import PROBLEMS, product
from tests.full import FULL

GPUS = [name for name in names("devices") if name not in ("cpu", "mi300x")]
H100 = of_catalog("h100-sxm-80gb")
HERE = of_properties(torch.cuda.get_device_properties(0)) if torch.cuda.is_available() else H100
EVERY = block_schedules(HERE, 4)
SOME = EVERY if FULL else EVERY[::18]
LARGE = BlockSchedule(128, 256, 64, 8, 3, 8)


def test_a_gpu_of_the_catalog():
    assert (H100.capability, H100.sms, H100.shared_bytes, H100.registers) == ((9, 0), 132, 232_448, 65_536)
    assert H100.flop_per_s(2) == 989.4e12
    assert H100.flop_per_s(4, "tf32") == 494.7e12
    assert H100.flop_per_s(4) == 132 * 1.83e9 * 256
    t4 = of_catalog("t4")
    assert not t4.copies_ahead and t4.flop_per_s(4, "tf32") == t4.flop_per_s(4) == pytest.approx(8.1e12, rel=0.01)
    assert {of_catalog(name).capability for name in CATALOG} == {g.capability for g in GENERATIONS.values()}


@pytest.mark.parametrize("name", ["cpu", "mi300x"])
def test_what_is_no_gpu_with_cuda_is_refused(name):
    with pytest.raises(InputError, match=r"device: got .*allowed: a GPU of the catalog: v100"):
        of_catalog(name)


def properties(name, major, minor, sms):
    return SimpleNamespace(
        name=name,
        major=major,
        minor=minor,
        multi_processor_count=sms,
        shared_memory_per_block_optin=101_376,
        shared_memory_per_multiprocessor=102_400,
        regs_per_multiprocessor=65_536,
        max_threads_per_multi_processor=1_536,
        L2_cache_size=2**20,
    )


def test_a_gpu_that_is_there():
    found = of_properties(properties("NVIDIA H200", 9, 0, 100))
    assert (found.sms, found.shared_bytes, found.threads, found.l2_bytes) == (100, 101_376, 1_536, 2**20)
    assert found.fp16_flop_per_s == of_catalog("h200-sxm-141gb").fp16_flop_per_s
    unknown, relative = of_properties(properties("NVIDIA A40", 8, 6, 40)), of_catalog("a10g")
    assert unknown.fp16_flop_per_s == relative.fp16_flop_per_s / 2
    with pytest.raises(InputError, match="device: got 'NVIDIA Quadro'; allowed: a GPU of compute capability"):
        of_properties(properties("NVIDIA Quadro", 6, 1, 40))


@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.parametrize("name", GPUS)
def test_it_is_small_and_never_empty(name, item):
    gpu = of_catalog(name)
    found = block_schedules(gpu, item)
    assert 0 < len(found) < MOST
    assert len(set(found)) == len(found)
    assert {s.group for s in found} == {1, 4 if gpu.sms < 64 else 8}
    assert {s.stages for s in found} <= ({2, 3, 4} if gpu.copies_ahead else {1})
    assert {s.bulk for s in found} == ({False, True} if gpu.capability >= (9, 0) and item == 2 else {False})


def test_what_does_not_fit_is_left_out():
    assert fits(LARGE, H100, 2) and LARGE in block_schedules(H100, 2)
    assert not fits(LARGE, of_catalog("a10g"), 2)  # shared memory
    assert not fits(replace(LARGE, warps=4), H100, 2)  # registers
    assert not fits(replace(LARGE, columns=32), H100, 2)  # too little for each thread
    assert not fits(replace(LARGE, rows=32), H100, 2)  # too long
    assert not fits(LARGE, replace(H100, registers=32_768), 2)


def test_how_many_blocks_an_sm_holds():
    assert LARGE.resident(H100, 2) == 1
    small = BlockSchedule(64, 64, 64, 4, 2, 1)
    assert small.resident(H100, 2) == 65_536 // (128 * (32 + 64)) == 5  # registers
    assert replace(small, stages=4).resident(H100, 2) == 233_472 // (65_536 + 1_024) == 3  # shared memory
    assert small.resident(replace(H100, threads=256), 2) == 2
    assert small.resident(replace(H100, blocks=1), 2) == 1


@pytest.mark.parametrize("item", [2, 4])
def test_every_schedule_is_a_program_of_real_workers(item):
    for schedule in block_schedules(H100, item):
        program = schedule.program(FORWARD)
        assert program.block == (schedule.rows, schedule.columns, schedule.depth)
        assert program.bulk is schedule.bulk
        assert schedule.mapping.workers == 32 * schedule.warps
        assert schedule.mapping.tasks == schedule.sums
        assert options(program) == {"num_warps": schedule.warps, "num_stages": schedule.stages}
        assert program.group == schedule.group


@pytest.mark.parametrize("schedule", SOME[:: 1 if FULL else 4], ids=str)
def test_schedules_interpreted_are_torchs_product(schedule):
    """With their own workers: registers, barriers, copies ahead."""
    problem = product(FORWARD, 33, 29, 150)
    found = interpret(schedule.program(FORWARD), problem.a.numpy().ravel(), problem.b.numpy().ravel(), problem.sizes)
    assert problem.close(found)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("schedule", SOME, ids=str)
def test_every_schedule_is_torch_in_triton(schedule):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for problem in PROBLEMS:
        c = torch.full((problem.wanted.numel(),), torch.nan, device=device)
        kernel = compiled(schedule.program(problem.contraction))
        kernel(problem.a.to(device), problem.b.to(device), c, problem.sizes)
        assert problem.close(c.cpu())
