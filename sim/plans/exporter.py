"""What an exporter of plans is: how its files are made, what they say of a plan, and whose limits a plan must keep."""

from collections.abc import Callable
from dataclasses import dataclass

from sim.engine.step import Step
from sim.plans.exported import Exported
from sim.plans.targets import refusals
from sim.specs.job import Target


@dataclass(frozen=True)
class Exporter:
    """Files by which something else runs a plan: `name` to `trainsim emit`, `letter` in the table of knobs.

    write: the text of each file by name, from a plan and the stem of their names; the first file is the plan.
    expresses: fields of a plan that the files say; reading them back gives the same. target: whose limits the plan
    must keep; a search with that target proposes no other.
    """

    name: str
    write: Callable[[Exported, str], dict[str, str]]
    expresses: tuple[str, ...]
    letter: str
    target: Target = "any"

    def files(self, step: Step, stem: str) -> dict[str, str]:
        """Return the text of each file by name; raises InputError for what the plan asks beyond the target's limits."""
        for error in refusals(step.model, step.placed, self.target):
            raise error
        return self.write(Exported(step), stem)
