"""A measured run beside the simulation of the same jobs with the measured throughputs and cost of a move."""

from calibration.cluster.measure import Measured
from calibration.cluster.results import Both, Case
from calibration.cluster.rounds import Ran
from sim.cluster.policies import policy
from sim.cluster.simulate import Rounds, simulate


def compared(found: Measured, repetition: int = 1) -> Case:
    """Return completion times of jobs and device time of slots, measured and simulated."""
    rounds = Rounds(round_s=found.round_s, reset_s=0.0, switch_s=found.move_s)
    types = found.throughputs.types
    said = simulate(found.jobs, found.throughputs, dict.fromkeys(types, 1), policy(found.policy), rounds)
    held, used = held_s(found.ran), said.used_s.sum(axis=0).tolist()
    ends = zip(found.jobs, said.end_s.tolist(), strict=True)
    return Case(
        policy=found.policy,
        repetition=repetition,
        round_s=found.round_s,
        switch_s=found.move_s,
        load=found.load,
        moves_measured=len(found.ran.moves),
        moves_simulated=said.moves,
        jobs=[
            Both(name=job.job_type, measured_s=found.ran.completion_s[job.job_type], simulated_s=end_s)
            for job, end_s in ends
        ],
        slots=[
            Both(name=name, measured_s=held.get(name, 0.0), simulated_s=used_s)
            for name, used_s in zip(types, used, strict=True)
        ],
    )


def held_s(ran: Ran) -> dict[str, float]:
    """Return for how long each slot was held: to the end of every round, or of the job."""
    held: dict[str, float] = {}
    ends_s = [one.begin_s for one in ran.rounds[1:]] + [ran.rounds[-1].end_s]
    for one, end_s in zip(ran.rounds, ends_s, strict=True):
        for slot, job in one.jobs.items():
            lasted_s = min(end_s, ran.completion_s[job]) - one.begin_s
            held[slot] = held.get(slot, 0.0) + lasted_s
    return held
