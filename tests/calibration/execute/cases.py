"""A profile with made-up numbers and the smallest network, for what does not depend on how fast this machine is."""

import json
from pathlib import Path

from calibration.execute.limits import as_executed
from sim.specs import Model, Plan

SMALL = Model(layers=2, hidden=64, heads=2, vocab=200, seq=32)


def plan(**given: object) -> Plan:
    """Return a plan as it is executed on the CPU: global batch 8 in microbatches of 2."""
    usual = {"global_batch": 8, "micro_batch": 2, "precision": "fp32", "overlap_dp": False, "dp": 1}
    return as_executed(Plan(**{**usual, **given}))


def job(folder: Path, profile: Path, **given: object) -> Path:
    """Write a job of the smallest network on two CPU processes and return its path."""
    sizes = {name: getattr(SMALL, name) for name in ("layers", "hidden", "heads", "vocab", "seq")}
    cluster = {"device": "cpu", "nodes": 1, "gpus_per_node": 2, "profile": str(profile)}
    steps = {"global_batch": 8, "micro_batch": 2, "precision": "fp32", "overlap_dp": False}
    path = folder / "job.json"
    path.write_text(json.dumps({"model": sizes, "cluster": cluster, "plan": steps | given}))
    return path
