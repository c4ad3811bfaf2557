"""What exporters start from: a plan whose stages are treated alike, and its order."""

from dataclasses import dataclass

from sim.engine.step import Step
from sim.plans.targets import refusals
from sim.schedules import Schedule
from sim.specs import Model, PlacedPlan, Plan
from sim.specs.job import Target


@dataclass(frozen=True)
class Exported:
    """A plan that a target can run: `plan` says for all stages what `stages` said alike of each."""

    model: Model
    placed: PlacedPlan
    order: Schedule

    @classmethod
    def of(cls, step: Step, target: Target) -> "Exported":
        """Return what `target` is to run; raises InputError for the first limit of it that the plan breaks."""
        for error in refusals(step.model, step.placed, target):
            raise error
        return cls(step.model, step.placed.at(0), step.timeline.schedule)

    @property
    def plan(self) -> Plan:
        """The plan, without stages of their own."""
        return self.placed.plan

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of every model chunk, in stage order."""
        return self.plan.split(self.model)

    @property
    def uneven(self) -> bool:
        """Whether the chunks have different numbers of layers."""
        return len(set(self.layers)) > 1

    @property
    def copies(self) -> int:
        """Copies of what ZeRO shards over the data-parallel (and context-parallel) ranks."""
        return self.placed.dp * self.plan.cp // self.placed.shard
