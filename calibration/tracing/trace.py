"""A layer table of any torch module: run on fake tensors at three micro-batch sizes, told apart by arithmetic.

Nothing is computed and nothing is allocated: a 175-billion-parameter network needs no memory.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.func import functional_call
from torch.nn.modules import transformer
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from calibration.tracing.choices import WEIGHT_GRADIENTS, Choices
from calibration.tracing.recorder import NO_CHECKPOINTS, Part, Recorder
from calibration.tracing.records import Record, tensors
from calibration.tracing.values import Values
from sim.specs.fields import InputError
from sim.specs.table import SIZES, Layer, LayerTable, Op

Inputs = Any
"""A tensor, a tuple of positional or a mapping of keyword arguments."""
Kernel = tuple[str, tuple[tuple[int, int], ...], bool, bool, int | None]
Layers = Sequence[nn.Module | str]
TRIED = ((1, 2, 3), (2, 3, 4))
"""Micro-batch sizes; at 1 some copies are views (memory.md, trap 2), so larger ones get a second chance."""


def trace(
    module: nn.Module,
    inputs: Inputs | Callable[[int], Inputs],
    layers: Layers | None = None,
    dtype: torch.dtype = torch.bfloat16,
    name: str | None = None,
) -> LayerTable:
    """Return the layer table of `module` (of real, meta or fake tensors; it is not changed).

    inputs: example arguments whose tensors have the batch as first dimension, or a function of the batch size;
    those that require a gradient are activations, the others data. layers: the pipeline's layers, as modules or
    names (a ModuleList stands for its children); default: the children of the ModuleList or Sequential with most
    parameters. dtype: of weights and real-valued inputs, as `module.to(dtype)` would make them. torch's own
    transformers drop a causal mask where `is_causal` says that it is one or, left out, where its values do: those made
    in the forward pass and not written over, and those of buffers that are real.

    Raises:
        InputError: shapes that depend on data, sizes that are not affine in the batch, unknown layers,
            or an operation whose products cannot be counted.
    """
    chosen = find_layers(module, layers)
    for batches in TRIED:
        try:
            runs = [run(module, _inputs(inputs, b), chosen, dtype) for b in batches]
            made = _merged([_layer(parts, batches) for parts in _aligned(runs, batches)])
        except ValueError:  # InputError, or a module that takes no batch of one (batch norm)
            if batches is TRIED[-1]:
                raise
            continue
        return LayerTable(
            name=name or type(module).__name__,
            dtype=cast("Any", str(dtype).removeprefix("torch.")),
            seq=_seq(_inputs(inputs, 1)),
            batches=list(batches),
            layers=made,
        )
    raise AssertionError("the last batches return or raise")


def find_layers(module: nn.Module, layers: Layers | None = None) -> dict[str, nn.Module]:
    """Return the pipeline's layers by name (default: see `trace`; a module without a list is one layer).

    Raises:
        InputError: a layer that is not in the module.
    """
    names = {id(m): n for n, m in module.named_modules()}
    if layers is not None:
        by_name = dict(module.named_modules())
        found: list[nn.Module] = []
        for given in layers:
            one = by_name.get(given) if isinstance(given, str) else given
            if one is None or id(one) not in names:
                raise InputError(
                    "layers", given if isinstance(given, str) else type(given).__name__, "parts of the module"
                )
            found += one.children() if isinstance(one, nn.ModuleList) else [one]
        if not found:
            raise InputError("layers", layers, "at least one part of the module")
        return {names[id(one)] or "all": one for one in found}
    lists = [m for m in module.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m)]
    lists = [m for m in lists if not isinstance(m, ParametrizationList)]
    largest = max(lists, key=lambda m: sum(p.numel() for p in m.parameters()), default=None)
    return {names[id(x)]: x for x in largest.children()} if largest else {"all": module}


def run(
    module: nn.Module,
    inputs: Inputs,
    layers: Mapping[str, nn.Module],
    dtype: torch.dtype = torch.bfloat16,
    choices: Choices | None = None,
    statistics: bool = True,
) -> list[Part]:
    """Return what every part does in one forward and backward pass on fake tensors.

    The backward pass runs twice: for the layers' inputs alone, and for parameters too. `choices` and
    `statistics` (fp32 statistics of norms) follow CUDA by default.
    """
    held = [t for t in module.parameters() if isinstance(t, FakeTensor)]
    mode = held[0].fake_mode if held else FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        state = _faked(module, dtype)
        values = Values((state[name], t) for name, t in module.named_buffers())
        given = tree_map(lambda t: _fake(t, dtype) if isinstance(t, Tensor) else t, inputs)
        parameters = {n: t for n, t in state.items() if isinstance(t, nn.Parameter)}
        data = [t for t in (*state.values(), *tensors(given)) if not t.requires_grad]
        recorder = Recorder(parameters, data, values, statistics)
        with recorder, recorder.watching(layers), choices or Choices(), _steps_of_recurrences(), _causal_by(values):
            try:
                out = functional_call(module, state, *_arguments(given))
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise InputError("module", str(error), "shapes that do not depend on data") from None
        return recorder.finish(_differentiate(recorder, tensors(out), parameters.values()))


@contextmanager
def _steps_of_recurrences() -> Iterator[None]:
    """Make an LSTM a product and its gates for every step: oneDNN's one operation does not tell its products."""
    before = torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.flags sets TF32 too, which warns
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def _causal_by(values: Values) -> Iterator[None]:
    """Let torch's own transformers look at a mask's values, which fake tensors do not have, as far as they are known:
    a mask that nothing is known of is none of theirs."""
    look = transformer._detect_is_causal_mask

    def seen(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        held = None if mask is None else values.of(mask)
        if held is None:
            return is_causal is True
        with _disable_current_modes():
            return bool(look(held, is_causal, size))

    with patch.object(transformer, "_detect_is_causal_mask", seen):
        yield


def _differentiate(recorder: Recorder, out: list[Tensor], parameters: Iterable[Tensor]) -> tuple[Tensor | None, ...]:
    """Run backward to the layers' inputs, then to parameters too; return the gradients of the second run."""
    ends = [t for t in out if t.requires_grad]
    if not ends:
        raise InputError("module", "no gradient", "an output that depends on a trainable parameter")
    seeds = [torch.empty_like(t) for t in ends]
    reached = [*recorder.captures.values()]
    trainable = [p for p in {id(p): p for p in parameters}.values() if p.requires_grad]
    gradients: tuple[Tensor | None, ...] = ()
    for recorder.phase, targets in (("input", reached), ("backward", reached + trainable)):
        if not targets:
            continue
        token = WEIGHT_GRADIENTS.set(recorder.phase == "backward")
        try:
            with recorder:
                gradients = torch.autograd.grad(ends, targets, seeds, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "checkpoint" not in str(error):
                raise
            raise InputError("module", "torch.utils.checkpoint", NO_CHECKPOINTS) from None
        finally:
            WEIGHT_GRADIENTS.reset(token)
    return gradients


def _fake(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor like `t` on the fake CPU (in `dtype` if it is real-valued)."""
    kind = dtype if t.is_floating_point() else t.dtype
    made = torch.empty_strided(t.shape, t.stride(), dtype=kind, device="cpu")
    if isinstance(t, nn.Parameter):
        return nn.Parameter(made, requires_grad=t.requires_grad)
    return made.requires_grad_(t.requires_grad)


def _faked(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return fake parameters and buffers under every name they have; what is shared stays shared."""
    named = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    once = {id(t): _fake(t, dtype) for t in {id(t): t for _, t in named}.values()}
    return {name: once[id(t)] for name, t in named}


def _inputs(inputs: Inputs | Callable[[int], Inputs], batch: int) -> Inputs:
    """Return the arguments at a batch size; only their shapes and types matter."""
    if callable(inputs) and not isinstance(inputs, Tensor):
        return inputs(batch)

    def resized(t: Any) -> Any:
        if not isinstance(t, Tensor) or t.dim() == 0:
            return t
        return torch.empty((batch, *t.shape[1:]), dtype=t.dtype, device="meta").requires_grad_(t.requires_grad)

    return tree_map(resized, inputs)


def _arguments(given: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given) if isinstance(given, tuple | list) else (given,)), {}


def _seq(inputs: Inputs) -> int | None:
    """Return the tokens of a sample if an input is a matrix of token numbers."""
    return next((t.shape[1] for t in tensors(inputs) if t.dim() == 2 and not t.is_floating_point()), None)


def _aligned(runs: list[list[Part]], batches: Sequence[int]) -> list[tuple[Part, ...]]:
    """Return the same part of every run side by side."""
    if len({tuple(p.name for p in parts) for parts in runs}) != 1:
        raise InputError("module", f"batches {list(batches)}", "the same layers run at every batch size")
    return list(zip(*runs, strict=True))


def _affine(values: Sequence[int], batches: Sequence[int], where: str) -> tuple[int, int]:
    """Return (constant, per sample) through all points."""
    slope = (values[1] - values[0]) // (batches[1] - batches[0])
    constant = values[0] - slope * batches[0]
    if constant < 0 or slope < 0 or any(constant + slope * b != v for v, b in zip(values, batches, strict=True)):
        raise InputError(where, list(values), f"sizes affine in the batch (at {', '.join(map(str, batches))})")
    return constant, slope


def _kernels(lists: Sequence[list[Record]], batches: Sequence[int], where: str) -> Counter[Kernel]:
    """Return the kernels of one phase with affine sizes, equal ones counted."""
    if len({tuple(r._replace(sizes=()) for r in found) for found in lists}) != 1:
        raise InputError(where, [len(found) for found in lists], "the same operations at every batch size")
    found: Counter[Kernel] = Counter()
    for same in zip(*lists, strict=True):
        first, *_ = same
        sizes = tuple(_affine(values, batches, where) for values in zip(*(r.sizes for r in same), strict=True))
        found[first.kind, sizes, first.causal, first.masked, first.channels] += 1
    return found


def _layer(parts: Sequence[Part], batches: Sequence[int]) -> Layer:
    """Return one part's layer from its runs at all batch sizes."""
    first = parts[0]
    forward, to_input, both = (
        _kernels([p.ops[phase] for p in parts], batches, f"{first.name}.{phase}")
        for phase in ("forward", "input", "backward")
    )
    to_input &= both
    saved, boundary = (
        _affine([getattr(p, what) for p in parts], batches, f"{first.name}.{what}") for what in ("saved", "boundary")
    )
    return Layer(
        name=first.name,
        role=first.role,
        parameters=first.parameters,
        trainable_parameters=first.trainable,
        tensors=first.tensors,
        shared=dict(sorted(first.shared.items())),
        temporary_bytes=_largest([p.temporaries for p in parts], batches, f"{first.name}.temporary_bytes"),
        forward_bytes=_largest([p.held for p in parts], batches, f"{first.name}.forward_bytes") if first.held else None,
        forward=_listed(forward),
        backward_input=_listed(to_input),
        backward_weight=_listed(both - to_input),
        saved_bytes=saved,
        boundary_bytes=boundary,
    )


def _largest(lists: Sequence[list[int]], batches: Sequence[int], name: str) -> tuple[int, int]:
    """Return the size that is largest at large micro-batches: of those that grow most."""
    if len({len(found) for found in lists}) != 1:
        raise InputError(name, [len(x) for x in lists], "the same tensors at every batch size")
    sizes = list(zip(*lists, strict=True))
    widest = max(sizes, key=lambda each: (each[-1] - each[0], each[-1]), default=tuple(0 for _ in batches))
    return _affine(widest, batches, name)


def _listed(found: Counter[Kernel]) -> list[Op]:
    made = []
    for (kind, sizes, causal, masked, channels), count in found.items():
        named = dict(zip(SIZES[kind], sizes, strict=True))
        made.append(Op(kind=cast("Any", kind), count=count, causal=causal, masked=masked, channels=channels, **named))
    return made


def _merged(layers: list[Layer]) -> list[Layer]:
    """Return the layers with neighbours that differ in the name only as one, counted."""
    fields = [f for f in Layer.__dataclass_fields__ if f not in ("name", "count")]
    made = []
    for _, group in groupby(layers, key=lambda layer: [getattr(layer, f) for f in fields]):
        same = list(group)
        made.append(Layer(name=same[0].name, count=len(same), **{f: getattr(same[0], f) for f in fields}))
    return made


def flop(module: nn.Module, inputs: Inputs, backward: bool = True, dtype: torch.dtype = torch.bfloat16) -> int:
    """Return the FLOP that torch's own FlopCounterMode counts for a forward (and backward) pass on fake tensors.

    It is given the CPU's fused attention, which it does not know.
    """
    forward: Any = sdpa_flop_count
    backward_: Any = sdpa_backward_flop_count
    mapping = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda *a, **_: forward(*a[:3]),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *a, **_: backward_(*a[:4]),
    }
    with FakeTensorMode(allow_non_fake_inputs=True):
        state = _faked(module, dtype)
        given = tree_map(lambda t: _fake(t, dtype) if isinstance(t, Tensor) else t, inputs)
        with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            out = functional_call(module, state, *_arguments(given))
            if backward:
                ends = [t for t in tensors(out) if t.requires_grad]
                torch.autograd.backward(ends, [torch.empty_like(t) for t in ends])
    return int(counter.get_total_flops())
