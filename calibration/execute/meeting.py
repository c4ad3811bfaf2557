"""How processes that were started together find each other."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from calibration.execute.process import LISTENER


def meet(rank: int, ranks: int, device: torch.device, timeout: timedelta) -> None:
    """Join the others at 127.0.0.1, or wherever torchrun says."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    listener = os.environ.get(LISTENER)
    if listener is None:
        dist.init_process_group(backend, timeout=timeout)
        return
    port = int(os.environ["MASTER_PORT"])
    held = int(listener) if rank == 0 else None
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timeout, master_listen_fd=held)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
