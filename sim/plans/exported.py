"""What exporters start from: a plan whose stages are treated alike, and its order."""

from dataclasses import dataclass
from functools import cached_property

from sim.engine.step import Step
from sim.schedules import Schedule
from sim.specs import Model, PlacedPlan, Plan


@dataclass(frozen=True)
class Exported:
    """A plan that a target can run: `plan` says for all stages what `stages` said alike of each."""

    step: Step

    @property
    def model(self) -> Model:
        """The network."""
        return self.step.model

    @property
    def order(self) -> Schedule:
        """The order of every rank."""
        return self.step.timeline.schedule

    @cached_property
    def placed(self) -> PlacedPlan:
        """The plan on its devices, without stages of their own."""
        return self.step.placed.at(0)

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
