"""Networks whose products and convolutions run on tuned kernels, with what follows these fused into them.

Any network of torch modules becomes one (`tuned`); two small ones are here to try it on: a convolutional network and a
transformer.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.parametrize import is_parametrized

from calibration.layers.hooks import hooked
from calibration.layers.transforms import transformed
from calibration.taskmap.contraction import DGRAD, FORWARD, GELU, RELU, WGRAD, Elementwise, convolution
from calibration.taskmap.library import Library
from sim.specs.fields import InputError

FUSED: dict[type[nn.Module], Elementwise] = {nn.GELU: GELU, nn.ReLU: RELU}
"""What a kernel before it in a sequence does as its epilogue."""


class _Product(torch.autograd.Function):
    """y = x w^T + bias by a tuned kernel, as are the gradients of x and of w."""

    @staticmethod
    def forward(ctx: Any, library: Library, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        """Return y [m, n] of x [m, k] and w [n, k]."""
        ctx.library, ctx.biased = library, bias is not None
        ctx.save_for_backward(x, w)
        return product(library, x, w, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad: Any) -> Any:
        """Return the gradients of x, w and bias."""
        (dy,), (x, w) = grad, ctx.saved_tensors
        (m, k), n = x.shape, len(w)
        dx = ctx.library(DGRAD, dy, w, {"m": m, "n": k, "k": n}, (m, k)) if ctx.needs_input_grad[1] else None
        dw = ctx.library(WGRAD, dy, x, {"m": n, "n": k, "k": m}, (n, k)) if ctx.needs_input_grad[2] else None
        return None, dx, dw, dy.sum(0) if ctx.biased else None


def product(
    library: Library, x: Tensor, w: Tensor, bias: Tensor | None = None, epilogue: tuple[Elementwise, ...] = ()
) -> Tensor:
    """Return x w^T [m, n] of x [m, k] and w [n, k], after bias and epilogue."""
    (m, k), n = x.shape, len(w)
    return library(FORWARD, x, w, {"m": m, "n": n, "k": k}, (m, n), epilogue, bias)


class TunedLinear(nn.Linear):
    """`nn.Linear` and what is fused after it; where gradients are wanted it comes after, not fused.

    Torch's own where `serves` says so.
    """

    def __init__(self, library: Library, of: nn.Linear, epilogue: nn.Module | None = None) -> None:
        _take_over(self, of)
        self.library, self.epilogue = library, epilogue

    def forward(self, input: Tensor) -> Tensor:
        """Return [..., outputs] of input [..., inputs].

        Raises:
            InputError: input has another last dimension.
        """
        outputs, inputs = self.weight.shape
        _check(input, input.ndim > 0 and input.shape[-1] == inputs, f"[..., {inputs}]")
        if not serves(input, self.weight, self.bias):
            return _after(super().forward(input), self.epilogue)
        rows = input.reshape(input.shape[:-1].numel(), inputs)
        if torch.is_grad_enabled():
            made: Tensor = _Product.apply(self.library, rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
            y = _after(made, self.epilogue)
        else:
            y = product(self.library, rows, self.weight, self.bias, _functions(self.epilogue))
        return y.view(*input.shape[:-1], outputs)


class TunedConv2d(nn.Conv2d):
    """`nn.Conv2d` (square kernels, zeros around, one group) and what is fused after it.

    Both are torch's where gradients are wanted, as no kernels are made for those, and where `serves` says so.
    """

    def __init__(self, library: Library, of: nn.Conv2d, epilogue: nn.Module | None = None) -> None:
        _take_over(self, of)
        self.library, self.epilogue = library, epilogue
        self.geometry = of.kernel_size[0], of.stride[0], int(of.padding[0])

    def forward(self, input: Tensor) -> Tensor:
        """Return [batch, filters, height, width] of input [batch, channels, height, width]; both without a batch, too.

        Raises:
            InputError: input has other dimensions.
        """
        channels = self.weight.shape[1]
        kernel, stride, padding = self.geometry
        least = max(1, kernel - 2 * padding)
        right = input.ndim in (3, 4) and input.shape[-3] == channels and min(input.shape[-2:]) >= least
        _check(input, right, f"[batch (or left out), {channels}, height, width], height and width from {least}")
        held = [t for t in (input, self.weight, self.bias) if t is not None]
        if not serves(*held) or (torch.is_grad_enabled() and any(t.requires_grad for t in held)):
            return _after(super().forward(input), self.epilogue)
        if input.ndim == 3:
            return self.forward(input[None])[0]
        contraction = convolution(kernel, stride, padding)
        sizes = dict(zip(contraction.sizes, (*input.shape, len(self.weight)), strict=True))
        high, wide = ((n + 2 * padding - kernel) // stride + 1 for n in input.shape[2:])
        shape = len(input), len(self.weight), high, wide
        return self.library(contraction, input, self.weight, sizes, shape, _functions(self.epilogue), self.bias)


def _take_over(made: nn.Module, of: nn.Module) -> None:
    """Give a layer all that another one has, as networks read it: sizes, parameters, mode, what users set on it."""
    nn.Module.__init__(made)
    copied = {name: copy.copy(held) for name, held in vars(of).items() if isinstance(held, dict | set)}
    vars(made).update(vars(of) | copied)


def _check(x: Tensor, right: bool, wanted: str) -> None:
    """Refuse a shape that a kernel, which is told no more than sizes, would read beyond."""
    if not right:
        raise InputError("input", tuple(x.shape), wanted)


def serves(*tensors: Tensor | None) -> bool:
    """Return whether kernels are made for what runs now: fp32 on the host, outside autocast and torch's transforms."""
    made_for = all(
        t is None or (type(t) in (Tensor, nn.Parameter) and t.dtype == torch.float32 and t.device.type == "cpu")
        for t in tensors
    )
    return made_for and not torch.is_autocast_enabled("cpu") and not transformed()


def _after(y: Tensor, epilogue: nn.Module | None) -> Tensor:
    made: Tensor = y if epilogue is None else epilogue(y)
    return made


def _functions(epilogue: nn.Module | None) -> tuple[Elementwise, ...]:
    return () if epilogue is None else (FUSED[type(epilogue)],)


def tuned(network: nn.Module, library: Library) -> nn.Module:
    """Return a copy of a network, sharing its parameters, whose linear layers and convolutions are tuned kernels.

    In a sequence, an activation of `FUSED` right after one is fused into it. What kernels are not made for stays
    torch's: convolutions of several groups or with other than square kernels, GELU by tanh, classes derived from these,
    layers with hooks.
    """
    if is_parametrized(network):
        return network  # it refuses to be copied
    if type(network) is nn.Linear and not hooked(network):
        return TunedLinear(library, network)
    if type(network) is nn.Conv2d and _plain(network) and not hooked(network):
        return TunedConv2d(library, network)
    made = copy.copy(network)
    made._modules = dict(network._modules)
    before: nn.Module | None = None
    for name, child in network._modules.items():
        if isinstance(network, nn.Sequential) and isinstance(before, TunedLinear | TunedConv2d) and _fusable(child):
            before.epilogue, before = child, nn.Identity()
        else:
            before = None if child is None else tuned(child, library)
        made._modules[name] = before
    return made


def with_tuned_linears(network: nn.Module, library: Library) -> None:
    """Put tuned kernels in the place of a network's linear layers, which keep their parameters and names."""
    for module in list(network.modules()):
        for name, child in module._modules.items():  # named_children() passes over a layer that is used twice
            if type(child) is nn.Linear and not hooked(child):
                setattr(module, name, TunedLinear(library, child))


def _fusable(module: nn.Module | None) -> bool:
    if module is None or type(module) not in FUSED or hooked(module):
        return False
    return getattr(module, "approximate", "none") == "none"


def _plain(conv: nn.Conv2d) -> bool:
    """Return whether a convolution is one of those that kernels are made for."""
    square = all(len(set(pair)) == 1 for pair in (conv.kernel_size, conv.stride, conv.padding))
    return square and conv.groups == 1 and set(conv.dilation) == {1} and conv.padding_mode == "zeros"


class Convolutional(nn.Sequential):
    """Three convolutions with ReLU, a mean over the image and a linear layer: [batch, 3, 32, 32] to 10 scores."""

    def __init__(self) -> None:
        first, second, third = nn.Conv2d(3, 32, 3, 1, 1), nn.Conv2d(32, 64, 3, 2, 1), nn.Conv2d(64, 64, 1)
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
        super().__init__(first, nn.ReLU(), second, nn.ReLU(), third, nn.ReLU(), *head)


class Block(nn.Module):
    """A layer of a transformer, before it is tuned; attention between queries, keys and values is torch's."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, seq, hidden] of x of the same shape."""
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        core = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(core.transpose(1, 2).reshape(batch, seq, hidden))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Transformer(nn.Sequential):
    """Two layers, 256 wide, 4 heads, and a projection to 512 words: hidden states [batch, seq, 256] to scores."""

    def __init__(self) -> None:
        super().__init__(*(Block(256, 4) for _ in range(2)), nn.LayerNorm(256), nn.Linear(256, 512))
