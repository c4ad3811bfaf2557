"""The plan that a careful engineer would write down without a tool, as the yardstick of the tuner."""

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Any

from sim.engine.step import Step, simulate
from sim.plans.targets import OVERLAPS
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.job import Target
from sim.specs.plan import RECOMPUTE
from sim.specs.rules import divisors, shards
from sim.tuner.space import same_once


def textbook(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    kept: Mapping[str, Any] | None = None,
    target: Target = "any",
) -> Step | None:
    """Return the common heuristic's step, or None where none of its plans fits.

    tp inside the node as far as memory needs it (traced networks and recurrent layers have none), then pp, ZeRO-1,
    micro-batch 1; full recompute only if nothing else fits (Narayanan et al. 2021, arXiv 2104.04473, section 3,
    takeaways 1 and 2); experts over the devices of a node. `kept` are settings that the job gives; `target` may reduce
    gradients after the backward pass, whatever these say.
    """
    for plan in _candidates(model, cluster, global_batch, kept or {}):
        own = plan if target not in OVERLAPS or OVERLAPS[target](plan) else plan.but(overlap_dp=False)
        try:
            step = simulate(model, cluster, own)
        except InputError:
            continue  # this mesh breaks a rule; the next one is a little larger
        if step.fits == "yes":
            return step
    return None


def _candidates(model: Model, cluster: Cluster, global_batch: int, kept: Mapping[str, Any]) -> Iterator[Plan]:
    plan = Plan(global_batch=global_batch, **kept)
    inside = [1] if model.whole_layers else divisors(cluster.gpus_per_node)
    experts = {"ep": gcd(model.experts, cluster.gpus_per_node)} if model.experts else {}
    kinds = ["none", "full"] if model.whole_layers else same_once(model, plan.framework, RECOMPUTE)
    for recompute in kinds[-2:]:
        meshes = [(tp, 1) for tp in inside] + [(inside[-1], pp) for pp in divisors(cluster.gpus)[1:]]
        for tp, pp in meshes:
            if cluster.gpus % (tp * pp) == 0:
                given = {**experts, **kept, "tp": tp, "pp": pp, "recompute": recompute}
                spread = given.get("ep", 1) * given.get("etp", 1)
                zero = 1 if shards(model, cluster.gpus // (tp * pp), tp, spread) else 0
                yield Plan(global_batch=global_batch, **given | {"zero": zero})
