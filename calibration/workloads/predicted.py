"""What the simulator says of a workload: its network traced to a layer table, and a step of that simulated."""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from calibration.execute.limits import as_executed
from calibration.tracing.trace import trace
from calibration.workloads.metrics import logical_cores
from calibration.workloads.results import Metrics, Part
from calibration.workloads.training import DTYPES
from calibration.workloads.workload import Batch, Size, WithLoss, Workload
from sim.costs.usage import compute_seconds
from sim.engine.step import Step, simulate
from sim.specs import Cluster, LayerTable, Model, Plan

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


def predict(workload: Workload, size: Size, cluster: Cluster, peak_flop_per_s: float, processes: int = 1) -> Metrics:
    """Return the metrics of a step on `processes` devices of a cluster, compiled by nobody.

    One thread of every process is taken to be busy all the time.

    Raises:
        InputError: as `table`, or the cluster's profile is of kernels in another type.
    """
    kind = "cpu" if cluster.hardware.on_host else "cuda"
    traced, samples = table(workload, size, kind), workload.samples[size]
    precision: Literal["fp32", "bf16"] = "fp32" if kind == "cpu" else "bf16"
    plan = as_executed(
        Plan(dp=processes, global_batch=processes * samples, micro_batch=samples, precision=precision, overlap_dp=False)
    )
    step = simulate(Model.from_table(traced), cluster, plan)
    kernels_s = compute_seconds(step.costs, 1, 1)
    work = float(traced.flop(samples)) * processes
    memory = memory_of(step, sum(_bytes(t, kind) for t in workload.batch(size)))
    return Metrics(
        step_time_s=step.step_time_s,
        samples_per_s=processes * samples / step.step_time_s,
        compute_utilisation=min(1.0, kernels_s / step.step_time_s),
        tensor_utilisation=work / (processes * peak_flop_per_s * kernels_s),
        cpu_utilisation=min(1.0, processes / logical_cores()),
        flop=work,
        peak_bytes=sum(memory.values()),
        memory_bytes=memory,
    )


def _bytes(tensor: Tensor, kind: str) -> int:
    return tensor.numel() * (DTYPES[kind] if tensor.is_floating_point() else tensor.dtype).itemsize


def memory_of(step: Step, batch_bytes: float) -> dict[Part, float]:
    """Return the bytes of the fullest rank at its peak by the parts of a measured one; the batch is an activation."""
    workspace = step.profile.memory.workspace_bytes
    found: dict[Part, float] = {"workspace": workspace, "activations": batch_bytes, "dynamic": -workspace}
    for category, size in step.fullest.composition().items():
        found[PARTS[category]] = found.get(PARTS[category], 0.0) + size
    return found
