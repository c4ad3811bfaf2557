"""Jobs that rent from the same offers, of which there is not enough for all: divided by a policy of `sim.cluster`."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from sim.cluster.jobs import ClusterJob, Kind
from sim.cluster.policies.base import Policy
from sim.cluster.prices import PriceTable
from sim.cluster.results import Simulated
from sim.cluster.simulate import Rounds, simulate
from sim.cluster.throughputs import Throughputs
from sim.market.grid import Grid
from sim.market.jobs import Moves
from sim.market.offers import Floats
from sim.market.rates import Rates, rates_of
from sim.specs.fields import InputError
from sim.units import many


def rent_together(
    jobs: Sequence[ClusterJob],
    steps_per_s: Rates,
    grid: Grid,
    instances: int | Mapping[str, int],
    policy: Policy,
    moves: Moves | None = None,
    rounds: Rounds | None = None,
) -> Simulated:
    """Return what becomes of jobs whose devices are rented, at most so many `instances` of each offer at a time.

    `steps_per_s`: by kind of job (type and number of devices) and device. `instances`: of every offer, or by its name.
    Types of devices in the result are names of offers; a device is paid while a job holds it, at the price of the
    moment, and the policy (by cost or not) is asked again when prices change. Every job pays `moves.usd` once beside
    that, as it does alone. The begin of the prices is time 0.

    Raises:
        InputError: as `sim.cluster.simulate`, no offer is there all the time, two have one name, or `instances`
            names none.
    """
    known, asked = moves or Moves(), rounds or Rounds()
    there = np.flatnonzero(np.isfinite(grid.seen).all(axis=0) & (grid.up_s == grid.step_s).all(axis=0))
    if not len(there):
        raise InputError("prices", len(grid.offers), "an offer that is there all the time")
    for name in instances if isinstance(instances, Mapping) else ():
        if name not in (offered := {offer.name for offer in grid.offers}):
            raise InputError(f"instances.{name}", name, "one of " + ", ".join(sorted(offered)))
    speed = _speeds(jobs, steps_per_s, grid, 1 + known.overhead)
    pace = sum(row / max(row.max(), 1e-300) for row in speed.values())
    order = sorted(there.tolist(), key=lambda n: -float(np.asarray(pace)[n]))
    names = tuple(grid.offers[n].name for n in order)
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice:
        raise InputError("prices", twice, "a name of its own for every offer: others' devices are called that too")
    devices = {grid.offers[n].name: _instances(instances, grid.offers[n].name) * grid.offers[n].devices for n in order}
    divides = copy(policy)
    divides.strict = True  # type: ignore[misc]  # a device that nobody is meant to have is not rented
    times: Floats = grid.step_s * np.arange(grid.steps, dtype=np.float64)
    changes = np.concatenate([[True], (np.diff(grid.kept[:, order], axis=0) != 0).any(axis=1)])
    found = simulate(
        jobs,
        Throughputs(names, {kind: row[order] for kind, row in speed.items()}),
        devices,
        divides,
        replace(asked, switch_s=known.again_s + known.write_s),
        usd_per_hour=PriceTable(names, times[changes], grid.kept[changes][:, order]),
    )
    away = len(grid.offers) - len(there)
    left = (f"left out: {many(away, 'offer')} not there all the time",) if away else ()
    assert found.paid_usd is not None  # prices are a table
    return replace(found, paid_usd=found.paid_usd + known.usd, assumptions=(*found.assumptions, *left, *ASSUMPTIONS))


ASSUMPTIONS = (
    "devices of an instance are rented one by one, and only to whom the policy gives time on them",
    "nobody is preempted by the cloud, a first start takes nothing, and moving between regions takes and costs no more "
    "than within one",
)


def _instances(stated: int | Mapping[str, int], name: str) -> int:
    return stated if isinstance(stated, int) else stated.get(name, 0)


def _speeds(jobs: Sequence[ClusterJob], steps_per_s: Rates, grid: Grid, longer: float) -> dict[Kind, Floats]:
    """Return steps/s (N,) of every kind of job by offer, whose training takes so many times as long by saving."""
    found = {}
    for name, gpus in dict.fromkeys(job.kind for job in jobs):
        rates = rates_of(steps_per_s, name, gpus)
        found[name, gpus] = np.array([rates.get(offer.device, 0.0) for offer in grid.offers]) / longer
    return found
