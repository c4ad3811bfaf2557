"""The small GPT is the model that the simulator counts."""

from dataclasses import replace

import pytest
import torch

from calibration.kernels.gpt import SmallGpt
from calibration.kernels.whole import CPU_STEPS, model_of
from sim.specs.fields import InputError
from sim.specs.model import Model

MODEL = Model(name="small", layers=2, hidden=32, heads=4, vocab=96, seq=16)


@pytest.mark.parametrize(
    "change", [{}, {"tied_embeddings": False}, {"ffn": 80}, {"bias": False}, {"max_positions": 64}]
)
def test_parameters_are_exactly_those_of_the_simulator(change):
    model = Model(name="small", layers=2, hidden=32, heads=4, vocab=96, seq=16, **change)
    gpt = SmallGpt(model)
    assert sum(p.numel() for p in gpt.parameters()) == model.parameters
    block = next(iter(model.blocks))
    assert sum(p.numel() for p in gpt.blocks[0].parameters()) == block.parameters
    assert len([*gpt.blocks[0].parameters()]) == block.tensors
    assert len([*gpt.parameters()]) == model.layers * block.tensors + sum(model.end_tensors)


def test_attentions_agree_and_the_mask_hides_what_comes():
    tokens = torch.randint(96, (2, 16))
    logits = [SmallGpt(replace(MODEL, attention=a), seed=1).double()(tokens) for a in ("eager", "flash")]
    assert torch.allclose(*logits, atol=1e-12)
    later = tokens.clone()
    later[:, 9] = (later[:, 9] + 1) % 96
    changed = SmallGpt(replace(MODEL, attention="eager"), seed=1).double()(later)
    assert torch.equal(changed[:, :9], logits[0][:, :9])
    assert not torch.equal(changed[:, 9:], logits[0][:, 9:])


def test_seed_decides_the_weights():
    one, same, other = (SmallGpt(MODEL, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not torch.equal(one["tokens.weight"], other["tokens.weight"])


def test_untrained_loss_is_that_of_a_guess():
    tokens, targets = torch.randint(96, (2, 4, 16))
    assert SmallGpt(MODEL).loss(tokens, targets).item() == pytest.approx(torch.tensor(96.0).log().item(), rel=0.05)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("norm", {"norm": "rmsnorm"}),
        ("kv_heads", {"kv_heads": 2}),
        ("dropout", {"dropout": 0.1}),
        ("pattern", {"experts": 4}),
        ("gated_mlp", {"gated_mlp": True}),
    ],
)
def test_other_models_are_refused(field, change):
    with pytest.raises(InputError, match=field):
        SmallGpt(Model(name="other", layers=2, hidden=32, heads=4, vocab=96, seq=16, **change))


def test_shape_gives_the_model_back():
    size = CPU_STEPS[0]
    model = size.model("flash")
    names = ("layers", "hidden", "heads", "ffn", "vocab", "seq")
    assert model_of({name: getattr(model, name) for name in names}, "flash") == model
