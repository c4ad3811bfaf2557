"""Small markets by hand and by chance."""

import numpy as np

from sim.market.grid import Grid, price_grid
from sim.market.jobs import Moves, RentedJob
from sim.market.offers import History, Market, Offer
from sim.specs.tariffs import Tariff

HOUR = 3_600.0
TARIFFS = {
    name: Tariff(cloud=name, usd_per_gb_between_regions=0.02, usd_per_gb_out=out)
    for name, out in (("aws", 0.09), ("azure", 0.087))
}


def offer(zone="us-east-1a", device="v100", devices=1, cloud="aws", billing="spot"):
    """Return an offer; its region is the zone without the last letter."""
    return Offer(
        cloud=cloud, region=zone[:-1], zone=zone, instance=f"{devices}x{device}", device=device, devices=devices,
        billing=billing,
    )  # fmt: skip


def priced(*rows, of=None):
    """Return the history of an offer with prices hour by hour, equal successive ones too."""
    return History(of or offer(), HOUR * np.arange(len(rows)), np.array(rows, dtype=float))


def hours(market, count, available=None, step_s=HOUR):
    """Return the prices of the first hours."""
    return price_grid(market, 0.0, count * HOUR, step_s, available)


def a_job(**changed):
    """Return four hours on a V100."""
    return RentedJob(**{"steps": 4 * HOUR, "steps_per_s": {"v100": 1.0, "k80": 0.25}} | changed)


def by_chance(seed: int, *, longest: int = 40) -> tuple[RentedJob, Grid, Moves]:
    """Return a job, prices with offers that come and go, and what moving costs."""
    rng = np.random.default_rng(seed)
    count, steps = int(rng.integers(1, 7)), int(rng.integers(3, longest))
    devices, clouds = ("v100", "k80", "p100"), ("aws", "azure")
    histories, available = [], {}
    for n in range(count):
        one = offer(
            f"r{rng.integers(0, 3)}{'abcdefg'[n]}", devices[rng.integers(0, 3)], int(rng.integers(1, 3)),
            clouds[rng.integers(0, 2)], "on-demand" if rng.random() < 0.2 else "spot",
        )  # fmt: skip
        histories.append(priced(*rng.lognormal(0.0, 0.7, steps), of=one))
        if n and one.billing == "spot" and rng.random() < 0.7:
            ends = np.cumsum(rng.exponential(rng.uniform(0.5, 12) * HOUR, 2 * steps)) - HOUR
            available[one] = ends.reshape(-1, 2)
    speed = {name: float(rng.uniform(0.2, 2)) for name in devices}
    job = a_job(
        steps=float(rng.uniform(0.2, 0.6)) * steps * HOUR * 0.2, steps_per_s=speed, whole=bool(rng.random() < 0.5),
        usd_per_hour=float(rng.choice([0.0, 0.0, 0.5])),
        deadline_s=float(rng.uniform(0.5, 1.0) * steps * HOUR) if rng.random() < 0.5 else None,
    )  # fmt: skip
    moves = Moves(
        boot_s=float(rng.uniform(0, 3_000)), restart_s=float(rng.choice([0.0, 300.0, 4_000.0])),
        write_s=float(rng.choice([0.0, 200.0])), read_s=float(rng.choice([0.0, 200.0])),
        state_bytes=float(rng.choice([0.0, 1e10])), data_bytes=float(rng.choice([0.0, 1e11])),
        lost_work_s=float(rng.choice([0.0, 1_800.0])), overhead=float(rng.choice([0.0, 0.03])), tariffs=TARIFFS,
    )  # fmt: skip
    return job, hours(Market(tuple(histories)), steps, available), moves
