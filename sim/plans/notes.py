"""What a user should know of an exported plan that is no reason to refuse it."""

from collections.abc import Iterator

from sim.engine.step import Step
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


def _strange(model: Model) -> list[str]:
    held = {name: getattr(model, name) for name, usual in BLOCKS.items() if getattr(model, name) != usual}
    return [f"model.{name} {str(value).lower()}" for name, value in held.items()]
