"""Two processes that train a workload together: each its own samples, gradients averaged over both after backward.

`python -m calibration.workloads.parallel FOLDER` is one of them, as `calibration.execute.processes` starts it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from calibration.execute.meeting import meet
from calibration.execute.process import process
from calibration.execute.processes import ExecutionError, run_processes
from calibration.host import keep_freed_memory
from calibration.workloads.metrics import compute_utilisation, flop, timed
from calibration.workloads.registry import workload
from calibration.workloads.results import Metrics
from calibration.workloads.training import Training
from calibration.workloads.workload import Size
from sim.specs.files import load_mapping, write_atomically

PROCESSES = 2
COMMAND = (sys.executable, "-m", "calibration.workloads.parallel")
TIMEOUT_S = 300.0


def averaged(gradients: list[Tensor]) -> None:
    """Average the gradients over all processes, as one message."""
    flat = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for own, mean in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):  # type: ignore[no-untyped-call]
        own.copy_(mean)


def measure(
    name: str, size: Size, device: str, steps: int, peak_flop_per_s: float, seed: int = 0, samples: int | None = None
) -> Metrics:
    """Return the metrics of two processes together; rates and busy cores are of both, utilisations of the mean one.

    Raises:
        ExecutionError: a process died, they took longer than `TIMEOUT_S`, or their weights differ afterwards.
    """
    task = {"ranks": PROCESSES, "workload": name, "size": size, "device": device, "steps": steps, "seed": seed}
    task |= {} if samples is None else {"samples": samples}
    return together(run_processes(task, TIMEOUT_S, COMMAND), peak_flop_per_s)


def together(ranks: Sequence[Mapping[str, Any]], peak_flop_per_s: float) -> Metrics:
    """Return the metrics of processes from what each of them found; a step ends with its last process.

    Raises:
        ExecutionError: their weights are not the same ones after training together.
    """
    if len({rank["weights"] for rank in ranks}) != 1:
        raise ExecutionError("the processes' weights differ after the same steps")
    step_s = median(max(times) for times in zip(*(rank["seconds"] for rank in ranks), strict=True))
    share = sum(rank["compute"] for rank in ranks) / len(ranks)
    work = sum(rank["flop"] for rank in ranks)
    return Metrics(
        step_time_s=step_s,
        samples_per_s=sum(rank["samples"] for rank in ranks) / step_s,
        compute_utilisation=share,
        tensor_utilisation=work / (len(ranks) * peak_flop_per_s * share * step_s),
        cpu_utilisation=min(1.0, sum(rank["cpu"] for rank in ranks)),
        flop=float(work),
    )


def main(folder: Path) -> None:
    """Do one process's part of the task in `folder`."""
    torch.set_num_threads(1)
    keep_freed_memory()
    task = load_mapping(folder / "task.json")
    rank, device = int(os.environ["RANK"]), torch.device(task["device"])
    if device.type == "cuda":
        torch.cuda.set_device(rank)
    meet(rank, int(os.environ["WORLD_SIZE"]), device, timedelta(seconds=float(task["timeout_s"])))
    seed, samples = int(task["seed"]), task.get("samples")
    training = Training(
        workload(task["workload"]), task["size"], task["device"], seed, rank, reduce=averaged, samples=samples
    )
    found = timed(training, dist.barrier, int(task["steps"]))
    told = {
        "seconds": found.seconds,
        "cpu": found.cpu_utilisation,
        "samples": training.samples,
        "compute": compute_utilisation(training),
        "flop": flop(training),
        "weights": float(sum(p.detach().double().sum() for p in training.model.parameters())),
    }
    write_atomically(folder / f"result-{rank}.json", json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    process(main)
