"""Slow devices and jitter: replicas of a pipeline that differ, and wait for each other to reduce gradients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray

from sim.engine.clock import MOST_STEP_S, OUT_OF_PROPORTION, TICK_S
from sim.engine.graph import Graph, Ints
from sim.engine.program import Program, Run
from sim.specs import InputError

MAX_REPLICAS = 64
Runner = Callable[[Program], Run]


@dataclass(frozen=True)
class Noise:
    """What sets devices apart.

    jitter: standard deviation of the log of every operation's duration, drawn by `seed`. slow[replica, rank]: factor
    on the durations of one pipeline rank of one data-parallel replica. replicas: how many are simulated where every
    one is different (with jitter); without jitter only those named in `slow` and one that stands for all others are.

    Raises:
        InputError: a number is out of range.
    """

    seed: int = 0
    jitter: float = 0.0
    slow: Mapping[tuple[int, int], float] = field(default_factory=dict)
    replicas: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.slow, Mapping):
            raise InputError("noise.slow", self.slow, "a mapping of (replica, pipeline rank) to a factor")
        kinds: dict[str, tuple[type, str]] = dict.fromkeys(("seed", "replicas"), (Integral, "a whole number"))
        for name, (kind, words) in (kinds | {"jitter": (Real, "a number")}).items():
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"noise.{name}", getattr(self, name), words)
        if self.seed < 0:
            raise InputError("noise.seed", self.seed, "0 or more")
        if not 0 <= self.jitter <= 1:
            raise InputError("noise.jitter", self.jitter, "0 to 1")
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise InputError("noise.replicas", self.replicas, f"1 to {MAX_REPLICAS}")
        for place, factor in self.slow.items():
            if not (isinstance(place, tuple) and len(place) == 2 and all(isinstance(i, Integral) for i in place)):
                raise InputError("noise.slow", place, "keys (replica, pipeline rank)")
            if not isinstance(factor, int | float) or not 0 < factor < np.inf:
                raise InputError(f"noise.slow[{place}]", factor, "a factor above 0")

    def distinct(self, dp: int, ranks: int) -> int:
        """Return how many of `dp` replicas are simulated.

        Raises:
            InputError: a named replica or rank is not there.
        """
        for replica, rank in self.slow:
            if not (0 <= replica < dp and 0 <= rank < ranks):
                raise InputError("noise.slow", (replica, rank), f"replicas 0 to {dp - 1}, ranks 0 to {ranks - 1}")
        named = {replica for replica, _ in self.slow}
        others = self.replicas if self.jitter else min(1, dp - len(named))
        return min(dp, len(named) + others)


def run_noisy(program: Program, joint: NDArray[np.bool_], noise: Noise | None, copies: int, runner: Runner) -> Run:
    """Return the run of the replica that has the most to do, of `copies` that run side by side.

    joint: operations that all replicas do together: each waits for what it needs on every replica.

    Raises:
        InputError: the operations take longer than the clock counts, alone or with noise.
    """
    took = float(np.abs(program.duration).sum(dtype=float) + np.abs(program.lag).sum(dtype=float)) * TICK_S
    if took > MOST_STEP_S:
        raise InputError("step", f"{took:.3g} s of operations", f"at most {MOST_STEP_S:g} s: {OUT_OF_PROPORTION}")
    if noise is None:
        return runner(program)
    run = runner(replicated(_varied(program, noise, copies), joint, copies))
    n = len(program)
    each = (run.end - run.start).reshape(copies, n).sum(axis=1)
    most = int(np.argmax(each))
    part = slice(most * n, (most + 1) * n)
    graph = run.program.graph
    waiting = np.repeat(np.arange(len(graph)), np.diff(graph.first))
    its = (waiting // n == most) & (graph.source // n == most)
    own = replace(program, duration=run.program.duration[part], lag=run.program.lag[its])
    return Run(own, run.start[part], run.end[part])


def _varied(program: Program, noise: Noise, copies: int) -> Program:
    """Return the durations of all copies, one after the other; the structure is still that of one."""
    rng = np.random.default_rng(noise.seed)
    factor = np.exp(noise.jitter * rng.standard_normal((copies, len(program))))
    place = {replica: at for at, replica in enumerate(sorted({replica for replica, _ in noise.slow}))}
    for (replica, rank), slower in sorted(noise.slow.items()):
        factor[place[replica], program.graph.rank == rank] *= slower
    with np.errstate(over="ignore"):
        took = program.duration * factor
        total_s = took.sum() * TICK_S
    if not total_s <= MOST_STEP_S:
        largest = max(noise.slow.values(), default=1.0)
        raise InputError("noise.slow", largest, f"factors that leave at most {MOST_STEP_S:g} s of operations")
    return replace(program, duration=np.rint(took).astype(np.int64).ravel())


def replicated(program: Program, joint: NDArray[np.bool_], copies: int) -> Program:
    """Return `copies` of a program beside each other; `program.duration` holds those of all copies."""
    g, n = program.graph, len(program.graph)
    lanes, ranks = int(g.lane.max()) + 1, int(g.rank.max()) + 1
    waiting = np.repeat(np.arange(n), np.diff(g.first))
    before = np.flatnonzero(joint & (g.previous >= 0))
    # What a joint operation needs elsewhere is what it needs here: its edges, and the one before it in its lane.
    shared = np.flatnonzero(joint[waiting])
    to = np.concatenate([waiting[shared], before])
    source = np.concatenate([g.source[shared], g.previous[before]])
    lag = np.concatenate([program.lag[shared], np.zeros(len(before), dtype=np.int64)])
    rows, nowhere = [], np.full(len(to), -1)
    for a in range(copies):
        rows.append(np.stack([waiting + a * n, g.source + a * n, program.lag, g.boundary]))
        rows += [np.stack([to + a * n, source + b * n, lag, nowhere]) for b in range(copies) if b != a]
    to, source, lag, boundary = np.concatenate(rows, axis=1)
    order = np.argsort(to, kind="stable")
    links = int(program.links.max(initial=-1)) + 1
    graph = Graph(
        rank=_shifted(g.rank, copies, ranks), stage=np.tile(g.stage, copies), kind=np.tile(g.kind, copies),
        microbatch=np.tile(g.microbatch, copies), lane=_shifted(g.lane, copies, lanes),
        first=np.searchsorted(to[order], np.arange(copies * n + 1)), source=source[order],
        boundary=boundary[order], second=np.tile(g.second, copies),
    )  # fmt: skip
    used = np.append(_shifted(program.first_link[:-1], copies, len(program.links)), copies * len(program.links))
    return Program(
        graph, program.duration, lag[order], np.tile(program.stream, copies),
        used if len(program.first_link) else program.first_link, _shifted(program.links, copies, links),
        np.tile(program.cause, copies), np.tile(program.sent, copies),
    )  # fmt: skip


def _shifted(values: Ints, copies: int, by: int) -> Ints:
    return np.concatenate([values + a * by for a in range(copies)])
