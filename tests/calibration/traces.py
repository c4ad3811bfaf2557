"""Torch profiler traces: recorded on the CPU, and written by hand as a GPU run records them."""

import gzip
import json
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from calibration.kernels.gpt import SmallGpt
from sim.specs import Model

GPT = Model(layers=2, hidden=64, heads=2, vocab=500, seq=32)
BATCH = 4
TOKENS = BATCH * GPT.seq


def recorded(folder: Path, model: Model = GPT, shapes: bool = True, fused: bool = True, packed: bool = True) -> Path:
    """Return the trace of three training steps after one of warm-up."""
    torch.set_num_threads(1)
    module = SmallGpt(model)
    optimizer = torch.optim.Adam(module.parameters(), fused=fused, foreach=False)
    tokens = torch.randint(model.vocab, (BATCH, model.seq + 1), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        module.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes) as found:
        for _ in range(3):
            step()
    path = folder / ("trace.json.gz" if packed else "trace.json")
    found.export_chrome_trace(str(path))
    return path


def written(folder: Path, events: Any, name: str = "trace.json") -> Path:
    """Write a trace of events, packed where the name says so."""
    data = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def op(name: str, start: float, duration: float, dims: Any = (), kind: str = "float", **args: Any) -> dict[str, Any]:
    """Return an operation of the host's; `dims` are the shapes of its inputs, `args` its further arguments."""
    shapes = {"Input Dims": [list(d) for d in dims], "Input type": [kind] * len(dims)} if dims else {}
    more = {key.replace("_", " "): value for key, value in args.items()}
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration}
    return event | {"args": shapes | more}


def kernel(external: int, duration: float, name: str = "gemm", cat: str = "kernel", **args: Any) -> dict[str, Any]:
    """Return a kernel that the operation `external` launched."""
    more = {"External id": external, "correlation": 1000 + external, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": 5.0, "dur": duration, "args": more}
