"""Every family of the registry passes the contract; the registry covers what the simulator's layers read."""

import pytest
import torch

from calibration.kernels.registry import FAMILIES
from calibration.kernels.work import CACHE_BYTES, MAX_SETS, SETS, relative_error, rotated
from sim.costs.kernels import KERNELS
from tests.contracts.family import CPU, CUDA, FamilyContract, cases, family, one_thread

__all__ = ["family", "one_thread"]

OPTIONAL = {
    *(
        (op, d)
        for op in ("gelu", "swiglu", "residual", "dropout", "cross_entropy", "embedding")
        for d in ("forward", "backward")
    ),
    ("norm", "backward"),
    ("softmax", "backward"),
    ("adam", "any"),
}


class TestFamilies(FamilyContract):
    pass


@pytest.mark.parametrize("machine", [CPU, CUDA], ids=["cpu", "cuda"])
def test_all_kernels_of_the_simulator_are_measured(machine):
    held = {(case.op, case.direction) for f in FAMILIES for case in cases(f, machine)}
    assert held >= set(KERNELS) | OPTIONAL


def test_names_of_families_and_ids_of_all_cases_differ():
    assert len({f.name for f in FAMILIES}) == len(FAMILIES)
    for machine in (CPU, CUDA):
        ids = [case.id for f in FAMILIES for case in cases(f, machine, "full")]
        assert len(set(ids)) == len(ids)


def test_sets_are_together_larger_than_the_cache():
    made = []
    assert len(rotated(CPU, 2**20, lambda: made.append(0))) == len(made) == 2 * CACHE_BYTES["cpu"] / 2**20
    assert len(rotated(CPU, 2**30, list)) == SETS
    assert len(rotated(CUDA, 2**24, list)) * 2**24 >= CACHE_BYTES["cuda"]
    assert len(rotated(CUDA, 2**10, list)) == MAX_SETS
    large = rotated(CUDA, 2**32, list)
    assert len(large) == SETS
    assert large[0] is large[1]  # held once: it evicts itself


def test_an_error_that_is_no_number_is_infinite():
    one = torch.ones(3, dtype=torch.float64)
    assert relative_error(one, one) == 0
    assert relative_error(one * torch.nan, one) == relative_error(one, 0 * one) == float("inf")
    assert relative_error((one, 2 * one), (one, one)) == 1


def test_convolutions_that_a_gpu_has_issued_are_right():
    launch = next(f for f in FAMILIES if f.name == "launch")
    chains = [case for case in cases(launch, CUDA, "full") if case.direction == "convolutions"]
    assert [int(case.shape["modules"]) for case in chains] == [4, 8, 16, 12, 32]
    for case in chains[:2]:
        work = launch.prepare(case, CPU, seed=0)
        assert work.calls == case.shape["modules"] and work.error() < work.tolerance


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_smallest_cases_are_right_on_a_gpu(family):
    done = set()
    for case in sorted(cases(family, CUDA), key=lambda c: sum(c.shape.values())):
        if (case.direction, case.implementation) not in done:
            done.add((case.direction, case.implementation))
            work = family.prepare(case, CUDA, seed=0)
            assert len(work.inputs) >= SETS
            assert not work.error() > work.tolerance, case.id
