"""What a reader is told of executed plans: kinds, errors of peaks and times, where and when they ran."""

import pytest

from sim.specs import InputError
from sim.validation.executed import by_kind, read_evidence, spread_words
from tests.oracle import ROOT


@pytest.fixture(scope="module")
def held():
    return read_evidence(ROOT / "notebooks/data/hardware.json")


def test_every_plan_is_of_one_kind(held):
    kinds = by_kind(held.plans)
    assert list(kinds) == ["one process", "data parallel", "sharded", "tensor parallel", "pipeline"]
    assert sum(map(len, kinds.values())) == len(held.plans)
    assert {one.processes for one in kinds["one process"]} == {1}
    assert held.named("tp 2 x pp 2") in kinds["pipeline"]
    assert all(one.plan["zero"] >= 2 for one in kinds["sharded"])


def test_errors_of_peaks_and_words(held):
    one = held.named("gpipe")
    told, seen = one.predicted.peak_memory_bytes, one.measured.peak_memory_bytes
    assert one.memory_errors == [abs(a / b - 1) for a, b in zip(told, seen, strict=True)]
    inside = "1 inside" if one.inside else "0 inside"
    assert spread_words([one]).startswith("1 plan: ") and inside in spread_words([one])
    assert ("too slow" if one.error > 0 else "too fast") in spread_words([one])
    assert spread_words([one], "memory").startswith("2 processes: ")


def test_weights_that_are_old_have_no_gradient_to_compare(held):
    assert held.named("2bw").gradient_error is None
    assert held.named("zb-h1").gradient_error == held.named("zb-h1").max_gradient_error


def test_where_and_when(held):
    first, second, third = held.lines()
    assert f"{len(held.plans)} plans on 1 (6)" in first and held.machine in first
    assert held.plans[0].date in second and held.command in third
    with pytest.raises(InputError, match="gpipe"):
        held.named("nothing")
