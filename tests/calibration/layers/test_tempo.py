"""Layers that keep fewer bytes: gradients, bytes to the byte, and what they are put into."""

import pickle
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import grad, jvp, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from calibration.layers.attention import AttentionCore, RecomputedCore
from calibration.layers.bert import HEADS, HIDDEN, SEQ, Layer, saved_bytes
from calibration.layers.gelu import OutputGelu
from calibration.layers.gelu_table import FLAT, table
from calibration.layers.norm import LEAST_GAMMA, Asked, OutputLayerNorm, Smallest
from calibration.layers.tempo import with_tempo
from sim.specs.fields import InputError

DOUBLE = torch.float64


def normal(*shape, dtype=DOUBLE, seed=0, scale=1.0):
    drawn = torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    return (scale * drawn).to(dtype).requires_grad_()


def norm(gamma=None, beta=None, dtype=DOUBLE, columns=64):
    """Return `nn.LayerNorm` with these weights, or random ones, and the layer in its place."""
    torch.manual_seed(3)
    made = nn.LayerNorm(columns, dtype=dtype)
    with torch.no_grad():
        made.weight.copy_(torch.rand(columns) + 0.5 if gamma is None else gamma)
        made.bias.copy_(torch.randn(columns) if beta is None else beta)
    other = deepcopy(made)
    return made, OutputLayerNorm.of(other)


def gradients(layer, x, dy):
    x = x.detach().requires_grad_()
    y = layer(x)
    return y, *torch.autograd.grad(y, [x, *layer.parameters()], dy)


def test_the_minimum_is_where_the_papers_are():
    assert table().at == pytest.approx(-0.75179, abs=5e-6)
    assert table().minimum == pytest.approx(-0.16997, abs=5e-6)


def test_gelu_has_the_gradient_of_gelu():
    """In double precision the error is that of the table's straight lines."""
    x = torch.cat([torch.linspace(-3.5, FLAT + 2, 401, dtype=DOUBLE), torch.tensor([table().at], dtype=DOUBLE)])
    assert torch.autograd.gradcheck(OutputGelu(), x.requires_grad_(), atol=5e-7, rtol=0)
    far = torch.linspace(-30, -3.5, 4001, dtype=DOUBLE)
    found, wanted = (gradients(f, far, torch.ones_like(far))[1] for f in (OutputGelu(), nn.GELU()))
    assert (found - wanted).abs().max() < 8e-6


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own forward mode compiles some
@pytest.mark.parametrize(
    "use",
    [
        lambda layer, x: layer(input=x),
        lambda layer, x: vmap(layer)(x),
        lambda layer, x: jvp(layer, (x,), (torch.ones_like(x),))[1],
        lambda layer, x: torch.export.export(layer, (x,)).module()(x),
        lambda layer, x: layer.to("meta")(x.to("meta")).new_zeros(x.shape, device="cpu"),
    ],
    ids=["keyword", "mapped", "forward mode", "exported", "meta"],
)
@pytest.mark.parametrize("kind", ["norm", "gelu"])
def test_what_torchs_layers_do_these_do(kind, use):
    wanted, found = norm() if kind == "norm" else (nn.GELU(), OutputGelu())
    x = normal(8, 64).detach()
    assert torch.allclose(use(found, x), use(wanted, x))


def test_a_norm_that_has_run_can_be_saved():
    _, layer = norm()
    x = normal(8, 64)
    y = layer(x)
    again = pickle.loads(pickle.dumps(layer))  # noqa: S301 - what was made here
    assert torch.equal(again(x), y)
    assert layer.smallest.known is not None and again.smallest.known == layer.smallest.known


def test_attention_is_a_function_to_torch_func():
    scores, values = normal(2, 4, 4), normal(2, 4, 3)
    made = RecomputedCore(0.5)
    found = grad(lambda s: made(s, values).sum())(scores)
    assert found.shape == scores.shape


@pytest.mark.parametrize(("dtype", "rms"), [(torch.float32, 1.2e-6), (torch.bfloat16, 3e-3), (torch.float16, 6e-4)])
def test_gelus_gradient_in_other_precisions(dtype, rms):
    x = normal(1 << 20, dtype=dtype)
    dy = torch.ones_like(x)
    found = gradients(OutputGelu(), x, dy)[1]
    wanted = gradients(nn.GELU(), x.double(), dy.double())[1]
    error = found.double() - wanted
    assert found.dtype == dtype
    assert error.square().mean().sqrt() < rms


def test_gelu_passes_on_what_is_no_number():
    x = torch.tensor([float("nan"), 1e30, 1.0], requires_grad=True)
    _, dx = gradients(OutputGelu(), x, torch.ones(3))
    assert dx[0].isnan()
    assert dx[1:].tolist() == pytest.approx([1.0, 1.0833154], abs=1e-6)


@pytest.mark.parametrize("layout", ["strided", "expanded", "empty"])
def test_gelu_of_any_layout(layout):
    x = normal(0, 3) if layout == "empty" else normal(70, 600).mT.clamp(min=-3)
    dy = torch.ones((), dtype=DOUBLE).expand(x.shape) if layout == "expanded" else torch.ones_like(x)
    found, wanted = (gradients(f, x, dy)[1] for f in (OutputGelu(), nn.GELU()))
    assert torch.allclose(found, wanted, atol=1e-6, rtol=0)


def test_norm_has_the_gradients_of_norm():
    _, layer = norm(columns=8)
    assert torch.autograd.gradcheck(layer, normal(3, 5, 8))
    plain = OutputLayerNorm.of(nn.LayerNorm(8, elementwise_affine=False, dtype=DOUBLE))
    assert torch.autograd.gradcheck(plain, normal(3, 8))
    usual, layer = norm(columns=600)
    x, dy = normal(7, 90, 600), normal(7, 90, 600, seed=1)
    for found, wanted in zip(gradients(layer, x, dy), gradients(usual, x, dy), strict=True):
        assert torch.allclose(found, wanted, atol=1e-10)


@pytest.mark.parametrize("smallest", [0.0, LEAST_GAMMA / 2, LEAST_GAMMA])
def test_norm_with_a_small_gamma_is_as_exact(smallest):
    """Below the least it saves the normalised input, which no gamma spoils."""
    gamma = torch.ones(64)
    gamma[5] = -smallest
    usual, layer = norm(gamma, dtype=torch.float32)
    x, dy = normal(32, 64, dtype=torch.float32), normal(32, 64, dtype=torch.float32, seed=1)
    guarded = smallest < LEAST_GAMMA
    kept = layer(x).grad_fn.saved_tensors[0] if hasattr(layer(x).grad_fn, "saved_tensors") else None
    assert kept is not None
    assert torch.allclose(kept, functional.layer_norm(x, (64,)), atol=1e-6) == guarded
    for found, wanted in zip(gradients(layer, x, dy), gradients(usual, x, dy), strict=True):
        assert torch.allclose(found, wanted, atol=2e-5 if guarded else 1e-3)


class Late:
    """A device that tells the smallest gamma when it is asked to wait, or when `told` is set."""

    def __init__(self):
        self.told, self.waited, self.asked = False, 0, 0

    def __call__(self, gamma):
        least = float(gamma.detach().abs().min())
        self.asked += 1

        def value():
            self.waited += not self.told
            return least

        return Asked(lambda: self.told, value)


def test_only_a_first_call_and_a_close_one_wait_for_the_smallest_gamma():
    late, gamma = Late(), torch.ones(8)
    found = Smallest(late)
    assert found.at_least(gamma, 0.01) and (late.asked, late.waited) == (1, 1)
    assert found.at_least(gamma, 0.01) and (late.asked, late.waited) == (1, 1)
    gamma *= 0.015  # as no optimizer's step does
    assert found.at_least(gamma, 0.01) and (late.asked, late.waited) == (2, 1)
    assert found.known == 1.0
    late.told = True
    assert found.at_least(gamma, 0.01) and found.known == pytest.approx(0.015)
    late.told = False
    gamma *= 0.5  # near to the least: what it is now is waited for
    assert not found.at_least(gamma, 0.01) and (late.asked, late.waited) == (3, 2)
    assert deepcopy(found).known is None


def test_a_gamma_that_became_zero_unseen_spoils_nothing_else():
    _, layer = norm(torch.full((64,), 2.0))
    late = layer.smallest = Smallest(Late())
    x = torch.randn(4, 64, dtype=DOUBLE)
    layer(x)
    with torch.no_grad():
        layer.weight[3] = 0.0
    layer(x).sum().backward()
    assert late.known == 2.0
    assert layer.weight.grad.isfinite().all() and layer.weight.grad[3] == 0


def test_a_gamma_whose_data_were_made_small_is_seen():
    """Writes to `.data` do not raise the version of what they write."""
    usual, layer = norm(torch.ones(64), torch.full((64,), 2.0), torch.float32)
    x, dy = normal(32, 64, dtype=torch.float32), normal(32, 64, dtype=torch.float32, seed=1)
    gradients(layer, x, dy)
    layer.weight.data[3] = 0.0
    usual.load_state_dict(layer.state_dict())
    for found, wanted in zip(gradients(layer, x, dy), gradients(usual, x, dy), strict=True):
        assert (found - wanted).norm() < 1e-5 * wanted.norm()


def test_a_gamma_that_a_fused_optimizer_made_small_is_seen():
    """Fused optimizers do not raise the version of what they write."""
    usual, layer = norm(torch.ones(64), torch.full((64,), 2.0), torch.float32)
    late = Late()
    late.told, layer.smallest = True, Smallest(late)  # on a host every call looks
    x, dy = normal(32, 64, dtype=torch.float32), normal(32, 64, dtype=torch.float32, seed=1)
    gradients(layer, x, dy)
    layer.weight.grad = torch.full((64,), 0.99999)
    torch.optim.SGD([layer.weight], lr=1.0, fused=True).step()
    usual.load_state_dict(layer.state_dict())
    for found, wanted in zip(gradients(layer, x, dy), gradients(usual, x, dy), strict=True):
        assert (found - wanted).norm() < 1e-5 * wanted.norm()


def gamma_errors(size, shift):
    """Return relative RMS errors of gamma's gradient in bf16, from the output and from the input with fp32 sums."""
    x, dy = (normal(4096, 256, dtype=torch.bfloat16, seed=seed) for seed in (0, 1))
    usual, layer = norm(torch.full((256,), size), torch.full((256,), shift), torch.bfloat16, 256)
    exact = gradients(deepcopy(usual).double(), x.double(), dy.double())[2]
    found = gradients(layer, x, dy)[2], gradients(deepcopy(usual).float(), x.float(), dy.float())[2].bfloat16()
    return [float((each.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()) for each in found]


def test_weight_gradients_in_bf16_are_less_exact():
    """As the docstring says: half as exact again at usual weights, a multiple where beta is far larger than gamma."""
    errors = {pair: gamma_errors(*pair) for pair in ((1.0, 0.0), (1.0, 2.0), (0.1, 2.0))}
    worse = [output / given for output, given in errors.values()]
    assert all(1.2e-3 < given < 2e-3 for _, given in errors.values())
    assert 1.2 < worse[0] < 2 < worse[1] < 5 < worse[2] < 40


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_attention_is_the_usual_one_with_the_same_masks(p):
    scores, values, dy = normal(2, 3, 5, 7), normal(2, 3, 7, 4, seed=1), normal(2, 3, 5, 4, seed=2)
    found = []
    for layer in (AttentionCore(p), RecomputedCore(p)):
        torch.manual_seed(7)
        y = layer(scores, values)
        found.append([y, *torch.autograd.grad(y, [scores, values], dy)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-14)
    evaluated = RecomputedCore(p).eval()
    assert torch.equal(evaluated(scores, values), torch.softmax(scores, -1) @ values)


@pytest.mark.parametrize("kinds", [(torch.float32, torch.float32), (torch.float32, torch.bfloat16)])
def test_attention_under_autocast_is_the_usual_one(kinds):
    """Softmax stays in fp32, products are in bf16."""
    scores, values = normal(2, 3, 5, 7, dtype=kinds[0]), normal(2, 3, 7, 4, dtype=kinds[1], seed=1)
    found = []
    for layer in (AttentionCore(0.3), RecomputedCore(0.3)):
        torch.manual_seed(7)
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(scores, values)
        found.append([y, *torch.autograd.grad(y.float().square().sum(), [scores, values])])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        assert torch.allclose(one, other, atol=1e-6, rtol=1e-2)


def test_gradcheck_of_the_attention_core():
    def core(scores, values):
        torch.manual_seed(7)
        return RecomputedCore(0.3)(scores, values)

    assert torch.autograd.gradcheck(core, (normal(2, 5, 7), normal(2, 7, 4, seed=1)))


@pytest.mark.parametrize("leading", [(3, 2), (2, 1), (6,)])
def test_scores_and_values_of_other_leading_dimensions_are_refused(leading):
    with pytest.raises(InputError, match=r"values: got .*leading dimensions \(2, 3\)"):
        RecomputedCore(0.1)(torch.randn(2, 3, 5, 7, requires_grad=True), torch.randn(*leading, 7, 4))


@pytest.mark.parametrize(("dtype", "e"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_saved_less_are_those_of_the_paper(dtype, e):
    """Of a layer among others; a norm's mean, a number a row, is not kept either (in bf16 on the CPU 2 bytes)."""
    b, s, h, a = 3, SEQ, HIDDEN, HEADS
    x = normal(b, s, h, dtype=dtype)

    def layers(n, tempo):
        network = nn.Sequential(*(Layer() for _ in range(n))).to(dtype)
        assert not tempo or with_tempo(network) == 4 * n
        return saved_bytes(network, x)

    usual, tempo = (layers(3, kind) - layers(2, kind) for kind in (False, True))
    assert usual - tempo == 4 * s * b * h * (e - 1) + 2 * s * b * h * e + a * s * s * b * e + 2 * s * b * e


def test_what_is_replaced():
    network = nn.Sequential(
        nn.GELU(), nn.GELU(approximate="tanh"), nn.LayerNorm(4), nn.LayerNorm([2, 4]), Layer()
    ).eval()
    names = [name for name, _ in network.named_parameters()]
    held = list(network.parameters())
    assert with_tempo(network) == 2 + 4
    assert with_tempo(network) == 0
    assert [name for name, _ in network.named_parameters()] == names
    assert all(a is b for a, b in zip(network.parameters(), held, strict=True))
    assert not any(each.training for each in network.modules())


def test_a_layer_that_is_used_twice_is_replaced_twice():
    gelu = nn.GELU()
    network = nn.Sequential(nn.Linear(4, 4), gelu, nn.Linear(4, 4), gelu)
    assert with_tempo(network) == 2
    assert [type(each) for each in network[1::2]] == [OutputGelu, OutputGelu]


def test_a_layer_with_hooks_stays():
    network, seen = nn.Sequential(nn.GELU(), nn.LayerNorm(4)), []
    network[0].register_forward_hook(lambda *_: seen.append("after"))
    network[1].register_full_backward_pre_hook(lambda *_: seen.append("backward"))
    assert with_tempo(network) == 0
    network(torch.randn(2, 4, requires_grad=True)).sum().backward()
    assert seen == ["after", "backward"]


def test_a_norm_over_several_dimensions_is_refused():
    with pytest.raises(InputError, match=r"normalized_shape: got .4, 16.; allowed: one dimension"):
        OutputLayerNorm((4, 16))


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_checkpoint_and_where_the_input_is_used_again(reentrant):
    torch.manual_seed(0)
    usual = Layer().double()
    tempo = deepcopy(usual)
    with_tempo(tempo)
    x = normal(2, SEQ, HIDDEN)
    found = []
    for layer in (usual, tempo):
        for again in (False, True):
            torch.manual_seed(5)
            y = checkpoint(layer, x, use_reentrant=reentrant) if again else layer(x)
            out = (y * x).sum() + functional.gelu(x).sum()
            layer.zero_grad()
            x.grad = None
            out.backward()
            found.append([x.grad, *(p.grad.clone() for p in layer.parameters())])
    for one in found[1:]:
        for a, b in zip(one, found[0], strict=True):
            assert torch.allclose(a, b, atol=1e-5)


def test_an_input_that_is_changed_afterwards_spoils_nothing():
    """Only outputs are saved: what becomes of the input is nobody's concern."""
    x = normal(4, 8)
    found = []
    for spoil in (False, True):
        held = x.detach().clone().requires_grad_()
        inner = held * 1
        y = OutputGelu()(inner)
        if spoil:
            inner.detach().zero_()
        y.sum().backward()
        found.append(held.grad)
    assert torch.equal(*found)
