"""How many steps to leave between two checkpoints: the answer of a policy beside those of others."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import numpy as np

from sim.checkpointing.durations import Kind, Times
from sim.checkpointing.failures import Availability, Fleet, availability
from sim.checkpointing.laws import costs, frequencies, goodputs
from sim.specs import Checkpointing, Failures, InputError
from sim.specs.arguments import checked
from sim.specs.checkpointing import MOST_STEPS
from sim.units import grouped, lasting, percent, seconds

POLICIES = {
    "checkfreq": "the least within the overhead budget, contention included",
    "checkfreq-rule": "CheckFreq's rule before it has noticed contention",
    "checkfreq-released": "the rule with the released code's stall: all of the snapshot",
    "young": "Young's interval sqrt(2 C M)",
    "daly": "Daly's higher-order interval",
    "best": "the most goodput of all",
}
OUTPUT = {"checkfreq": "bounded", "checkfreq-rule": "checkfreq", "checkfreq-released": "released"}
RARE = 5e-4
"""Share of the time without nodes that is not told."""
MOST_TRIED = 1_000_000
"""Values of k that are tried one by one; beyond, they are searched."""


@dataclass(frozen=True)
class Choice:
    """Saving every `steps_between` steps; fractions of training alone (overhead) and of all time (goodput).

    Without failures (no `mtbf_s`) goodput is what the overhead leaves.
    """

    policy: str
    steps_between: int
    interval_s: float
    overhead_fraction: float
    lost_work_s: float
    recovery_s: float
    goodput: float

    @property
    def overhead_percent(self) -> float:
        """The overhead in percent."""
        return 100 * self.overhead_fraction


@dataclass(frozen=True)
class Advice:
    """When to save, what that costs and why; plain data.

    `exposed_s`, `slowed_s` and `waited_s` are what training loses by one checkpoint: to the snapshot, to contention and
    to the one before that is still being written. `lost_work_s` is the mean that a failure loses; `recovery_s` that and
    reading the state back. `available_fraction` of the time the run has its nodes, which goodput contains.
    """

    steps_between: int
    snapshot: Kind
    overhead_fraction: float
    exposed_s: float
    slowed_s: float
    waited_s: float
    interval_s: float
    written_after_s: float
    persist_s: float
    state_bytes: float
    mtbf_s: float | None
    available_fraction: float
    lost_work_s: float
    recovery_s: float
    goodput: float
    policies: tuple[Choice, ...]
    why: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def overhead_percent(self) -> float:
        """The overhead in percent."""
        return 100 * self.overhead_fraction

    def choice(self, policy: str) -> Choice:
        """Return what a policy picks.

        Raises:
            InputError: no such policy, or one that needs an MTBF.
        """
        found = {held.policy: held for held in self.policies}
        if policy not in found:
            raise InputError("policy", policy, "one of " + ", ".join(found))
        return found[policy]


@checked
def plan(
    times: Times,
    checkpointing: Checkpointing | None = None,
    mtbf_s: float | None = None,
    fleet: Fleet | None = None,
) -> Advice:
    """Return how often to save, beside what each policy says.

    mtbf_s: mean seconds between failures of the whole run; left out nothing fails, and only the rules of CheckFreq
    answer. fleet: nodes and replicas, for failures after which fewer replicas go on.

    Raises:
        InputError: `every` is a policy that needs an MTBF, the snapshot does not fit, or the MTBF is not above 0.
    """
    given = checkpointing or Checkpointing()
    if mtbf_s is not None and not 0 < mtbf_s < inf:
        raise InputError("mtbf_s", mtbf_s, "seconds above 0, or left out: nothing fails")
    if given.snapshot != "auto":
        times = replace(times, snapshot=given.snapshot)
    odds = Odds.of(times, given.failures, mtbf_s, fleet)
    picked = picks(times, given.overhead_budget, odds)
    if isinstance(given.every, int):
        picked = {"stated": given.every} | picked
    elif given.every not in picked:
        raise InputError("checkpointing.every", given.every, f"steps, or {', '.join(picked)}, where nothing fails")
    rows = tuple(chosen(times, k, odds, policy) for policy, k in picked.items())
    own = next(row for row in rows if row.policy in ("stated", given.every))
    found = costs()(times.values | {"steps_between": own.steps_between})
    cost: dict[str, Any] = {name: float(found[name]) for name in (*LOSSES, "written_after_s")}
    held = {name: value for name, value in asdict(own).items() if name != "policy"}
    return Advice(
        snapshot=times.kind,
        persist_s=times.persist_s,
        state_bytes=times.state_bytes,
        mtbf_s=mtbf_s,
        available_fraction=odds.available.fraction,
        policies=rows,
        why=tuple(_reasons(times, given, own, cost, odds)),
        assumptions=given.assumptions,
        **held,
        **cost,
    )


@dataclass(frozen=True)
class Odds:
    """What failures do to a run: how often they strike, how long it then restarts, whether it has its nodes."""

    mtbf_s: float | None
    restart_s: float
    available: Availability

    @classmethod
    def of(cls, times: Times, failures: Failures, mtbf_s: float | None, fleet: Fleet | None = None) -> "Odds":
        """Return those of a run; without an MTBF nothing fails."""
        restart = failures.restart_s
        if mtbf_s is None:
            return cls(None, restart, Availability(1.0, 0.0, 0.0, 0.0))
        return cls(mtbf_s, restart, availability(failures, mtbf_s, fleet, restart + times.reload_s))


def goodput(times: Times, steps_between: Any, odds: Odds) -> Any:
    """Return the share of the time that trains what is kept, of one k or of an array of them."""
    values = times.values | {"steps_between": steps_between}
    if odds.mtbf_s is None:
        return 1 / (1 + costs()(values)["overhead_fraction"])
    kept: Any = 0.0
    with np.errstate(over="ignore", under="ignore"):  # far beyond the MTBF nothing is kept
        for phase in odds.available.phases:  # fewer replicas: longer steps, fewer failures, the same restarts
            slower = {name: values[name] / phase.replicas for name in ("iteration_s", "hideable_s")}
            often = {"mtbf_s": odds.mtbf_s / phase.replicas, "regrowths_per_s": phase.regrowths_per_s}
            found = goodputs()(values | slower | often | {"restart_s": odds.restart_s})
            kept = kept + phase.time * phase.replicas * found["goodput"]
    return kept


def chosen(times: Times, steps_between: int, odds: Odds, policy: str) -> Choice:
    """Return what saving every `steps_between` steps means."""
    found = costs()(times.values | {"steps_between": steps_between})
    names = ("interval_s", "overhead_fraction", "lost_work_s", "recovery_s")
    numbers = {name: float(found[name]) for name in names}
    return Choice(policy, steps_between, goodput=float(goodput(times, steps_between, odds)), **numbers)


def picks(times: Times, overhead_budget: float, odds: Odds) -> dict[str, int]:
    """Return k by policy; without an MTBF by the rules that need none."""
    fails = odds.mtbf_s is not None
    values = times.values | {"overhead_budget": overhead_budget, "mtbf_s": odds.mtbf_s or 1.0}
    found = {name: _whole(k) for name, k in frequencies()(values).items()}
    names = POLICIES if fails else OUTPUT
    answers = {name: found[OUTPUT.get(name, name)] for name in names if name != "best"}
    return answers | ({"best": _best(times, found["at_once"], odds)} if fails else {})


def _whole(k: Any) -> int:
    return int(min(MOST_STEPS, float(k)))


def _best(times: Times, at_once: int, odds: Odds) -> int:
    """Return the k of most goodput. From `at_once` on its log is concave in k; below, every k is tried."""

    def at(k: Any) -> Any:
        return goodput(times, k, odds)

    low, high = at_once, max(at_once, _whole(100 * (odds.mtbf_s or 1.0) / times.iteration_s))
    while high - low > 2:
        third = (high - low) // 3
        left, right = at(low + third), at(high - third)
        if left < right:
            low += third
        else:
            high -= third
    few = np.arange(max(1, at_once - MOST_TRIED), at_once)
    tried = np.concatenate([few, np.arange(low, high + 1)])
    return int(tried[np.argmax(np.zeros(len(tried)) + at(tried))])


def often(steps_between: int) -> str:
    """Return k in words: "every 89 steps"."""
    return "after every step" if steps_between == 1 else f"every {grouped(steps_between)} steps"


def _reasons(times: Times, given: Checkpointing, own: Choice, cost: dict[str, float], odds: Odds) -> Iterator[str]:
    yield SNAPSHOTS[times.kind](times)
    lost = [f"{seconds(value)} {what}" for name, what in LOSSES.items() if (value := cost[name]) > 0]
    every = often(own.steps_between)
    does = f"costs {percent(own.overhead_fraction)}: {', '.join(lost)}" if lost else "costs nothing, as all is hidden"
    yield f"a checkpoint {every} ({lasting(own.interval_s)}) {does}"
    at_once = float(frequencies()(times.values | {"overhead_budget": given.overhead_budget, "mtbf_s": 1.0})["at_once"])
    if 1 < own.steps_between <= at_once:
        yield f"below {at_once:.0f} steps one would still be written when the next is due"
    if odds.mtbf_s is None:
        return
    after = f"{seconds(odds.restart_s)} to restart, {seconds(times.reload_s)} to read"
    yield f"a failure every {lasting(odds.mtbf_s)} loses {seconds(own.lost_work_s)} of work, {after}"
    share = 1 - odds.available.fraction
    if share >= RARE:
        spare = given.failures.spares
        nodes = "no spare node" if not spare else "one spare node" if spare == 1 else f"{spare} spare nodes"
        goes_on = "fewer replicas train" if given.failures.elastic else "nothing trains"
        away = f"a node that failed is away for {lasting(given.failures.repair_s)}"
        yield f"{away}, with {nodes}: {goes_on}, which takes {percent(share)}"


SNAPSHOTS: dict[Kind, Callable[[Times], str]] = {
    "device": lambda t: f"the snapshot is made on the device: it fits, {seconds(t.snapshot_s)}",
    "host": lambda t: (
        f"the snapshot is made in host memory, {seconds(t.snapshot_s)}, of which "
        f"{seconds(min(t.snapshot_s, t.hideable_s))} hide before the next weight update"
    ),
    "none": lambda t: f"no snapshot: training waits {seconds(t.snapshot_s)} until the state is written",
}
LOSSES = {
    "exposed_s": "until the snapshot is made",
    "slowed_s": "to contention while it is written",
    "waited_s": "until the one before is written",
}
