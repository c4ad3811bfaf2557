"""Checkpoints in words: how often to save and what a run with failures keeps."""

from collections.abc import Iterator

from sim.checkpointing import Advice, Simulated, Times
from sim.checkpointing.advice import often
from sim.units import digits3, lasting, many, percent, seconds, si


def answer_plan(advice: Advice, times: Times) -> Iterator[str]:
    """Yield the answer, the reasons and what each policy would do."""
    kept = f"; goodput {percent(advice.goodput)}" if advice.mtbf_s else ""
    yield (
        f"Save {often(advice.steps_between)} ({seconds(advice.interval_s)}): overhead "
        f"{percent(advice.overhead_fraction)}, a failure costs {seconds(advice.recovery_s)} of work and reading{kept}."
    )
    yield (
        f"The state is {si(advice.state_bytes, 'B')}: {seconds(times.persist_s)} to write, "
        f"{seconds(times.reload_s)} to read, beside steps of {seconds(times.iteration_s)}."
    )
    yield from advice.why
    for row in advice.policies:
        yield (
            f"{row.policy}: {often(row.steps_between)}, overhead {percent(row.overhead_fraction)}, "
            f"recovery {seconds(row.recovery_s)}, goodput {percent(row.goodput)}"
        )


def answer_simulated(found: Simulated) -> Iterator[str]:
    """Yield what became of the runs."""
    low, high = found.goodput_interval
    runs = f"{len(found.samples)} runs" if len(found.samples) > 1 else "one run"
    spread = f" ({percent(low)} to {percent(high)} in four runs of five)" if len(found.samples) > 1 else ""
    yield f"Goodput {percent(found.goodput)}{spread} in {runs} of {lasting(found.samples[0].seconds)}."
    yield (
        f"A checkpoint {often(found.steps_between)}, {digits3(found.checkpoints)} of them, overhead "
        f"{percent(found.overhead_percent / 100)}; the nodes are there {percent(found.available_fraction)} of the time."
    )
    if found.failures:
        yield (
            f"{digits3(found.failures)} failures: each loses {seconds(found.lost_work_s)} of work, at most "
            f"{many(found.max_lost_steps, 'step')}, and {seconds(found.down_s)} until training goes on or the run "
            "ends."
        )
