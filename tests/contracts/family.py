"""What every kernel family must satisfy. A newcomer is a line in the registry and passes these."""

from math import isfinite, isnan

import pytest
import torch
from torch.utils import _pytree

from calibration.kernels.family import Case, Family, Machine
from calibration.kernels.registry import FAMILIES
from calibration.kernels.work import SETS, Check, evaluate
from sim.costs.kernels import FORMS, KERNELS

CPU, CUDA = Machine("cpu", 8 * 2**30), Machine("cuda", 140 * 2**30)
LONGEST_FLOP, LARGEST_BYTES = 1.5e10, 2**29
"""A smoke case runs 25 times and more, and three sets of it are held."""


def cases(family: Family, machine: Machine, suite: str = "smoke") -> list[Case]:
    """Return the cases of a suite."""
    return list(family.cases(machine, suite))


def smallest(family: Family) -> list[Case]:
    """Return the smallest CPU case of each kernel and implementation."""
    first: dict[tuple[str, ...], Case] = {}
    for case in sorted(cases(family, CPU), key=lambda c: work_of(family, c)):
        first.setdefault((case.op, case.direction, case.implementation, case.layout), case)
    return list(first.values())


def work_of(family: Family, case: Case) -> float:
    """Return how large a case is: its FLOP, else its bytes, else what its shape counts."""
    return evaluate(family.flop, case.shape) or evaluate(family.bytes, case.shape) or sum(case.shape.values())


@pytest.fixture(params=FAMILIES, ids=lambda f: f.name.replace(" ", "-"))
def family(request):
    return request.param


@pytest.fixture(scope="class", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class FamilyContract:
    """Subclass it in a test module that imports the fixtures `family` and `one_thread`."""

    @pytest.mark.parametrize("machine", [CPU, CUDA], ids=["cpu", "cuda"])
    @pytest.mark.parametrize("suite", ["smoke", "full"])
    def test_cases_have_ids_of_their_own_and_a_fixed_order(self, family, machine, suite):
        ids = [case.id for case in cases(family, machine, suite)]
        assert ids
        assert len(set(ids)) == len(ids)
        assert ids == [case.id for case in cases(family, machine, suite)]

    @pytest.mark.parametrize("machine", [CPU, CUDA], ids=["cpu", "cuda"])
    def test_full_holds_what_smoke_fits(self, family, machine):
        fitted = {use: {c.id for c in cases(family, machine, use) if c.use in ("fit", "whole")} for use in SUITES}
        assert fitted["smoke"] <= fitted["full"]

    def test_smoke_is_small(self, family):
        for case in cases(family, CPU):
            assert evaluate(family.flop, case.shape) <= LONGEST_FLOP
            assert evaluate(family.bytes, case.shape) <= LARGEST_BYTES

    @pytest.mark.parametrize("machine", [CPU, CUDA], ids=["cpu", "cuda"])
    def test_shapes_hold_every_name_of_the_formulas_and_forms(self, family, machine):
        for case in cases(family, machine, "full"):
            assert all(isfinite(v) and v >= 0 for v in case.shape.values())
            for name in ("flop", "bytes"):
                value = evaluate(getattr(family, name), case.shape)  # raises where a name is missing
                assert case.shape.get(name, value) == pytest.approx(value, rel=1e-12)
            form = KERNELS.get((case.op, case.direction))
            assert form is None or set(FORMS[form].inputs) <= set(case.shape)

    @pytest.mark.parametrize("machine", [CPU, CUDA], ids=["cpu", "cuda"])
    @pytest.mark.parametrize("suite", ["smoke", "full"])
    def test_shapes_are_held_out_inside_and_beyond(self, family, machine, suite):
        kinds = {(c.op, c.direction, c.implementation): {} for c in cases(family, machine, suite)}
        for case in cases(family, machine, suite):
            size = work_of(family, case)
            kinds[case.op, case.direction, case.implementation].setdefault(case.use, []).append(size)
        for sizes in kinds.values():
            if "whole" in sizes:
                assert set(sizes) == {"whole"}
                continue
            assert {"fit", "random", "larger"} == set(sizes)
            assert min(sizes["fit"]) <= min(sizes["random"])
            assert max(sizes["random"]) <= max(sizes["fit"]) < max(sizes["larger"])

    def test_memory_is_honoured(self, family):
        for case in cases(family, Machine("cuda", 2**24), "full"):
            assert evaluate(family.bytes, case.shape) <= 2**24

    @pytest.mark.slow
    def test_the_kernel_is_right_and_a_wrong_one_is_caught(self, family):
        for case in smallest(family):
            work = family.prepare(case, CPU, seed=3)
            work.run(*work.inputs[-1])
            if not isinstance(work.error, Check):
                assert case.op == "allocate"
                assert isnan(work.error())
                continue
            out = work.error.once()
            assert work.error.of(out) <= work.tolerance, case.id
            for spoil in SPOILED if isinstance(out, torch.Tensor | tuple | list) else ():
                wrong = _pytree.tree_map_only(torch.Tensor, spoil, out)
                assert _same(out, wrong) or work.error.of(wrong) > work.tolerance, case.id

    def test_launches_rotate_over_sets_of_inputs(self, family):
        for case in smallest(family):
            assert len(family.prepare(case, CPU, seed=0).inputs) >= SETS

    def test_inputs_follow_the_seed(self, family):
        case = smallest(family)[0]
        tensors = [_tensors(family.prepare(case, CPU, seed).inputs) for seed in (1, 1, 2)]
        if case.op not in ("allocate", "launch", "adam"):
            assert all(torch.equal(a, b) for a, b in zip(tensors[0], tensors[1], strict=True))
            assert not all(torch.equal(a, b) for a, b in zip(tensors[0], tensors[2], strict=True))


SUITES = ("smoke", "full")
SPOILED = (lambda t: 1.25 * t.double(), torch.zeros_like, lambda t: t.double().flatten().roll(1).view_as(t))


def _tensors(tree):
    return [t.detach() for t in _pytree.tree_leaves(list(tree)) if isinstance(t, torch.Tensor)]


def _same(a, b):
    pairs = zip(_tensors([a]), _tensors([b]), strict=True)
    return all(torch.allclose(x.double(), y.double(), rtol=1e-3) for x, y in pairs)
