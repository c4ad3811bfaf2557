"""Plans taken away: files that real frameworks execute."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from sim.engine.step import Step
from sim.plans.torch_csv import torch_csv
from sim.plans.torchtitan import torchtitan
from sim.specs import InputError
from sim.specs.arguments import checked

TARGETS: dict[str, Callable[[Step], str]] = {"torch-csv": torch_csv, "torchtitan": torchtitan}


@runtime_checkable
class HasStep(Protocol):
    """A ranked plan: anything that carries its confirmed step."""

    @property
    def step(self) -> Step:
        """The step."""


@checked
def emit(plan: Step | HasStep, target: str) -> str:
    """Return the text that makes `target` run the plan: torch-csv or torchtitan.

    Raises:
        InputError: an unknown target, or the plan asks for what the target cannot express.
    """
    if target not in TARGETS:
        raise InputError("target", target, "one of " + ", ".join(TARGETS))
    return TARGETS[target](getattr(plan, "step", plan))  # type: ignore[arg-type]
