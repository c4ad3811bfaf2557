"""The space of schedules: from the processor alone, small, and every schedule of it right."""

from dataclasses import replace

import numpy as np
import pytest

from calibration.taskmap.contraction import FORWARD
from calibration.taskmap.interpret import interpret
from calibration.taskmap.native import compiled, compiler
from calibration.taskmap.processor import Processor, processor
from calibration.taskmap.space import MOST, KernelSchedule, fits, schedules
from tests.calibration.taskmap.problems import PROBLEMS
from tests.full import FULL

WIDE = Processor(cores=2, lanes=16, registers=32, cache_bytes=2**20)
EVERY = schedules(WIDE)
SOME = EVERY if FULL else EVERY[::26]


@pytest.mark.parametrize(("lanes", "registers"), [(16, 32), (8, 16), (4, 32)])
@pytest.mark.parametrize("cache", [2**18, 2**20, 2**21])
def test_it_is_small_and_never_empty(lanes, registers, cache):
    found = schedules(Processor(2, lanes, registers, cache))
    assert 0 < len(found) < MOST
    assert len(set(found)) == len(found)
    assert all(s.rows * s.vectors < registers and s.lanes == lanes for s in found)


def test_this_processor_has_one():
    assert schedules(processor())


def test_what_does_not_fit_is_left_out():
    good = KernelSchedule(6, 2, 2, 2, 64, 16)
    assert fits(good, WIDE)
    assert not fits(replace(good, rows=14, vectors=3), WIDE)  # registers
    assert not fits(replace(good, rows=4, vectors=1), WIDE)  # too few sums under way
    assert not fits(good, replace(WIDE, cache_bytes=2**12))


@pytest.mark.parametrize("schedule", EVERY[:: 1 if FULL else 5], ids=str)
def test_every_schedule_interpreted_is_torchs_product(schedule):
    problem = PROBLEMS[0]
    found = interpret(schedule.program(FORWARD), problem.a.numpy().ravel(), problem.b.numpy().ravel(), problem.sizes)
    assert problem.close(found)


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
@pytest.mark.usefixtures("lightly")
@pytest.mark.parametrize("schedule", SOME, ids=str)
def test_every_schedule_compiled_is_torch(schedule):
    """One kernel a contraction, for all its sizes."""
    for problem in PROBLEMS:
        c = np.full(problem.wanted.numel(), np.nan, dtype=np.float32)
        kernel = compiled(schedule.program(problem.contraction))
        kernel(problem.a.numpy().ravel(), problem.b.numpy().ravel(), c, problem.sizes, threads=2)
        assert problem.close(c)
