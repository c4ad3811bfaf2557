"""The arrays that rounds work on, and the rule by which they go."""

from typing import NamedTuple

from sim.cluster.state import Floats, Ints

NOW, ROUND_END = range(2)
"""Places of the clock (s)."""
OFFERED, EXTENDED, MOVED, SKIPPED = range(4)
"""Counts: leases that could be extended, that were, jobs that resumed on other devices, rounds that were not run."""


class Rows(NamedTuple):
    """Jobs and pairs of jobs that can run, R of them, on m types.

    `job` (R, 2) are places in `Work`, -1 for no second one; `speed` (R, m, 2) in steps/s, `spread` the same where
    a row's devices are in more servers than they need. `had_s` (R, m) counts time since shares were last reset, from
    half a round on. `single` (n,) is the row of a job alone.
    """

    job: Ints
    scale: Ints
    speed: Floats
    spread: Floats
    share: Floats
    known: Ints
    had_s: Floats
    deficit_s: Floats
    single: Ints


class Fleet(NamedTuple):
    """`devices` of each type are numbered from `first`; `per_server` of them share a server."""

    first: Ints
    devices: Ints
    per_server: Ints


class Work(NamedTuple):
    """Of n jobs: steps left, whether they ran before, failures in a row, when they ended (-1: not yet; inf: given up).

    `switch_s`: what a job loses when it resumes or moves, `loading_s` what is left of that; `used_s` (n, m):
    device-seconds, of a pair half to either.
    """

    left: Floats
    ran: Ints
    failures: Ints
    end_s: Floats
    switch_s: Floats
    loading_s: Floats
    used_s: Floats


class Held(NamedTuple):
    """Of W devices: the row that has them (-1: none), and for how long they were held in all."""

    row: Ints
    busy_s: Floats


class Log(NamedTuple):
    """One entry per round, or per run of `repeats` like rounds: when it began, how long one takes, who held what."""

    start_s: Floats
    length_s: Floats
    repeats: Ints
    row: Ints


class Rule(NamedTuple):
    """How rounds go.

    `parity`: as published; `strict`: rows without a share stay out; `fixed`: types always come in the same order.
    """

    round_s: float
    parity: bool
    strict: bool
    fixed: bool
    reset_every_s: float


class Next(NamedTuple):
    """What ends a run of rounds: an arrival, or new shares where they are needed."""

    arrival_s: float
    last_reset_s: float
    needed: bool
