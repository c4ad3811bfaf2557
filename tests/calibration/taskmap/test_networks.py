"""Libraries of tuned kernels, and networks that run on them."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.parametrizations import weight_norm

from calibration.taskmap import library as kernels
from calibration.taskmap import tune
from calibration.taskmap.contraction import FORWARD, RELU
from calibration.taskmap.cost import START, Costs
from calibration.taskmap.library import Library
from calibration.taskmap.native import compiler
from calibration.taskmap.networks import Convolutional, Transformer, TunedConv2d, TunedLinear, tuned, with_tuned_linears
from sim.specs.fields import InputError

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")


@pytest.fixture(scope="module")
def library():
    """Whose costs nobody learned: what is chosen is not at stake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "learned", lambda contraction, machine, threads: Costs(contraction, machine, START))
        patch.setattr(tune, "LEAST_S", 0.0)
        yield Library(top=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "x"),
    [(Convolutional(), torch.randn(2, 3, 17, 17)), (Transformer(), torch.randn(2, 9, 256))],
    ids=["convolutional", "transformer"],
)
def test_networks_of_tuned_kernels_are_torchs(library, network, x):
    with torch.no_grad():
        assert torch.allclose(tuned(network, library)(x), network(x), rtol=1e-4, atol=1e-4)


def test_gradients_are_torchs(library):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(19, 33), nn.GELU(), nn.Linear(33, 5, bias=False))
    x = torch.randn(7, 19, requires_grad=True)
    wanted = torch.autograd.grad(network(x).square().sum(), [x, *network.parameters()])
    found = torch.autograd.grad(tuned(network, library)(x).square().sum(), [x, *network.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(found, wanted, strict=True))


def test_convolutions_have_gradients_too(library):
    network = nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), nn.ReLU())
    x = torch.randn(1, 2, 5, 7)
    wanted = torch.autograd.grad(network(x).square().sum(), list(network.parameters()))
    found = torch.autograd.grad(tuned(network, library)(x).square().sum(), list(network.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_gradients_of_gradients_are_refused(library):
    """They would be zero."""
    x = torch.ones(2, 4, requires_grad=True)
    (found,) = torch.autograd.grad(tuned(nn.Sequential(nn.Linear(4, 3)), library)(x).exp().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        found.sum().backward()


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Linear(4, 3), torch.ones(2, 5)),
        (nn.Conv2d(2, 2, 3), torch.ones(1, 3, 5, 5)),
        (nn.Conv2d(2, 2, 3), torch.ones(3, 5, 5)),
        (nn.Conv2d(2, 2, 3), torch.ones(5, 5)),
        (nn.Conv2d(2, 2, 3), torch.ones(1, 2, 2, 5)),
    ],
    ids=["linear", "channels", "channels of one", "axes", "image"],
)
def test_shapes_of_other_layers_are_refused(library, layer, x):
    """A kernel would read beyond the weights."""
    with pytest.raises(InputError, match=r"input: got .* allowed: \["):
        tuned(nn.Sequential(layer), library)(x)


def half_as_large(layer, x):
    return copy.deepcopy(layer).to(torch.bfloat16)(x.bfloat16())


def in_autocast(layer, x):
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x)


def replicated(layer, x):
    """As nn.DataParallel does: its parameters are no parameters of the replica."""
    layer = layer[0] if isinstance(layer, nn.Sequential) else layer
    replica = layer._replicate_for_data_parallel()
    for name, p in layer.named_parameters():
        setattr(replica, name, p.view_as(p))
    return torch.autograd.grad(replica(x).square().sum(), list(layer.parameters()))[0]


def by_functions(layer, x):
    held = {name: p.detach() for name, p in layer.named_parameters()}
    return grad(lambda p: functional_call(layer, p, (x,)).square().sum())(held)["0.weight"]


def traced(layer, x):
    with torch.no_grad():
        return torch.jit.trace(layer, (x,))(x)


def normalised(layer, x):
    made = copy.deepcopy(layer)
    weight_norm(made[0])
    return made(x)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "use",
    [
        lambda layer, x: layer[0](input=x),
        lambda layer, x: copy.deepcopy(layer)(x),
        lambda layer, x: pickle.loads(pickle.dumps(layer))(x),  # noqa: S301 - what was made here
        lambda layer, x: vmap(layer)(torch.stack([x, -x])),
        lambda layer, x: torch.export.export(layer, (x,)).module()(x),
        half_as_large, in_autocast, replicated, by_functions, traced, normalised,
    ],
    ids=["keyword", "copied", "saved", "mapped", "exported", "16 bit", "autocast", "replicated", "functional", "traced",
         "weight norm"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("layer", "x"), [(nn.Linear(4, 3), torch.randn(2, 4)), (nn.Conv2d(2, 3, 3), torch.randn(2, 2, 5, 5))],
    ids=["linear", "conv"],
)  # fmt: skip
def test_what_torchs_layers_do_tuned_ones_do(library, layer, x, use):
    network = nn.Sequential(layer)
    found, wanted = use(tuned(network, library), x), use(network, x)
    assert found.dtype == wanted.dtype
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_one_image_without_a_batch(library):
    network, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()), torch.randn(2, 5, 5)
    with torch.no_grad():
        assert torch.allclose(tuned(network, library)(x), network(x), rtol=1e-4, atol=1e-4)


def test_a_copied_library_is_the_same_and_a_saved_one_learns_anew(library):
    library.choice(FORWARD, {"m": 5, "n": 6, "k": 7})
    assert copy.deepcopy(library) is library
    saved = pickle.loads(pickle.dumps(library))  # noqa: S301 - what was made here
    assert (saved.threads, saved.top, saved.chosen) == (library.threads, library.top, {})


def test_an_empty_batch_stays_empty(library):
    assert tuned(nn.Sequential(nn.Linear(4, 3)), library)(torch.ones(0, 4)).shape == (0, 3)


def test_activations_are_fused_and_parameters_shared(library):
    network = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Tanh())
    made = tuned(network, library)
    assert [type(m) for m in made] == [TunedLinear, nn.Identity, TunedConv2d, nn.Identity, nn.Tanh]
    assert made[0].weight is network[0].weight
    assert type(made[0].epilogue) is nn.GELU
    assert isinstance(network[0], nn.Linear)  # what it is made of stays as it was


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, (3, 1)), nn.Conv2d(4, 4, 3, dilation=2), nn.GELU("tanh")],
    ids=["groups", "oblong", "dilated", "tanh"],
)
def test_what_kernels_are_not_made_for_stays(library, layer):
    made = tuned(nn.Sequential(nn.Linear(4, 4), layer), library)
    assert type(made[1]) is type(layer)
    assert made[0].epilogue is None


@pytest.mark.parametrize("layer", [nn.Linear(4, 3, bias=False), nn.Conv2d(2, 3, 3, 2, 1)], ids=["linear", "conv"])
def test_what_networks_read_of_a_layer_is_there(library, layer):
    layer.eval().scale = 0.5
    made = tuned(nn.Sequential(layer), library)[0]
    own = {name: held for name, held in vars(layer).items() if not name.startswith("_")}
    assert {"training", "scale"} < own.keys()
    assert own.items() <= vars(made).items()
    assert isinstance(made, type(layer))
    assert repr(made) == f"Tuned{layer!r}"
    assert made.weight is layer.weight
    assert made.bias is layer.bias
    before = layer.weight
    made.weight = nn.Parameter(torch.zeros_like(before))  # in its own place only
    assert layer.weight is before


class Twice(nn.Linear):
    """Does something else than the layer that it is derived from."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("layer", [Twice(4, 3), weight_norm(nn.Linear(4, 3)), weight_norm(nn.Conv2d(4, 3, 1))])
def test_layers_derived_from_others_stay(library, layer):
    network = nn.Sequential(layer)
    assert type(tuned(network, library)[0]) is type(layer)
    with_tuned_linears(network, library)
    assert network[0] is layer


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.Conv2d(4, 4, 1), nn.ReLU()])
def test_layers_with_hooks_stay(library, layer):
    layer.register_forward_hook(lambda *_: None)
    network = nn.Sequential(nn.Linear(4, 4), layer)
    assert type(tuned(network, library)[1]) is type(layer)
    with_tuned_linears(network, library)
    assert network[1] is layer


def test_a_layer_by_itself_is_replaced(library):
    assert isinstance(tuned(nn.Linear(4, 3), library), TunedLinear)


def test_a_linear_layer_that_is_used_twice_is_replaced_twice(library):
    layer = nn.Linear(4, 4)
    network = nn.Sequential(layer, nn.ReLU(), layer)
    with_tuned_linears(network, library)
    assert [type(each) for each in network] == [TunedLinear, nn.ReLU, TunedLinear]


def test_a_size_is_tuned_once(library):
    sizes = {"m": 5, "n": 6, "k": 7}
    first = library.choice(FORWARD, sizes)
    assert library.choice(FORWARD, dict(sizes)) is first
    assert first.measured == 1


@pytest.mark.parametrize("x", [torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, device="meta")])
def test_tensors_of_others_are_refused(library, x):
    with pytest.raises(InputError, match=r"a: got .* allowed: torch\.float32 on cpu"):
        library(FORWARD, x, torch.ones(4, 3), {"m": 2, "n": 4, "k": 3}, (2, 4), (RELU,))


def test_libraries_of_processors_do_not_mix(library):
    other = Library(replace(library.machine, cores=99))
    assert other.chosen == {}
