"""Everything that is wrong with a job, not only the first thing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.specs.cluster import Cluster
from sim.specs.fields import InputError
from sim.specs.job import Job, read_sections
from sim.specs.model import Model
from sim.specs.plan import Plan
from sim.specs.rules import RULES
from sim.specs.spread import Spread


def broken_rules(model: Model, cluster: Cluster, plan: Plan) -> list[InputError]:
    """Return one error per rule that `plan` breaks, in the order in which to mend them.

    What a rule allows takes the other knobs as they are, so mending one may change what the next says.
    """
    spread = Spread.of(plan, cluster)
    # A rule about a number that was left out only repeats what an earlier one says.
    broken = [rule for rule in RULES if rule.broken(model, spread) and getattr(plan, rule.knob) is not None]
    return [rule.error(plan, "plan", model, spread) for rule in broken]


def check_job(raw: Mapping[str, Any], folder: Path) -> tuple[Job | None, list[InputError]]:
    """Return the job if nothing is wrong with it, and all its problems; paths in it are relative to `folder`."""
    made, problems = read_sections(raw, folder)
    if {"model", "cluster", "plan"} <= made.keys():
        problems += broken_rules(made["model"], made["cluster"], made["plan"])
    return (None if problems else Job(**made)), problems
