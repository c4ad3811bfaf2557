"""One process of an executed plan: `python -m calibration.execute.worker FOLDER RANK`.

Reads FOLDER/task.json, writes FOLDER/result-RANK.json. Ends when its standard input ends, so that it never outlives
whoever started it.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from calibration.execute.memory import LiveBytes
from calibration.execute.trainer import DTYPES, Trainer
from calibration.host import keep_freed_memory
from sim.specs import Model, Plan
from sim.specs.fields import read
from sim.specs.files import load_mapping, write_atomically

WARM_UP = 3


def main(folder: Path, rank: int) -> None:
    """Do one rank's part of the task in `folder`."""
    torch.set_num_threads(1)
    keep_freed_memory()
    task = load_mapping(folder / "task.json")
    ranks, device = int(task["ranks"]), torch.device(task["device"])
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    model, plan = read(Model, task["model"], "model"), read(Plan, task["plan"], "plan")
    trainer = Trainer(model, plan, rank, ranks, device, int(task["seed"]))
    run = block if task["what"] == "block" else step
    write_atomically(folder / f"result-{rank}.json", json.dumps(run(trainer, int(task["steps"]))))
    if ranks > 1:
        dist.destroy_process_group()


def step(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Return seconds and losses of `steps` training steps, gradient error, peak memory and bytes sent in a step."""
    error = trainer.gradient_error()
    losses = [trainer.step() for _ in range(WARM_UP)]
    trainer.wire.moved_bytes = 0
    seconds = timed(lambda: losses.append(trainer.step()), steps, trainer)
    sent = trainer.wire.sent_bytes / steps
    peak = peak_bytes(trainer, trainer.step)
    return {"seconds": seconds, "losses": losses, "gradient_error": error, "sent_bytes": sent, "peak_bytes": peak}


def block(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Return the seconds of `steps` forward and backward passes of the first block on one microbatch."""
    held, plan = trainer.module.blocks[0], trainer.plan
    shape = plan.micro_batch, trainer.batch.shape[1] - 1, trainer.module.tokens.embedding_dim
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
        if trainer.ranks > 1:
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
    """Return the most bytes of tensors that live at once during a run, those of weights and states included."""
    device = trainer.batch.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return float(torch.cuda.max_memory_allocated(device))
    with LiveBytes(trainer.tensors()) as live:
        run()
    return float(live.peak_bytes)


def end_with_input() -> None:
    """End the process when its standard input ends."""
    os.read(sys.stdin.fileno(), 1)  # not through a buffer, whose lock would be held at shutdown
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    main(Path(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # torn down with the interpreter, a thread of gloo's that still runs would abort the process
