"""A shared cluster in words."""

from collections.abc import Iterator, Sequence

from sim.cluster.results import Simulated
from sim.cluster.sensitivity import Sensitivity
from sim.units import digits3, grouped, lasting, many, percent


def answer_cluster(found: Simulated) -> Iterator[str]:
    """Yield what became of the jobs, what the devices did, and what that rests on."""
    ended = len(set(found.counted) - set(found.not_ended))
    if not ended:
        yield "No job has ended."
        return
    window = "" if len(found.counted) == len(found.jobs) else f" ({found.counted.start}:{found.counted.stop})"
    yield (
        f"{found.policy}: {many(ended, 'job')}{window} {'ends' if ended == 1 else 'end'} within "
        f"{lasting(found.makespan_s)}, after {lasting(found.average_jct_s)} on average; fairness rho "
        f"{digits3(found.mean_fairness)} (below 1: sooner than on an equal share)."
    )
    used = ", ".join(
        f"{name} {percent(share)}" for name, share in zip(found.types, found.utilisation.tolist(), strict=True)
    )
    cost = "" if found.cost_usd is None else f"; {digits3(found.cost_usd)} USD"
    yield f"Devices are held {percent(found.mean_utilisation)} of the time: {used}{cost}."
    kept = f", {percent(found.leases_extended / found.leases_offered)} stay" if found.leases_offered else ""
    yield (
        f"{many(found.rounds, 'round')}, {grouped(found.rounds_skipped)} of them alike; shares were computed "
        f"{many(found.allocations, 'time')}; jobs moved or resumed {many(found.moves, 'time')}{kept}."
    )
    if found.not_ended:
        yield f"Not ended: {', '.join(f'job {number}' for number in found.not_ended[:10])}."
    if found.late:
        late = len(found.late)
        yield f"{many(late, 'job')} {'ends after its' if late == 1 else 'end after their'} deadline."
    yield from (f"Assumed: {text}" for text in found.assumptions)


def answer_split(losses: Sequence[float]) -> Iterator[str]:
    """Yield what splitting the policy's problem into parts loses of its objective."""
    if losses:
        yield (
            f"Split, the policy's objective is {percent(sum(losses) / len(losses))} worse than as one problem "
            f"({percent(max(losses))} at most), in {grouped(len(losses))} of its computations, solved both ways."
        )


def answer_sensitivity(found: Sensitivity) -> Iterator[str]:
    """Yield how far true speeds other than predicted move the result."""
    (a, b), (c, d) = found.makespan_interval_s, found.average_jct_interval_s
    yield (
        f"With {many(found.draws, 'draw')} of the predicted speeds the makespan is {lasting(a)} to {lasting(b)}, "
        f"completion takes {lasting(c)} to {lasting(d)} on average (central 80 %)."
    )
