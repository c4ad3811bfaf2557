"""Days, GPU-hours, cost and energy of a whole training run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import hypot

from sim.engine.step import Step
from sim.market import Optimum, Rental
from sim.run.losses import Losses, losses, steps_of
from sim.run.measures import Interval, with_intervals
from sim.run.power import device_draw
from sim.run.rented import Rented, rented
from sim.run.shared import Shared, shared
from sim.specs import Around, Checkpointing, Loading, Prices, Sharing, Training
from sim.specs.arguments import checked
from sim.specs.fields import InputError, Told
from sim.units import DAY_S, HOUR_S, lasting

KWH_J = 3.6e6
LEAST_GOODPUT = 1e-12
"""Below this a run does not end: a second of training would take 30,000 years."""


@dataclass(frozen=True)
class Run:
    """The prediction of a whole run; plain data, intervals are the central 80 %.

    `steps` is whole, and `tokens` what they train on. `goodput` is the share of the wall time that trains what is kept,
    `losses` the other shares by cause; `paced_step_time_s` that of a step with what it waits for data (in the mean, as
    the first epoch fills caches), and `steps_between_checkpoints` those from one to the next. Energy in kWh is that of
    the devices times the site's PUE; mean power in W is that of one device. Cost is None where neither the job nor the
    catalog states a price.

    Where the job rents by files of prices, `rental` is what it rented: days are until it ends, GPU-hours and cost those
    that are paid, intervals lie between renting with the fast and with the slow wall time, and `optimum` bounds what
    any strategy pays (None where there are too many prices to tell).

    Where the job says who shares the cluster, `shared` is what becomes of the run there, on devices that are not
    rented; all else is the run by itself.
    """

    around: Around
    steps: int
    tokens: int
    goodput: float
    losses: Mapping[str, float]
    paced_step_time_s: float
    steps_between_checkpoints: int | None
    days: float
    days_interval: Interval
    gpu_hours: float
    gpu_hours_interval: Interval
    cost_usd: float | None
    cost_usd_interval: Interval | None
    energy_kwh: float
    energy_kwh_interval: Interval
    mean_power_w_per_gpu: float
    assumptions: tuple[str, ...]
    rental: Rental | None = None
    optimum: Optimum | None = None
    shared: Shared | None = None


@checked
def whole_run(
    step: Step,
    training: Training,
    loading: Loading | None = None,
    checkpointing: Checkpointing | None = None,
    prices: Prices | None = None,
    sharing: Sharing | None = None,
) -> Run:
    """Return what `training` takes when every step is like `step`, with its data and its checkpoints.

    Wall time = steps x step time / goodput, and all else is proportional to it: its intervals are the step's, with the
    luck of how often devices fail. Files of prices are rented by (`sim.market`), which takes time of its own.

    Raises:
        InputError: `training` states a goodput and there are checkpoints, whose goodput is computed; or a price beside
            `prices`; or nothing that fits is offered; or the cluster of `sharing` does not hold the run; or failures
            leave nothing of the training.
    """
    if prices and training.usd_per_gpu_hour is not None:
        raise InputError("training.usd_per_gpu_hour", training.usd_per_gpu_hour, "left out beside prices, which say it")
    steps = steps_of(step, training)
    lost = losses(step, training, loading, checkpointing, steps)
    if lost.saving and not lost.goodput >= LEAST_GOODPUT:
        kept = "failures so rare, or checkpoints and restarts so short, that some of the training is kept"
        raise InputError("checkpointing", Told(f"a failure every {lasting(lost.saving.mtbf_s)}"), kept)
    draw, gpus = device_draw(step, training.utilisation, lost.shares.get("data", 0.0)), step.placed.gpus
    price = gpu_hour_price(step, training, prices)
    wall_s = steps * step.step_time_s / lost.goodput
    fast_s, slow_s = step.profile.interval80(wall_s, hypot(step.sigma_log, lost.luck_log(wall_s)))

    def times(rate: float) -> tuple[float, Interval]:
        return rate * wall_s, (rate * fast_s, rate * slow_s)

    run = Run(
        around=Around(training, loading, checkpointing, prices, sharing),
        steps=steps,
        tokens=steps * step.tokens_per_step,
        goodput=lost.goodput,
        losses=lost.shares,
        paced_step_time_s=lost.step_time_s,
        steps_between_checkpoints=lost.saving.advice.steps_between if lost.saving else None,
        **with_intervals(
            days=times(1 / DAY_S),
            gpu_hours=times(gpus / HOUR_S),
            cost_usd=(None, None) if price is None else times(gpus / HOUR_S * price),
            energy_kwh=times(gpus * draw.mean_w * training.pue / KWH_J),
        ),
        mean_power_w_per_gpu=draw.mean_w,
        assumptions=(*_assumed(training, lost), *draw.assumptions, *RUN_ASSUMPTIONS),
    )
    walls_s, watts = (wall_s, fast_s, slow_s), gpus * draw.mean_w * training.pue
    if sharing:
        beside = shared(step, sharing, checkpointing, steps, walls_s, watts, price)
        run = replace(run, shared=beside, assumptions=(*run.assumptions, *beside.assumptions))
    return _renting(run, rented(step, prices, lost, loading, steps, walls_s), watts) if prices and prices.files else run


def _renting(run: Run, found: Rented, watts: float) -> Run:
    """Return a run with what passes and is paid where it rents; what it holds draws `watts`."""
    shares = found.shares(run.losses)
    return replace(
        run,
        goodput=1 - sum(shares.values()),
        losses=shares,
        **with_intervals(
            days=found.spread(lambda rental: rental.hours * HOUR_S / DAY_S),
            gpu_hours=found.spread(lambda rental: rental.gpu_hours),
            cost_usd=found.spread(lambda rental: rental.cost_usd),
            energy_kwh=found.spread(lambda rental: rental.held_s * watts / KWH_J),
        ),
        assumptions=(*run.assumptions, *found.assumptions),
        rental=found.rental,
        optimum=found.optimum,
    )


def run_of(step: Step, around: Around) -> Run | None:
    """Return the whole run of a job, or None where it states no training."""
    if around.training is None:
        return None
    return whole_run(step, around.training, around.loading, around.checkpointing, around.prices, around.sharing)


def _assumed(training: Training, lost: Losses) -> Iterator[str]:
    """Yield what is assumed of a run; that nothing is lost only where nothing says what is."""
    for line in training.assumptions:
        if lost.saving is None or not line.startswith("training.goodput"):
            yield line.replace(", failures or stalls", " or failures") if lost.data else line
    yield from lost.assumptions


RUN_ASSUMPTIONS = (
    "run: every step takes the same time, with the global batch and sequence of the plan from the first step on",
    "energy: devices only, times PUE; hosts, switches and storage are not counted; its interval is that of the time",
)


def gpu_hour_price(step: Step, training: Training | None, prices: Prices | None = None) -> float | None:
    """Return USD per GPU-hour: the job's own, else the cluster's, else None."""
    own = prices.usd_per_gpu_hour if prices else training.usd_per_gpu_hour if training else None
    return step.cluster.usd_per_gpu_hour if own is None else own


def required_price(step: Step, training: Training | None) -> float:
    """Return USD per GPU-hour above 0; raises InputError where there is none."""
    price = gpu_hour_price(step, training)
    if not price:
        raise InputError("cluster.usd_per_gpu_hour", price, f"a price above 0 for {step.cluster.device}")
    return price
