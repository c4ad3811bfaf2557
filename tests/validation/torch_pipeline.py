"""One rank of a tiny pipeline under torch.profiler; run by torchrun's environment variables. Arguments: folder."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B
from torch.profiler import ProfilerActivity, profile

RANKS, MICROBATCHES, HIDDEN = 2, 4, 64


def main() -> None:
    """Train three steps; the last two are recorded."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stages = [
        PipelineStage(torch.nn.Linear(HIDDEN, HIDDEN), s, 2 * RANKS, torch.device("cpu"))
        for s in range(rank, 2 * RANKS, RANKS)
    ]
    order = ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    data = torch.randn(MICROBATCHES * 8, HIDDEN)

    def step() -> None:
        order.step(*([data] if rank == 0 else []), **({"target": data} if rank == RANKS - 1 else {}))

    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
        step()
    found.export_chrome_trace(str(Path(sys.argv[1]) / f"rank{rank}.json.gz"))
    dist.destroy_process_group()


main()
