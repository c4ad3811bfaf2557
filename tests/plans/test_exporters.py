"""The exporters of plans pass their contract."""

from typing import ClassVar

from sim.plans import EXPORTERS
from tests.contracts.exporter import ExporterContract


class TestTorchCsv(ExporterContract):
    name = "torch-csv"
    takes: ClassVar = {"tp": 2, "pp": 4}
    changed: ClassVar = {"schedule": "gpipe", "pp": 2}
    cannot = (({"schedule": "chimera"}, "plan.schedule"), ({"schedule": "dualpipe"}, "plan.schedule"))


class TestTorchtitan(ExporterContract):
    name = "torchtitan"
    takes: ClassVar = {"tp": 2, "pp": 2, "zero": 3, "schedule": "1f1b"}
    changed: ClassVar = {"tp": 4, "recompute": "full", "micro_batch": 2}
    cannot = (({"zero": 1}, "plan.zero"), ({"schedule": "2bw"}, "plan.schedule"))
    lacks = ("lstm-lm", "nemotron-h-8b")


class TestTorchtitanRelease(TestTorchtitan):
    name = "torchtitan-0.3"


class TestMegatron(ExporterContract):
    name = "megatron"
    takes: ClassVar = {"tp": 4, "pp": 2, "zero": 1}
    changed: ClassVar = {"tp": 8, "recompute": "full", "micro_batch": 2, "sequence_parallel": False}
    cannot = (({"schedule": "zb-h1"}, "plan.schedule"), ({"zero": 3}, "plan.zero"))
    lacks = ("lstm-lm",)


class TestDeepSpeed(ExporterContract):
    name = "deepspeed"
    takes: ClassVar = {"pp": 4, "zero": 1}
    changed: ClassVar = {"micro_batch": 2, "recompute": "full"}
    cannot = (({"tp": 2}, "plan.sequence_parallel"), ({"schedule": "gpipe"}, "plan.schedule"))


def test_every_exporter_passes():
    contracts = (*ExporterContract.__subclasses__(), TestTorchtitanRelease)
    assert {contract.name for contract in contracts} == set(EXPORTERS)
