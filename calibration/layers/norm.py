"""LayerNorm whose backward pass reads its output instead of its input (Tempo, arXiv 2210.10246).

The normalised input is (y - beta) / gamma, and the gradient needs no more of the input than that:
dx = (g - mean(g) - n mean(g n)) rstd with g = dy gamma and n the normalised input. The output is the input of the
product after it, which saves it in any case; of the layer's own bytes only rstd, a number a row, remains.

Where a gamma is nearly zero, y says nothing of n. A call that finds one saves n instead of y, which is as exact as
`nn.LayerNorm` and as large as its input: nothing is gained. A GPU tells the smallest gamma some calls later: if
every call waited for it, the GPU would then wait for the host. It is asked when torch counts a change of gamma or an
optimizer has taken a step: a write to `gamma.data`, which torch does not count, is noticed only after the next step. A
host looks at every call.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.optim.optimizer import register_optimizer_step_post_hook

from calibration.layers.tempo_kernels import kernels
from calibration.layers.transforms import transformed
from sim.specs.fields import InputError

LEAST_GAMMA = 0.01
"""A gamma below it is too small: n is then wrong by up to 100 times the rounding of y."""


MARGIN = 2.0
"""Times the least gamma that is allowed: with a smaller one a call waits for what it is now. No step of an optimizer
changes a gamma by as much as that."""

ROUNDED = 1e-7
"""What a gamma in fp32 may be away from the number that it stands for, relatively."""


steps = [0]
"""Of all optimizers so far: fused ones change a parameter without raising its version."""


def _stepped(*_: Any) -> None:
    steps[0] += 1


register_optimizer_step_post_hook(_stepped)


@dataclass(frozen=True)
class Asked:
    """The smallest |gamma| on its way from a GPU, or there already; `value` waits."""

    ready: Callable[[], bool]
    value: Callable[[], float]

    @classmethod
    def of(cls, gamma: Tensor) -> "Asked":
        """Ask for it."""
        gamma = gamma.detach()
        if not gamma.is_cuda:  # looked up by every call: writes to `.data` raise no version
            return cls(lambda: True, lambda: gamma.abs().min().item())
        least = gamma.abs().min().float()
        there = torch.empty((), pin_memory=True).copy_(least, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()

        def value() -> float:
            event.synchronize()
            return there.item()

        return cls(event.query, value)


@dataclass
class Smallest:
    """The smallest |gamma| of a layer as it was lately; asked for anew when gamma has changed, or may have."""

    ask: Callable[[Tensor], Asked] = Asked.of
    known: float | None = None
    _of: tuple[int, int, int] | None = None
    _asked: Asked | None = field(default=None, repr=False)

    def at_least(self, gamma: Tensor, least: float) -> bool:
        """Return whether it is `least` or more; waits if it is not known, or near to that."""
        now = gamma.data_ptr(), gamma._version, steps[0]
        if self._asked is None or self._of != now:
            self._take(wait=False)  # what was asked for before
            self._of, self._asked = now, self.ask(gamma)
        self._take(wait=False)
        if self.known is None or self.known < MARGIN * least:
            self._take(wait=True)
        return self.known is not None and self.known >= least * (1 - ROUNDED)

    def _take(self, wait: bool) -> None:
        if self._asked is not None and (wait or self._asked.ready()):
            self.known = self._asked.value()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ask,)  # a copy has a gamma of its own


class _Norm(torch.autograd.Function):
    """y = n gamma + beta over the last dimension, which saves y (or n) and rstd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float, inverted: bool) -> Tensor:
        """Return y of the shape of x [..., columns]; inverted: whether backward makes n of it."""
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], gamma, beta, eps)
        ctx.inverted = inverted
        ctx.save_for_backward(y if inverted else ((x - mean) * rstd).to(x.dtype), rstd, gamma, beta)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        """Return the gradients of x, gamma and beta."""
        kept, rstd, gamma, beta = ctx.saved_tensors
        columns, kind = kept.shape[-1], torch.promote_types(kept.dtype, torch.float32)
        vectors = _vectors(gamma, beta, ctx.inverted, torch.ones(columns, dtype=kind, device=kept.device))
        rows = [t.reshape(-1, columns).contiguous() for t in (kept, dy)]
        dx, sums = kernels(kept).norm_backward(rows[0], rstd.reshape(-1), vectors, rows[1])
        made = [None if p is None else s.to(p.dtype) for p, s in zip((gamma, beta), sums, strict=True)]
        return dx.view(kept.shape), *made, None, None


def _vectors(gamma: Tensor | None, beta: Tensor | None, inverted: bool, one: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return gamma, and what to subtract from the saved rows and to multiply them by, for the normalised input.

    A gamma that has become 0 since the smallest was known has no gradient for that time.
    """
    scale = one if gamma is None else gamma.to(one.dtype)
    shift = beta.to(one.dtype) if inverted and beta is not None else torch.zeros_like(one)
    return scale, shift, (one / scale).nan_to_num(0.0, 0.0, 0.0) if inverted else one


class OutputLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` over the last dimension that saves its output instead of its input.

    least_gamma: a call with a smaller |gamma| saves the normalised input. As the output has been rounded, the gradient
    of gamma is less accurate in bf16: its relative error, 1.7e-3 from the input, is 2.5e-3 with gamma 1 and beta up to
    0.5, 8.9e-3 with gamma 0.1 and beta 0.5, 3.5e-2 with gamma 0.1 and beta 2. A larger `least_gamma` bounds it.

    Raises:
        InputError: a shape of several dimensions.
    """

    least_gamma = LEAST_GAMMA

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if len(self.normalized_shape) > 1:
            raise InputError("normalized_shape", self.normalized_shape, "one dimension, the last")
        self.smallest = Smallest()

    @classmethod
    def of(cls, norm: nn.LayerNorm, least_gamma: float = LEAST_GAMMA) -> Self:
        """Return a layer in the place of `norm`, with its own parameters."""
        made = cls(norm.normalized_shape, norm.eps, norm.elementwise_affine, device="meta")
        made.weight, made.bias, made.least_gamma = norm.weight, norm.bias, least_gamma
        return made.train(norm.training)

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input, of its shape."""
        if not torch.is_grad_enabled() or transformed() or input.is_meta:
            return super().forward(input)
        inverted = self.weight is None or self.smallest.at_least(self.weight, self.least_gamma)
        y: Tensor = _Norm.apply(input, self.weight, self.bias, self.eps, inverted)  # type: ignore[no-untyped-call]
        return y
