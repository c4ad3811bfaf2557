"""A profile with made-up numbers and the smallest network, for what does not depend on how fast this machine is."""

import json
from dataclasses import replace
from pathlib import Path

from calibration.execute.limits import as_executed
from sim.costs.fitted import KernelModel
from sim.costs.profile import Memory, load_profile, profile_text
from sim.specs import Cluster, Links, Model, Plan

SMALL = Model(layers=2, hidden=64, heads=2, vocab=200, seq=32)
SLOWER = 1e4
"""How much slower than a GPU the made-up core is: a tenth of a TFLOP/s, some hundred MB/s."""


def plan(**given: object) -> Plan:
    """Return a plan as it is executed on the CPU: global batch 8 in microbatches of 2."""
    usual = {"global_batch": 8, "micro_batch": 2, "precision": "fp32", "overlap_dp": False, "dp": 1}
    return as_executed(Plan(**{**usual, **given}))


def profile(folder: Path, dtype: str = "float32") -> Path:
    """Write the profile of a made-up core: a GPU's, every time as much longer, without memory outside of tensors.

    dtype: of its kernels; "" means 16 bit.
    """
    base = load_profile("a100-sxm-80gb")
    made = replace(
        base,
        name="made-up core",
        dtype=dtype,
        models=[_slower(model, dtype or "bfloat16") for model in base.models],
        memory=Memory(
            context_bytes=0.0,
            communicator_bytes=0.0,
            workspace_bytes=0.0,
            reserved_over_allocated=1.0,
            reserved_sigma_log=0.0,
            allocated_sigma_log=0.03,
            source="made up for a test",
        ),
    )
    folder.mkdir(exist_ok=True)
    (folder / "profile.json").write_text(profile_text(made))
    return folder


def _slower(model: KernelModel, dtype: str) -> KernelModel:
    by = {"rate": 1 / SLOWER, "bandwidth": 1 / SLOWER}
    parameters = {name: value * by.get(name, 1.0) for name, value in model.parameters.items()}
    return replace(model, dtype=dtype, parameters=parameters)


def job(folder: Path, held: Path, **given: object) -> Path:
    """Write a job of the smallest network on two CPU processes and return its path."""
    sizes = {name: getattr(SMALL, name) for name in ("layers", "hidden", "heads", "vocab", "seq")}
    cluster = {"device": "cpu", "nodes": 1, "gpus_per_node": 2, "profile": str(held)}
    steps = {"global_batch": 8, "micro_batch": 2, "precision": "fp32", "overlap_dp": False}
    path = folder / "job.json"
    path.write_text(json.dumps({"model": sizes, "cluster": cluster, "plan": steps | given}))
    return path


DEEP = Model(layers=8, hidden=64, heads=4, vocab=200, seq=32)
"""As many layers as four ranks of two stages have."""


def cluster(folder: Path, ranks: int) -> Cluster:
    """Return made-up cores, one a rank."""
    return Cluster.of(
        "cpu", nodes=1, gpus_per_node=ranks, domain_gpus=ranks, profile=str(folder), links=Links(host_bytes_per_s=1e9)
    )
