"""Jobs as plain data, and plans of a search as numbered files that `trainsim simulate` runs."""

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from sim.specs import Around, Cluster, Model, Plan
from sim.specs.files import write_all
from sim.specs.plan import PER_STAGE

NUMBERED = re.compile(r"plan-([0-9]{1,9})\.json")
"""Names of a search's plan files; a search into the same folder replaces them."""


def job_data(model: Model, cluster: Cluster, plan: Plan, around: Around | None = None) -> dict[str, Any]:
    """Return a job as plain data; reading it gives the same model, cluster and plan, and the same around them."""
    stated = {"table": model.table.data()} if model.table else plain(model)
    own = PER_STAGE if plan.stages else ()
    planned = {name: value for name, value in plain(plan).items() if name not in own}
    job = {"model": stated, "cluster": plain(cluster), "plan": planned}
    return job | {name: plain(section, assumed=False) for name, section in (around or Around()).sections.items()}


def plain(spec: Any, *, assumed: bool = True) -> dict[str, Any]:
    """Return what a spec states as plain data: neither what is unset nor notes on what was assumed.

    assumed: also the values that were assumed; left out they are assumed, and told, again when the data is read.
    """
    values = {f.name: getattr(spec, f.name) for f in fields(spec) if f.init}
    if not assumed:
        filled = {line.partition(" = ")[0].rpartition(".")[2] for line in getattr(spec, "assumptions", ())}
        values = {k: v for k, v in values.items() if k not in filled}
    if isinstance(spec, Plan) and spec.stages:
        values = {k: v for k, v in values.items() if k not in PER_STAGE}  # the stages say it
    return {k: _plain(v, assumed) for k, v in values.items() if v is not None and v != ()}


def _plain(value: Any, assumed: bool) -> Any:
    if isinstance(value, tuple):
        return [_plain(v, assumed) for v in value]
    return plain(value, assumed=assumed) if hasattr(value, "__dataclass_fields__") else value


def save_numbered(plans: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Write plan-1.json, plan-2.json, ... into `folder` and return their paths, all or none; older ones beyond go."""
    paths = [folder / f"plan-{n}.json" for n in range(1, len(plans) + 1)]
    write_all({path: json.dumps(data, indent=1) + "\n" for path, data in zip(paths, plans, strict=True)})
    for old in folder.glob("plan-*.json"):
        if (found := NUMBERED.fullmatch(old.name)) and int(found[1]) > len(plans):
            old.unlink()
    return paths
