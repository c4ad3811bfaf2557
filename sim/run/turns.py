"""How the parts of a job make its run longer and dearer, one after the other."""

from collections.abc import Mapping

from sim.engine.step import Step
from sim.run.measures import Measures
from sim.run.whole import Run, whole_run
from sim.specs import Around


def in_turn(step: Step, run: Run) -> Mapping[str, Measures]:
    """Return what the run of a step takes as each section of its job joins those before, by what is then in it.

    Its steps alone, with what they wait for data, with checkpoints and failures; then what becomes of that where it is
    rented, and beside other jobs, which are two ways to come by the same devices.
    """
    around, training = run.around, run.around.training
    assert training is not None
    fixed = around.prices if around.prices and not around.prices.files else None

    def alone(held: Around) -> Run:
        return whole_run(step, training, held.loading, held.checkpointing, fixed)

    found: dict[str, Measures] = {"steps alone": alone(Around())}
    if around.loading:
        found["with its data"] = alone(Around(loading=around.loading))
    if around.checkpointing:
        found["with checkpoints and failures"] = alone(Around(None, around.loading, around.checkpointing))
    if run.rental:
        found["rented"] = run
    if run.shared:
        found["beside other jobs"] = run.shared
    return found
