"""Recurrent layers against torch's, fused in C and interpreted Triton, in both layouts, hoisted or not."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.testing import assert_close

from calibration.layers import lstm
from calibration.layers.layouts import CHOICES, COLUMNS, ROWS, Choice
from calibration.taskmap.native import compiler
from sim.specs.fields import InputError

MADE = {"lstm": (lstm.LSTM, nn.LSTM), "gru": (lstm.GRU, nn.GRU)}
SHAPE = (5, 3, 7, 6)
"""Steps, batch, inputs, hidden."""
needs_c = pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
LANGUAGES = [pytest.param("c", marks=needs_c), pytest.param("triton", marks=needs_triton)]


def inputs(shape, layers=2, memory=True, dtype=torch.float32):
    """Return x and the first state of each layer, with gradients."""
    steps, batch, columns, hidden = shape
    draw = torch.Generator().manual_seed(1)
    sizes = [(steps, batch, columns), *[(layers, batch, hidden)] * (2 if memory else 1)]
    return [torch.randn(s, generator=draw, dtype=dtype).requires_grad_() for s in sizes]


def results(module, given):
    """Return outputs and last states, and the gradients of all of them with respect to inputs and parameters."""
    x, *held = given
    y, last = module(x, tuple(held) if len(held) == 2 else held[0] if held else None)
    out = [y, *(last if isinstance(last, tuple) else (last,))]
    draw = torch.Generator().manual_seed(2)
    factors = [torch.randn(each.shape, generator=draw).to(each.dtype) for each in out]
    loss = sum((each * factor).sum() for each, factor in zip(out, factors, strict=True))
    return out, torch.autograd.grad(loss, [*given, *module.parameters()])


def alike(found, wanted, tolerance=1e-5):
    for one, other in zip([*found[0], *found[1]], [*wanted[0], *wanted[1]], strict=True):
        assert_close(one, other, rtol=tolerance, atol=tolerance)


def pair(name, shape=SHAPE, **given):
    """Return our module and torch's with the same parameters."""
    ours, torchs = MADE[name]
    made = ours(*shape[2:], num_layers=2, **given)
    beside = {k: v for k, v in given.items() if k in ("bias", "batch_first")}
    same = torchs(*shape[2:], num_layers=2, **beside)
    same.load_state_dict(made.state_dict())
    return made, same


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.name)
@pytest.mark.parametrize("name", MADE)
def test_fused_equals_torch(name, choice, language):
    made, same = pair(name, choice=choice, language=language)
    given = inputs(SHAPE, memory=name == "lstm")
    alike(results(made, given), results(same, given))


@needs_c
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 1, 5, 9), (2, 33, 17, 65), (4, 130, 3, 127)], ids=str)
@pytest.mark.parametrize("choice", [Choice(ROWS), Choice(COLUMNS)], ids=lambda c: c.name)
@pytest.mark.parametrize("name", MADE)
def test_odd_sizes_and_several_threads(name, choice, shape):
    """The last one has enough numbers a step for threads to share it."""
    made, same = pair(name, shape, choice=choice)
    given = inputs(shape, memory=name == "lstm")
    wanted = results(same.double(), [each.detach().double().requires_grad_() for each in given])
    found = results(made, given)
    for one, other in zip([*found[0], *found[1]], [*wanted[0], *wanted[1]], strict=True):
        assert (one - other).norm() <= 1e-5 * max(1.0, other.norm())


@pytest.mark.parametrize("name", MADE)
def test_the_default_equals_torch(name):
    made, same = pair(name, implementation="default")
    given = inputs(SHAPE, memory=name == "lstm")
    alike(results(made, given), results(same, given))


@needs_c
@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.name)
@pytest.mark.parametrize("name", MADE)
def test_batch_first_without_biases_and_states(name, choice):
    made, same = pair(name, bias=False, batch_first=True, choice=choice)
    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    alike(results(made, [x]), results(same, [x]))


@needs_c
@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.name)
def test_gradients_of_peepholes(choice):
    """By differences in fp64, and against the operations apart with autograd."""
    made = lstm.PeepholeLSTM(3, 4, choice=choice, dtype=torch.float64)
    given = inputs((3, 2, 3, 4), layers=1, dtype=torch.float64)
    names = [name for name, _ in made.named_parameters()]
    assert "weight_peephole_l0" in names

    def function(x, state, cell, *parameters):
        y, last = torch.func.functional_call(made, dict(zip(names, parameters, strict=True)), (x, (state, cell)))
        return y, *last

    assert torch.autograd.gradcheck(function, (*given, *made.parameters()))
    apart = lstm.PeepholeLSTM(3, 4, implementation="default", dtype=torch.float64)
    apart.load_state_dict(made.state_dict())
    alike(results(made, given), results(apart, given), 1e-12)


@needs_triton
@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: c.name)
def test_peepholes_in_triton(choice):
    made, apart = (lstm.PeepholeLSTM(7, 6, 2, choice=choice, language="triton"), lstm.PeepholeLSTM(7, 6, 2))
    apart.implementation = "default"
    apart.load_state_dict(made.state_dict())
    given = inputs(SHAPE)
    alike(results(made, given), results(apart, given))


@needs_c
def test_backward_twice_gives_the_same():
    made = lstm.LSTM(3, 4)
    x = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))
    y = made(x)[0].sum()
    first, second = (torch.autograd.grad(y, list(made.parameters()), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_c
def test_gates_far_out_are_saturated():
    """The exponential of our own stays finite, and what it gives is that of torch's."""
    made, same = pair("lstm", (2, 2, 1, 2))
    x = torch.tensor([-1e4, 1e4, 300.0, -90.0]).view(2, 2, 1)
    assert_close(made(x)[0], same(x)[0], rtol=1e-5, atol=1e-5)


@needs_c
def test_peepholes_that_lie_otherwise():
    """A kernel reads them from an address on."""
    made = lstm.PeepholeLSTM(7, 6)
    made.weight_peephole_l0 = nn.Parameter(torch.randn(6, 3).mT)
    apart = lstm.PeepholeLSTM(7, 6, implementation="default")
    apart.load_state_dict(made.state_dict())
    given = inputs(SHAPE, 1)
    alike(results(made, given), results(apart, given))


@needs_c
@pytest.mark.parametrize("name", MADE)
def test_small_numbers_keep_their_digits(name):
    made, same = pair(name, bias=False)
    x = 1e-4 * torch.randn(SHAPE[:3])
    assert_close(made(x)[0], same(x)[0], rtol=1e-4, atol=1e-10)


@needs_c
@pytest.mark.parametrize("name", MADE)
def test_autocast_gives_what_the_layer_before_computed_in(name):
    made, same = pair(name)
    x = torch.randn(SHAPE[:3]).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = made(x)[0]
    assert y.dtype == torch.float32
    assert_close(y, same(x.float())[0], rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(y.sum(), x)[0].dtype == torch.bfloat16


@needs_c
@pytest.mark.parametrize("name", MADE)
def test_what_is_no_number_stays_none(name):
    made, same = pair(name)
    x = torch.randn(SHAPE[:3])
    x[2, 1, 0] = float("nan")
    found, wanted = made(x)[0].isnan(), same(x)[0].isnan()
    assert found.any() and torch.equal(found, wanted)


def test_a_chooser_is_asked_with_the_sizes_of_each_layer():
    asked = []

    def chooser(sizes):
        asked.append(sizes)
        return Choice()

    made = lstm.GRU(7, 6, num_layers=2, choice=chooser, language="triton" if compiler() is None else "c")
    made(torch.zeros(5, 3, 7))
    assert asked == [lstm.Sizes(5, 3, 7, 6, 3), lstm.Sizes(5, 3, 6, 6, 3)]


@pytest.mark.parametrize("name", MADE)
def test_what_is_called_as_torchs_works_as_torchs(name):
    """By keyword, without samples, and as a function whose gradients torch.func takes."""
    ours, torchs = pair(name)
    x = torch.randn(*SHAPE[:3])
    assert_close(ours(input=x, hx=None)[0], torchs(input=x, hx=None)[0], rtol=1e-5, atol=1e-5)
    assert ours(x[:, :0])[0].shape == torchs(x[:, :0])[0].shape
    results(ours, [x[:, :0].clone().requires_grad_()])
    held = {key: p.detach() for key, p in ours.named_parameters()}
    grads = [grad(lambda p, m=m: functional_call(m, p, (x,))[0].square().sum())(held) for m in (ours, torchs)]
    assert all(torch.allclose(grads[0][key], grads[1][key], rtol=1e-4, atol=1e-4) for key in held)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((torch.zeros(5, 7),), r"input: got \[5, 7\]; allowed: 3 axes, one step or more, the last axis of 7"),
        ((torch.zeros(0, 3, 7),), r"input: got \[0, 3, 7\]"),
        ((torch.zeros(5, 3, 8),), r"input: got \[5, 3, 8\]"),
        ((torch.zeros(5, 3, 7, dtype=torch.float64),), r"input: got torch.float64; allowed: torch.float32, as"),
        ((torch.zeros(5, 3, 7), torch.zeros(1, 2, 6)), r"state: got \[1, 2, 6\]; allowed: \(1, 3, 6\)"),
    ],
)
def test_wrong_shapes_are_refused(given, said):
    with pytest.raises(InputError, match=said):
        lstm.GRU(7, 6)(*given)


@pytest.mark.parametrize(
    ("sizes", "given", "said"),
    [
        ((3, 0), {}, "hidden_size: got 0; allowed: 1 or more"),
        ((3, 4, 0), {}, "num_layers: got 0; allowed: 1 or more"),
        ((3, 4), {"implementation": "defualt"}, "implementation: got 'defualt'; allowed: one of fused, default"),
        ((3, 4), {"language": "cuda"}, "language: got 'cuda'; allowed: one of c, triton, None"),
    ],
)
def test_settings_that_there_are_none_of_are_refused(sizes, given, said):
    with pytest.raises(InputError, match=said):
        lstm.LSTM(*sizes, **given)


@pytest.mark.parametrize(("language", "dtype"), [("c", torch.bfloat16), ("triton", torch.float64)])
def test_other_dtypes_are_refused(language, dtype):
    with pytest.raises(InputError, match=r"^dtype: got torch\."):
        lstm.LSTM(3, 4, language=language, dtype=dtype)(torch.zeros(2, 2, 3, dtype=dtype))
