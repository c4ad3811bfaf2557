"""The forms of kernel times pass their contract."""

from typing import ClassVar

from sim.costs.kernels import FORMS, KERNELS
from tests.contracts.cost_model import CostModelContract


class TestGemm(CostModelContract):
    form = "gemm-pnorm"
    parameters: ClassVar = {
        "rate": 2.5e14,
        "bandwidth": 1.6e12,
        "t0": 3e-6,
        "p": 3.0,
        "m0": 40.0,
        "n0": 60.0,
        "k0": 90.0,
    }
    sizes: ClassVar = {
        "m": [1, 127, 4096, 8192],
        "n": [1, 333, 4096, 12288],
        "k": [1, 64, 1024, 49152],
        "batch": [1, 3, 96, 1],
    }
    rates = ("rate", "bandwidth")
    growing = ("m", "n", "k", "batch")


class TestAttention(CostModelContract):
    form = "attention-saturating"
    parameters: ClassVar = {"rate": 2e14, "t0": 5e-6, "s0": 300.0, "r0": 4000.0}
    sizes: ClassVar = {"flop": [1e6, 1e9, 1e13], "seq": [16, 2048, 131072], "rows": [64, 65536, 1e6]}
    rates = ("rate",)
    growing = ("flop",)  # a longer sequence of as much work is faster: it saturates the device


class TestMemoryBound(CostModelContract):
    form = "memory-bound"
    parameters: ClassVar = {"bandwidth": 1.6e12, "t0": 2e-6}
    sizes: ClassVar = {"bytes": [4, 1e6, 1e11]}
    rates = ("bandwidth",)
    growing = ("bytes",)


class TestRowWise(CostModelContract):
    form = "row-wise"
    parameters: ClassVar = {"bandwidth": 1.6e12, "t0": 2e-6, "c0": 200.0}
    sizes: ClassVar = {"bytes": [4, 1e6, 1e11], "columns": [1, 1024, 65536]}
    rates = ("bandwidth",)
    growing = ("bytes",)


def test_every_form_passes_and_every_kernel_has_one():
    assert {contract.form for contract in CostModelContract.__subclasses__()} == set(FORMS) == set(KERNELS.values())
