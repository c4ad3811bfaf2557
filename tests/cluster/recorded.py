"""What the published system was seen to allocate (`lp_states.json.gz`, `replay`)."""

import ast
import gzip
import json
from dataclasses import dataclass
from functools import cache

import numpy as np

from sim.cluster.state import Floats, Pairs, State
from tests.cluster.states import TYPES
from tests.oracle import reference

REMEMBERS = ("fifo", "gandiva", "allox", "finish_time_fairness", "finish_time_fairness_perf")
"""Policies whose later calls follow from earlier ones."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A call of a policy: what it saw and the shares (n + k, m) that it gave. known: all calls before are recorded."""

    tag: str
    policy: str
    call: int
    state: State
    shares: Floats
    known: bool

    def __str__(self) -> str:
        return f"{self.tag}-{self.policy}-{self.call}"


@cache
def runs() -> list[list[Recorded]]:
    """Return the recorded calls by run, in order."""
    with gzip.open(reference("cluster/lp_states.json.gz"), "rt") as file:
        entries = json.load(file)
    found: list[list[Recorded]] = []
    for entry in entries:
        state, shares = _state(entry)
        follows = bool(found) and (found[-1][-1].tag, found[-1][-1].policy) == (entry["tag"], entry["policy"])
        before = found[-1] if follows and found[-1][-1].call < entry["call"] else []
        known = entry["call"] == len(before) or entry["policy"] not in REMEMBERS
        call = Recorded(entry["tag"], entry["policy"], entry["call"], state, shares, known)
        if before:
            before.append(call)
        else:
            found.append([call])
    return found


def _state(entry) -> tuple[State, Floats]:
    seen, given = entry["state"], entry["allocation"]
    types = [name for name in TYPES if name in seen["cluster_spec"]]
    ids = sorted((job for job in seen["throughputs"] if job.isdigit()), key=int)
    row = {int(job): at for at, job in enumerate(ids)}
    pairs = [pair for pair in given if not pair.isdigit()]
    both = [ast.literal_eval(pair) for pair in pairs]
    rates = seen["throughputs"]
    # Gandiva was recorded without the throughputs of pairs: they are taken to lose nothing.
    together = [
        [rates[pair][name] if pair in rates else [rates[str(job)][name] for job in jobs] for name in types]
        for pair, jobs in zip(pairs, both, strict=True)
    ]

    def each(field: str) -> Floats:
        return np.array([seen[field][job] for job in ids], dtype=float)

    state = State(
        ids=np.array([int(job) for job in ids]),
        types=tuple(types),
        steps_per_s=np.array([[rates[job][name] for name in types] for job in ids]),
        scale=each("scale_factors").astype(np.int64),
        devices=np.array([seen["cluster_spec"][name] for name in types]),
        steps_left=each("num_steps_remaining"),
        waited_s=each("times_since_start"),
        weights=each("priority_weights"),
        pairs=Pairs(
            np.array([[row[job] for job in jobs] for jobs in both], dtype=np.int64).reshape(-1, 2),
            np.array(together, dtype=float).reshape(-1, len(types), 2),
        ),
    )
    return state, np.array([[given[job][name] for name in types] for job in [*ids, *pairs]])


def replayed(name: str) -> list[dict[int, dict[str, float]]]:
    """Return every allocation of a recorded run, in order: of each active job its shares by type."""
    with gzip.open(reference(f"cluster/replay/{name}.json.gz"), "rt") as file:
        run = json.load(file)
    return [{int(job): shares for job, shares in given.items()} for _, given in run["all_allocations"]]
