"""What a plan really takes on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from calibration.execute.limits import Device, check_model
from calibration.execute.processes import ExecutionError, run_processes
from sim.plans.files import plain
from sim.specs import InputError, Model, Plan

LEAST_STEPS = 10
TIMEOUT_S = 60.0
"""Of starting up; a step has `STEP_TIMEOUT_S` more."""
STEP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Measured:
    """Times of what was run after warm-up: the shortest and the median, in seconds.

    `losses` are rank 0's, from the first step on; bytes are of every data-parallel rank: peak of all tensors, and sent
    in a step; `max_gradient_error` compares the reduced gradients with those of the whole batch in one pass.
    """

    step_time_s: float
    median_s: float
    steps: int
    losses: tuple[float, ...] = ()
    peak_memory_bytes: tuple[float, ...] = ()
    bytes_sent: tuple[float, ...] = ()
    max_gradient_error: float = 0.0


def measure(model: Model, plan: Plan, device: Device, steps: int = LEAST_STEPS, seed: int = 0) -> Measured:
    """Return what `steps` training steps take after warm-up, on `plan.dp` processes of one thread each.

    Raises:
        InputError: fewer than 10 steps, or not the model that is trained here.
        ExecutionError: a process died or hung, or the loss is no number.
    """
    results = _run("step", model, plan, device, steps, seed)
    each = [max(times) for times in zip(*(r["seconds"] for r in results), strict=True)]
    losses = tuple(float(x) for x in results[0]["losses"])
    good = sum(isfinite(x) for x in losses)
    if good < len(losses):
        raise ExecutionError(f"the loss is a number in {good} of {len(losses)} steps only")
    return Measured(
        **_times(each),
        losses=losses,
        peak_memory_bytes=tuple(r["peak_bytes"] for r in results),
        bytes_sent=tuple(r["sent_bytes"] for r in results),
        max_gradient_error=max(r["gradient_error"] for r in results),
    )


def measure_block(model: Model, plan: Plan, device: Device, steps: int = LEAST_STEPS, seed: int = 0) -> Measured:
    """Return what `steps` forward and backward passes of one block take on one microbatch.

    Raises:
        InputError, ExecutionError: as `measure`.
    """
    (result,) = _run("block", model, plan.but(dp=1, global_batch=plan.micro_batch), device, steps, seed)
    return Measured(**_times(result["seconds"]))


def _times(seconds: list[float]) -> dict[str, Any]:
    ordered = sorted(seconds)
    return {"step_time_s": ordered[0], "median_s": ordered[len(ordered) // 2], "steps": len(ordered)}


def _run(what: str, model: Model, plan: Plan, device: Device, steps: int, seed: int) -> list[Mapping[str, Any]]:
    check_model(model)
    _require(device)
    if steps < LEAST_STEPS:
        raise InputError("steps", steps, f"at least {LEAST_STEPS}")
    task = {
        "what": what,
        "model": plain(model),
        "plan": plain(plan),
        "ranks": plan.dp or 1,
        "device": device,
        "steps": steps,
        "seed": seed,
    }
    return run_processes(task, TIMEOUT_S + STEP_TIMEOUT_S * steps)


def _require(device: Device) -> None:
    """Refuse a device that torch does not see."""
    if device == "cuda":
        from torch.cuda import is_available  # noqa: PLC0415 - every command would wait for torch

        if not is_available():
            raise InputError("--device", device, "cpu; torch finds no CUDA device here")
