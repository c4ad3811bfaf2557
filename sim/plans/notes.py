"""What a user should know of an exported plan that is no reason to refuse it."""

from collections.abc import Iterator

from sim.engine.step import Step
from sim.plans.deepspeed import overlaps
from sim.plans.targets import RUN_BY_TORCH
from sim.specs import Model
from sim.specs.job import Target

BLOCKS = {"norm": "rmsnorm", "positions": "rope", "gated_mlp": True}
"""What torchtitan's language models share (0.3.0: `models/common/decoder.py`, `rope.py`, `feed_forward.py`)."""


def notes(step: Step, target: Target) -> Iterator[str]:
    """Yield where what was simulated differs from what `target` runs."""
    if target in RUN_BY_TORCH:
        if step.plan.framework != "torch":
            yield f"predicted with framework {step.plan.framework}: plan.framework torch has torchtitan's memory law"
        if strange := _strange(step.model):
            yield f"torchtitan has no network with {', '.join(strange)}: {step.model.name} must be added to it"
    if target == "deepspeed":
        yield from _of_deepspeed(step)


def _of_deepspeed(step: Step) -> Iterator[str]:
    """Yield what its engine does whatever the plan says, and what its configuration leaves to the program."""
    plan = step.placed.at(0).plan
    if plan.overlap_dp and step.placed.dp > 1 and not overlaps(plan):
        yield "predicted with overlap_dp true: this plan's gradients DeepSpeed reduces after the backward pass"
    if plan.pp > 1:
        if not plan.blocking_sends:
            yield "predicted with blocking_sends false: DeepSpeed's pipeline stands still while it sends (p2p.py)"
        split = f"PipelineModule(..., num_stages={plan.pp}, partition_method='type:<class of a layer>')"
        yield f"DeepSpeed reads pipeline.stages nowhere: the program gives {split}"


def _strange(model: Model) -> list[str]:
    held = {name: getattr(model, name) for name, usual in BLOCKS.items() if getattr(model, name) != usual}
    return [f"model.{name} {str(value).lower()}" for name, value in held.items()]
