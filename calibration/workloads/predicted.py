"""What the simulator says of a workload: its network traced to a layer table, and a step of that simulated."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from torch import Tensor

from calibration.execute.limits import as_executed, executed_level
from calibration.tracing.trace import trace
from calibration.workloads.metrics import logical_cores
from calibration.workloads.results import Metrics, Part
from calibration.workloads.training import DTYPES
from calibration.workloads.workload import Batch, Size, WithLoss, Workload
from sim.costs.usage import compute_seconds
from sim.engine.sensitivity import times_with
from sim.engine.step import Step, simulate
from sim.specs import Cluster, LayerTable, Model, Plan
from sim.specs.traced import Part as Traced

PARTS: Mapping[str, Part] = {
    "parameters": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "temporaries": "dynamic",
    "communication": "dynamic",
    "offload": "dynamic",
}
"""Category of `sim.engine.memory` -> part of a measured peak."""


def table(workload: Workload, size: Size, kind: str) -> LayerTable:
    """Return the layer table of a workload in the type that a kind of device trains in.

    All of it is one layer, as none of it is spread in a pipeline.

    Raises:
        InputError: as `calibration.tracing.trace.trace`.
    """
    module = WithLoss(workload, size)

    def inputs(samples: int) -> Batch:
        return workload.batch(size, samples=samples)

    return trace(module, inputs, [module], DTYPES[kind], workload.name)


def predict(
    workload: Workload,
    size: Size,
    cluster: Cluster,
    peak_flop_per_s: float,
    processes: int = 1,
    samples: int | None = None,
) -> Metrics:
    """Return the metrics of a step on `processes` devices of a cluster, compiled by nobody.

    samples: of a process, by default the workload's own.

    Raises:
        InputError: as `table` and `predict_traced`.
    """
    kind = "cpu" if cluster.hardware.on_host else "cuda"
    count = samples or workload.samples[size]
    held = batch_bytes(workload, size, kind, count)
    return predict_traced(table(workload, size, kind), cluster, peak_flop_per_s, processes, count, held)


def predict_traced(
    traced: LayerTable, cluster: Cluster, peak_flop_per_s: float, processes: int, samples: int, held_bytes: float
) -> Metrics:
    """Return the metrics of a step of a network of one layer, `samples` of `held_bytes` together a process.

    One thread of every process is taken to be busy all the time, and a device beside its host is not while it waits for
    a launch.

    Raises:
        InputError: the cluster's profile is of kernels in another type.
    """
    kind = "cpu" if cluster.hardware.on_host else "cuda"
    precision: Literal["fp32", "bf16"] = "fp32" if kind == "cpu" else "bf16"
    plan = as_executed(
        Plan(dp=processes, global_batch=processes * samples, micro_batch=samples, precision=precision, overlap_dp=False)
    )
    step = simulate(Model.from_table(traced), cluster, plan, level=executed_level(cluster))
    busy_s = busy(step) if kind == "cuda" else compute_seconds(step.costs, 1, 1)
    work = float(traced.flop(samples)) * processes
    layer = Traced.of(traced.layers[0])
    workspace = step.profile.memory.workspace_bytes + (copied(layer, samples) if kind == "cpu" else 0.0)
    memory = memory_of(step, workspace, held_bytes)
    return Metrics(
        step_time_s=step.step_time_s,
        samples_per_s=processes * samples / step.step_time_s,
        compute_utilisation=min(1.0, busy_s / step.step_time_s),
        tensor_utilisation=work / (processes * peak_flop_per_s * busy_s),
        cpu_utilisation=min(1.0, processes / logical_cores()),
        flop=work,
        peak_bytes=sum(memory.values()),
        memory_bytes=memory,
    )


def busy(step: Step) -> float:
    """Return the seconds of a step in which a device runs kernels: all of it but their floors, and what waits for the
    host to issue them."""
    floors = [name for name in step.profile.values if name.endswith("_t0")]
    free = {name: np.zeros(1) for name in (*floors, *step.profile.issue, "host_s_per_launch")}
    return float(times_with(step, free)[0])


def copied(part: Traced, samples: int) -> float:
    """Return what a host processor's convolutions copy where that, in forward, makes the peak."""
    size = float(part.copied_bytes(samples))
    return size if size > part.gradient_bytes(samples) else 0.0


def batch_bytes(workload: Workload, size: Size, kind: str, samples: int) -> int:
    """Return the bytes of a step's data on a kind of device."""
    return sum(_bytes(t, kind) for t in workload.batch(size, samples=samples))


def _bytes(tensor: Tensor, kind: str) -> int:
    return tensor.numel() * (DTYPES[kind] if tensor.is_floating_point() else tensor.dtype).itemsize


def memory_of(step: Step, workspace_bytes: float, batch_bytes: float) -> dict[Part, float]:
    """Return the bytes of the fullest rank at its peak by the parts of a measured one; the batch is an activation.

    The simulator keeps gradients from step to step. A single process gives them back, and has them again as its
    activations go, layer by layer: of both, the larger is there at the peak.
    """
    found: dict[Part, float] = {"workspace": workspace_bytes, "activations": batch_bytes, "dynamic": -workspace_bytes}
    for category, size in step.fullest.composition().items():
        found[PARTS[category]] = found.get(PARTS[category], 0.0) + size
    later: Part = "gradients" if found["activations"] > found["gradients"] else "activations"
    return found | {later: 0.0}
