"""What a move costs a job: its state is written where it was and read where it goes on."""

from sim.checkpointing import times
from sim.engine.step import Step
from sim.specs import Checkpointing


def switch_s(step: Step, checkpointing: Checkpointing | None = None) -> float:
    """Return the seconds that a job with such steps loses when it is taken off its devices and resumed elsewhere.

    Nothing of it hides: the job is gone meanwhile.
    """
    held = times(step, checkpointing or Checkpointing())
    return held.persist_s + held.reload_s
