"""How much longer Megatron-Core's or compiled layers take to issue than plain PyTorch's of the same network.

Networks of next to no size are all Python, dispatcher and autograd; on a processor the ratio of these is about that of
a GPU's host, where `--device cuda` measures it. `python -m calibration.issue_ratios` prints it: with `--network
megatron`, `megatron-fused` (what TorchScript compiles), `megatron-experts` (one, which stands for all that are grouped,
behind router, permutation and all-to-all), or `compiled` (torch.compile, each layer for itself as
torchtitan does; it wants a C++ compiler, or Triton). Megatron-Core is no part of trainsim: `pip install --no-deps
megatron-core einops`. Its modules of plain torch are measured (the local specification), as its others call
TransformerEngine, which runs on GPUs alone.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import typer
from torch import Tensor, nn

from calibration.kernels.gpt import SmallGpt
from sim.costs.fitted import six_digits
from sim.specs.fields import InputError
from sim.specs.model import Model

HEIGHTS = (1, 2, 4, 8)
"""Layers of the networks; a straight line through their times parts layers from ends."""
ROUNDS, WARM_UPS = 60, 5
WAYS = ("forward", "backward")
HIDDEN, HEADS, VOCAB, SEQ = 16, 2, 8, 8

Pass = Callable[[], Tensor]
"""Runs a network forward and returns its loss."""


def ratios(seconds: Mapping[tuple[bool, str, int], float]) -> dict[str, float]:
    """Return how many times as long a layer's passes, and both of the ends (embedding, head, loss), are as plain ones.

    seconds: by whether the network is plain, pass of `WAYS` and layers.
    """
    lines = {
        (plain, way): np.polyfit(HEIGHTS, [seconds[plain, way, n] for n in HEIGHTS], 1)
        for plain in (True, False)
        for way in WAYS
    }
    ends, others = (sum(lines[plain, way][1] for way in WAYS) for plain in (True, False))
    layers = {way: lines[False, way][0] / lines[True, way][0] for way in WAYS}
    return {name: six_digits(times) for name, times in (layers | {"ends": others / ends}).items()}


def measure(network: str = "megatron", device: str = "cpu") -> dict[str, float]:
    """Return `ratios` of one of `NETWORKS` to `SmallGpt`, the shortest of `ROUNDS` in turns, on one core.

    device: "cuda" times what the host takes to issue the passes, each of which begins on an idle device.

    Raises:
        InputError: there is no such network or device, or Megatron-Core is not installed.
    """
    if network not in NETWORKS:
        raise InputError("network", network, ", ".join(NETWORKS))
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError("device", device, "cpu, or cuda where torch finds one")
    torch.set_num_threads(1)
    with torch.device(device):
        return ratios(_shortest({True: _plain, False: NETWORKS[network]}, device))


def _shortest(made: Mapping[bool, Callable[[int], Pass]], device: str) -> dict[tuple[bool, str, int], float]:
    """Return the seconds of every pass, by whether the network is plain, its way and layers."""
    networks = {(plain, n): of(n) for n in HEIGHTS for plain, of in made.items()}
    shortest: dict[tuple[bool, str, int], float] = {}
    wait: Callable[[], None] = partial(torch.cuda.synchronize) if device == "cuda" else lambda: None
    for turn in range(WARM_UPS + ROUNDS):
        for (plain, n), forward in networks.items():
            wait()
            start = perf_counter()
            loss = forward()
            middle = perf_counter()
            wait()
            between = perf_counter()
            torch.autograd.backward(loss)
            for way, seconds in zip(WAYS, (middle - start, perf_counter() - between), strict=True):
                if turn >= WARM_UPS:
                    shortest[plain, way, n] = min(seconds, shortest.get((plain, way, n), seconds))
    return shortest


def _tokens() -> Tensor:
    return torch.randint(0, VOCAB, (1, SEQ))


def _plain(layers: int, compiled: bool = False) -> Pass:
    model = Model(name="small", layers=layers, hidden=HIDDEN, heads=HEADS, vocab=VOCAB, seq=SEQ)
    gpt, tokens = SmallGpt(model), _tokens()
    if compiled:
        gpt.blocks = nn.ModuleList(torch.compile(block) for block in gpt.blocks)  # type: ignore[misc]
    return lambda: gpt.loss(tokens, tokens)


EXPERTS = {
    "num_moe_experts": 1, "moe_router_topk": 1, "moe_router_pre_softmax": True, "add_bias_linear": False,
    "moe_token_dispatcher_type": "alltoall", "moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.01,
}  # fmt: skip
"""What makes an MLP one of experts."""


def _megatron(layers: int, fused: bool = False, experts: bool = False) -> Pass:
    """Return Megatron-Core's GPT on torch's default device, without dropout."""
    device = torch.get_default_device()
    core, given = _core(device), EXPERTS if experts else {}
    config = core["TransformerConfig"](
        num_layers=layers, hidden_size=HIDDEN, num_attention_heads=HEADS, use_cpu_initialization=device.type == "cpu",
        hidden_dropout=0.0, attention_dropout=0.0, bias_dropout_fusion=fused, **given,
    )  # fmt: skip
    if experts:
        _prepare_experts(device)
    spec = core["get_gpt_layer_local_spec"](num_experts=given.get("num_moe_experts"), moe_grouped_gemm=False)
    gpt = core["GPTModel"](config, spec, VOCAB, SEQ).to(device)
    tokens, positions = _tokens(), torch.arange(SEQ)[None]
    mask = torch.ones(1, 1, SEQ, SEQ, dtype=torch.bool).triu(1)
    return lambda: gpt(tokens, positions, mask, labels=tokens).mean()


def _core(device: torch.device) -> dict[str, Any]:
    """Return what is needed of Megatron-Core, set up for one process; on a processor its buffers are made there."""
    try:
        state, gpt, specs, config, numbers = (
            import_module(f"megatron.core.{name}")
            for name in (
                "parallel_state", "models.gpt", "models.gpt.gpt_layer_specs", "transformer.transformer_config",
                "tensor_parallel.random",
            )
        )  # fmt: skip
    except ImportError as error:
        raise InputError("megatron-core", error.name, "installed: pip install --no-deps megatron-core einops") from None
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        state.initialize_model_parallel(1, 1)
        if device.type == "cuda":
            numbers.model_parallel_cuda_manual_seed(1)
    if device.type == "cpu":
        setattr(torch.cuda, "current_device", lambda: device)  # noqa: B010
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("megatron") and hasattr(module, "get_cuda_rng_tracker"):
                setattr(module, "get_cuda_rng_tracker", lambda *_: _NoDropout())  # noqa: B010
    return {
        "GPTModel": gpt.GPTModel,
        "get_gpt_layer_local_spec": specs.get_gpt_layer_local_spec,
        "TransformerConfig": config.TransformerConfig,
    }


def _prepare_experts(device: torch.device) -> None:
    """Give Megatron-Core's experts what they look for beside plain torch; networks of all heights log their losses."""
    told = import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(told, "te_general_gemm"):  # its import of TransformerEngine's leaves none behind
        setattr(told, "te_general_gemm", None)  # noqa: B010
    if device.type == "cpu":
        stream = _NoStream()
        for name in ("Stream", "current_stream"):
            setattr(torch.cuda, name, lambda *_: stream)
        setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())  # noqa: B010
    told.save_to_aux_losses_tracker("load_balancing_loss", torch.zeros(()), 1, max(HEIGHTS))


class _NoStream:
    """Stands for a stream of a GPU."""

    def wait_stream(self, _: Any) -> None:
        """Wait for nothing."""

    def record_event(self) -> "_NoStream":
        """Return what is waited for."""
        return self

    def synchronize(self) -> None:
        """Wait for nothing."""


class _NoDropout:
    """Stands for the states of random numbers on a GPU."""

    def fork(self, *_: Any) -> contextlib.nullcontext[None]:
        """Return what a dropout runs under."""
        return contextlib.nullcontext()

    def is_initialized(self) -> bool:
        """Return that there is nothing to set up."""
        return True


NETWORKS: Mapping[str, Callable[[int], Pass]] = {
    "megatron": _megatron,
    "megatron-fused": partial(_megatron, fused=True),
    "megatron-experts": partial(_megatron, experts=True),
    "compiled": partial(_plain, compiled=True),
}


def main(network: str = "megatron", device: str = "cpu") -> None:
    """Print what `measure` finds of one of `NETWORKS`."""
    try:
        found = measure(network, device)
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    for part, times in found.items():
        typer.echo(f"{part}: {times:.2f} times as long to issue")


if __name__ == "__main__":
    typer.run(main)
