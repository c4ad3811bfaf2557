"""Plans whose products are task-mapped kernels: they train as torch's do, and what such kernels cannot is refused."""

import pytest
import torch
from torch import nn

from calibration.execute import trainer as executed
from calibration.execute.limits import executable
from calibration.execute.trainer import Trainer
from calibration.taskmap import library as kernels
from calibration.taskmap import tune
from calibration.taskmap.cost import START, Costs
from calibration.taskmap.library import Library
from calibration.taskmap.native import compiler
from calibration.taskmap.networks import TunedLinear
from sim.costs.profile import load_profile
from sim.specs import Cluster
from sim.specs.fields import InputError
from tests.calibration.execute.test_trainer import CPU, SMALL, plan
from tests.costs.test_products import MAPPED, with_mapped


@pytest.fixture(scope="module")
def library():
    """Whose costs nobody learned: what is chosen is not at stake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "learned", lambda contraction, machine, threads: Costs(contraction, machine, START))
        patch.setattr(tune, "LEAST_S", 0.0)
        yield Library(top=1)


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_step_has_torchs_gradients(library, monkeypatch, recompute):
    monkeypatch.setattr(executed, "library", lambda threads: library)
    trainer = Trainer(SMALL, plan(product_kernel=MAPPED, recompute=recompute), 0, 1, CPU, seed=1)
    assert not any(type(each) is nn.Linear for each in trainer.module.modules())
    assert sum(type(each) is TunedLinear for each in trainer.module.modules()) == 4 * SMALL.layers + 1
    assert trainer.gradient_error() < 1e-5
    torchs = Trainer(SMALL, plan(recompute=recompute), 0, 1, CPU, seed=1)
    assert [p.shape for p in trainer.parts.parameters()] == [p.shape for p in torchs.parts.parameters()]
    assert trainer.step() == pytest.approx(torchs.step(), rel=1e-5)
    assert torch.allclose(trainer.weights, torchs.weights, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tp": 2}, "plan.tp: got 2; allowed: 1 with product_kernel task-mapped"),
        ({"pp": 2}, "plan.pp: got 2; allowed: 1 with product_kernel"),
        ({"zero": 3, "dp": 2}, "plan.zero: got 3; allowed: 0 or 1 with product_kernel"),
        ({"recompute": "selective"}, "plan.recompute: got 'selective'; allowed: none or full with product_kernel"),
        ({}, ""),
    ],
)
def test_what_such_kernels_cannot_is_refused(tmp_path, change, said):
    given = plan(product_kernel=MAPPED, **change)
    devices = given.tp * given.pp * (given.dp or 1)
    profile = with_mapped(load_profile("cpu"), tmp_path)
    held = Cluster.of("cpu", nodes=1, gpus_per_node=devices, domain_gpus=devices, profile=profile)
    if not said:
        assert executable(SMALL, held, given, "cpu").plan.product_kernel == MAPPED
        return
    with pytest.raises(InputError) as told:
        executable(SMALL, held, given, "cpu")
    assert said in str(told.value)
