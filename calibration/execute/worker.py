"""One process of executed plans: `torchrun --nproc-per-node N -m calibration.execute.worker FOLDER`.

Reads FOLDER/task.json and the orders beside it, writes FOLDER/result-RANK.json: what was found for each of the task's
runs. Its rank and where the others meet it learns from torchrun's variables. Started by `trainsim execute`, it ends
when its standard input ends, so that it never outlives whoever started it.
"""

import gc
import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from calibration.execute.delayed import DelayedTrainer, serial_losses
from calibration.execute.meeting import meet
from calibration.execute.memory import LiveBytes
from calibration.execute.process import process
from calibration.execute.runtime import tracing
from calibration.execute.sharded import ShardedTrainer
from calibration.execute.traffic import Traffic
from calibration.execute.trainer import DTYPES, Trainer
from calibration.execute.updates import DELAYED_STEPS
from calibration.host import keep_freed_memory
from sim.plans.traffic import Counted
from sim.specs import Model, Plan
from sim.specs.fields import read
from sim.specs.files import load_mapping, write_atomically

WARM_UP = 3


def main(folder: Path) -> None:
    """Do one rank's part of the runs of the task in `folder`."""
    torch.set_num_threads(1)
    keep_freed_memory()
    task = load_mapping(folder / "task.json")
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device(task["device"])
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if ranks > 1:
        meet(rank, ranks, device, timedelta(seconds=float(task["timeout_s"])))
    found = [run(folder, n, one, rank, ranks, device) for n, one in enumerate(task["runs"])]
    write_atomically(folder / f"result-{rank}.json", json.dumps({"runs": found}))
    if ranks > 1:
        dist.destroy_process_group()


def run(folder: Path, number: int, task: Mapping[str, Any], rank: int, ranks: int, device: torch.device) -> Any:
    """Return what this rank found of one run."""
    if device.type == "cuda":  # else what an earlier run left in cycles of references counts in this one's peak
        gc.collect()
        torch.cuda.empty_cache()
    model, plan = read(Model, task["model"], "model"), read(Plan, task["plan"], "plan")
    order = folder / task["order"] if task.get("order") else None
    if plan.pipeline.asynchronous:
        return delayed(DelayedTrainer(model, plan, rank, ranks, device, int(task["seed"])), int(task["steps"]))
    made = ShardedTrainer if plan.at(0).zero > 1 and ranks > 1 else Trainer
    trainer = made(model, plan, rank, ranks, device, int(task["seed"]), order)
    if task["what"] == "block":
        return block(trainer, int(task["steps"]))
    found = step(trainer, int(task["steps"]))
    if task.get("trace") and trainer.pipeline:
        with tracing(folder / f"trace-{number}-{rank}.json"):
            trainer.step()
    return found


def step(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Return what `steps` training steps took and did: seconds and losses; of one more each the order of the passes,
    the messages sent, and the peak of memory; and before them the error of the gradients."""
    error = trainer.gradient_error()
    losses = [trainer.step() for _ in range(WARM_UP)]
    seconds = timed(lambda: losses.append(trainer.step()), steps, trainer)
    return {
        "seconds": seconds,
        "losses": losses,
        "gradient_error": error,
        "order": list(trainer.pipeline.done) if trainer.pipeline else [],
        "traffic": sent(trainer),
        "peak_bytes": peak_bytes(trainer, trainer.step),
        "host_bytes": float(trainer.host.peak_bytes),
    }


def delayed(trainer: DelayedTrainer, steps: int) -> dict[str, Any]:
    """Return the same of an order without flush: seconds of each global batch after warm-up, in one run without end.

    In place of the gradients' error that of the losses against those of a serial run of the delayed updates; order,
    messages and peak of memory are of a run of its own of `DELAYED_STEPS` global batches.
    """
    m = trainer.microbatches
    dist.barrier()
    losses = trainer.run(m * (WARM_UP + steps))
    seconds = [b - a for a, b in pairwise(trainer.ends[m * WARM_UP - 1 :: m])]
    error = 0.0
    if trainer.module.last:
        wanted = serial_losses(trainer.model, trainer.plan, trainer.batch, len(losses), trainer.seed)
        error = max(abs(a / b - 1) for a, b in zip(losses, wanted, strict=True))
    trainer.restart()
    with Traffic(trainer.place.groups) as traffic:
        trainer.run(m * DELAYED_STEPS)
    trainer.restart()
    each = {key: (calls / DELAYED_STEPS, size / DELAYED_STEPS) for key, (calls, size) in traffic.found.items()}
    return {
        "seconds": seconds,
        "losses": losses[m - 1 :: m],
        "gradient_error": error,
        "order": trainer.done,
        "traffic": each,
        "peak_bytes": peak_bytes(trainer, lambda: trainer.run(m * DELAYED_STEPS)),
        "host_bytes": 0.0,
    }


def sent(trainer: Trainer) -> Counted:
    """Return what this rank sends in a step."""
    with Traffic(trainer.place.groups) as traffic:
        trainer.step()
    return dict(traffic.found)


def block(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Return the seconds of `steps` forward and backward passes of the first block on one microbatch."""
    held, plan = next(iter(trainer.module.blocks.values())), trainer.plan
    shape = plan.micro_batch, trainer.batch.shape[1] - 1, trainer.model.hidden
    x, gradient = (torch.randn(shape, device=trainer.batch.device).to(DTYPES[plan.precision]) for _ in range(2))
    x.requires_grad_()

    def once() -> None:
        held(x).backward(gradient)
        x.grad = None

    for _ in range(WARM_UP):
        once()
    return {"seconds": timed(once, steps, trainer)}


def timed(run: Callable[[], Any], times: int, trainer: Trainer) -> list[float]:
    """Return the seconds of each of `times` runs; all ranks start together, and the device is idle at both ends."""
    found = []
    for _ in range(times):
        if trainer.place.groups:
            dist.barrier()
        idle(trainer.batch)
        begin = time.perf_counter()
        run()
        idle(trainer.batch)
        found.append(time.perf_counter() - begin)
    return found


def idle(tensor: Tensor) -> None:
    """Return when the tensor's device has nothing to do."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def peak_bytes(trainer: Trainer, run: Callable[[], Any]) -> float:
    """Return the most bytes of tensors that live at once on the device during a run, of weights and states too."""
    device = trainer.batch.device
    trainer.host.restart()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return float(torch.cuda.max_memory_allocated(device))
    with LiveBytes(trainer.tensors(), trainer.host.has) as live:
        run()
    return float(live.peak_bytes)


if __name__ == "__main__":
    process(main)
