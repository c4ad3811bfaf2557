"""Measures Tempo's layers beside the usual ones: bytes, errors of gradients, the guard on gamma, losses and times."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from calibration.instruments import Stopwatch
from calibration.kernels.work import relative_error
from calibration.layers.attention import AttentionCore
from calibration.layers.bert import Bert, Layer, losses, saved_bytes
from calibration.layers.norm import LEAST_GAMMA, OutputLayerNorm
from calibration.layers.pieces import TorchKernels
from calibration.layers.tempo import KINDS, with_tempo
from calibration.layers.tempo_kernels import Kernels
from calibration.layers.tempo_results import Curve, GradientError, Guard, LayerSizes, Saved, StepTime

DROPOUT = 0.1
ROUNDS = 12
"""Times that either kind of layer is timed, in turn."""
Step = Callable[[], tuple[Tensor, ...]]


def saved(sizes: LayerSizes, dtype: str, device: str = "cpu") -> Saved:
    """Return the bytes that a layer saves: of three of them less those of two."""
    kind: torch.dtype = getattr(torch, dtype)
    x = torch.randn(sizes.batch, sizes.seq, sizes.hidden, dtype=kind, device=device, requires_grad=True)

    def of(kinds: tuple[type[nn.Module], ...]) -> int:
        found = []
        for number in (3, 2):
            layers = (Layer(sizes.hidden, sizes.heads) for _ in range(number))
            network = nn.Sequential(*layers).to(device, kind)
            with_tempo(network, kinds=kinds)
            found.append(saved_bytes(network, x))
        return found[0] - found[1]

    usual = of(())
    less = [usual - of((each,)) for each in KINDS]
    e = kind.itemsize
    statistic = e if device == "cpu" else 4
    return Saved(sizes=sizes, element_bytes=e, statistic_bytes=statistic, usual=usual, tempo=of(KINDS), by_part=less)


def gradient_errors(dtype: str, device: str = "cpu") -> Iterator[GradientError]:
    """Yield the errors of every gradient of the layers: normal inputs, gammas from 0.5 to 1.5, dropout 0.1.

    Of attention only on the host: elsewhere dropout draws other masks in another dtype.
    """
    norm = nn.LayerNorm(256)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 1.5, 256))
        norm.bias.copy_(torch.linspace(-1, 1, 256))
    cases: tuple[tuple[nn.Module, tuple[tuple[int, ...], ...], tuple[str, ...]], ...] = (
        (nn.GELU(), ((512, 1024),), ("input",)),
        (norm, ((1024, 256),), ("input", "gamma", "beta")),
        (AttentionCore(DROPOUT), ((16, 128, 128), (16, 128, 64)), ("scores", "values")),
    )
    for layer, shapes, names in cases if device == "cpu" else cases[:2]:
        kind: torch.dtype = getattr(torch, dtype)
        draw = torch.Generator().manual_seed(0)
        given = [torch.randn(shape, generator=draw).to(device, kind) for shape in shapes]
        held = nn.Sequential(layer).to(device, kind)
        tempo = deepcopy(held)
        with_tempo(tempo)
        exact = _gradients(deepcopy(held).double(), [x.double() for x in given])
        for name, *found in zip(names, *(_gradients(each, given) for each in (tempo, held)), exact, strict=True):
            ours, torchs = (relative_error(each, found[2]) for each in found[:2])
            yield GradientError(layer=type(layer).__name__, gradient=name, dtype=dtype, tempo=ours, usual=torchs)


def _gradients(layer: nn.Sequential, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of inputs and parameters; dropout's masks are the same ones in every dtype."""
    inputs = [x.detach().requires_grad_() for x in given]
    torch.manual_seed(1)
    y: Tensor = layer[0](*inputs)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y)
    return torch.autograd.grad(y, [*inputs, *layer.parameters()], dy)


def guard(gamma: float, dtype: str) -> Guard:
    """Return what one small gamma of 64 does to the gradients of a norm's input and gammas; beta is 0.5."""
    kind: torch.dtype = getattr(torch, dtype)
    usual = nn.LayerNorm(64, dtype=kind)
    with torch.no_grad():
        usual.weight[5] = gamma
        usual.bias.fill_(0.5)
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(0)).to(kind)
    exact = _gradients(nn.Sequential(deepcopy(usual).double()), [x.double()])
    layers = (OutputLayerNorm.of(usual, least) for least in (0.0, LEAST_GAMMA))
    bare, guarded = (relative_error(_gradients(nn.Sequential(each), [x])[:2], exact[:2]) for each in layers)
    return Guard(gamma=gamma, dtype=dtype, unguarded=bare, guarded=guarded)


def curve(seed: int, steps: int) -> Curve:
    """Return the losses of a small BERT with both kinds of layers, from the same weights, data and masks."""
    torch.manual_seed(seed)
    usual = Bert()
    tempo = deepcopy(usual)
    with_tempo(tempo)
    return Curve(seed=seed, usual=losses(usual, steps, seed), tempo=losses(tempo, steps, seed))


def step_time(sizes: LayerSizes, stopwatch: Stopwatch, dtype: str = "float32", device: str = "cpu") -> StepTime:
    """Return the shortest of several steps of a layer with either kind."""
    kind: torch.dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    usual = Layer(sizes.hidden, sizes.heads).to(device, kind)
    tempo = deepcopy(usual)
    with_tempo(tempo)
    x = torch.randn(sizes.batch, sizes.seq, sizes.hidden, dtype=kind, device=device, requires_grad=True)
    dy = torch.randn_like(x)
    steps = [partial(_step, each, x, dy) for each in (usual, tempo)]
    turns = [[stopwatch.seconds(each) for each in steps] for _ in range(ROUNDS)]
    usual_s, tempo_s = (min(times) for times in zip(*turns, strict=True))
    return StepTime(sizes=sizes, usual_s=usual_s, tempo_s=tempo_s)


def _step(layer: nn.Module, x: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(layer(x), (x, *layer.parameters()), dy)


def kernel_errors(kernels: Kernels, dtype: str, device: str, rows: int, columns: int) -> dict[str, float]:
    """Return the largest relative error of every kernel against rows of torch's operations in fp64."""
    kind: torch.dtype = getattr(torch, dtype)
    draw, exact = torch.Generator().manual_seed(0), TorchKernels()

    def normal(*shape: int, of: torch.dtype = kind) -> Tensor:
        return torch.randn(*shape, generator=draw).to(device, of)

    x, dy, wide = normal(rows, columns), normal(rows, columns), torch.float32
    y, right = kernels.gelu(x)
    vectors = tuple(normal(columns, of=wide).abs() + 0.5 for _ in range(3))
    rstd, shares = normal(rows, of=wide).abs() + 0.5, torch.softmax(normal(rows, columns), -1)
    kept = normal(rows, columns) < 1.2

    def doubled(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.double() for t in tensors)

    norms = kernels.norm_backward(x, rstd, vectors, dy)
    cores = kernels.core_backward(shares, kept, 1 / (1 - DROPOUT), dy.clone())
    return {
        "gelu": relative_error(y, exact.gelu(x.double())[0]),
        "gelu_backward": relative_error(
            kernels.gelu_backward(y, right, dy), exact.gelu_backward(y.double(), right, dy.double())
        ),
        "norm_backward": relative_error(
            norms, exact.norm_backward(x.double(), rstd.double(), doubled(*vectors), dy.double())
        ),
        "core_backward": relative_error(
            cores, exact.core_backward(shares.double(), kept, 1 / (1 - DROPOUT), dy.double())
        ),
    }
