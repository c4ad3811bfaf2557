"""Days, GPU-hours, cost and energy of a whole training run."""

from dataclasses import dataclass
from math import ceil

from sim.engine.step import Step
from sim.run.power import device_draw
from sim.specs import Training
from sim.specs.arguments import checked
from sim.specs.fields import InputError

Interval = tuple[float, float]
DAY_S = 86_400.0
HOUR_S = 3_600.0
KWH_J = 3.6e6


@dataclass(frozen=True)
class Run:
    """The prediction of a whole run; plain data, intervals are the central 80 %.

    `steps` is whole, and `tokens` what they train on. Energy in kWh is that of the devices times the site's PUE; mean
    power in W is that of one device. Cost is None where neither the job nor the catalog states a price.
    """

    training: Training
    steps: int
    tokens: int
    goodput: float
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


@checked
def whole_run(step: Step, training: Training) -> Run:
    """Return what `training` takes when every step is like `step`.

    Wall time = steps x step time / goodput, and all else is proportional to it: its intervals are the step's.
    """
    steps = training.steps or ceil((training.tokens or 0.0) / step.tokens_per_step)
    draw, price, gpus = device_draw(step, training.utilisation), gpu_hour_price(step, training), step.placed.gpus
    scale = steps / training.goodput
    wall_s = scale * step.step_time_s
    fast_s, slow_s = (scale * t for t in step.step_time_interval_s)

    def times(rate: float) -> tuple[float, Interval]:
        return rate * wall_s, (rate * fast_s, rate * slow_s)

    days, days_interval = times(1 / DAY_S)
    gpu_hours, gpu_hours_interval = times(gpus / HOUR_S)
    cost, cost_interval = (None, None) if price is None else times(gpus / HOUR_S * price)
    energy, energy_interval = times(gpus * draw.mean_w * training.pue / KWH_J)
    return Run(
        training=training,
        steps=steps,
        tokens=steps * step.tokens_per_step,
        goodput=training.goodput,
        days=days,
        days_interval=days_interval,
        gpu_hours=gpu_hours,
        gpu_hours_interval=gpu_hours_interval,
        cost_usd=cost,
        cost_usd_interval=cost_interval,
        energy_kwh=energy,
        energy_kwh_interval=energy_interval,
        mean_power_w_per_gpu=draw.mean_w,
        assumptions=(*training.assumptions, *draw.assumptions, *RUN_ASSUMPTIONS),
    )


RUN_ASSUMPTIONS = (
    "run: every step takes the same time, with the global batch and sequence of the plan from the first step on",
    "energy: devices only, times PUE; hosts, switches and storage are not counted; its interval is that of the time",
)


def gpu_hour_price(step: Step, training: Training | None) -> float | None:
    """Return USD per GPU-hour: the job's own, else the cluster's, else None."""
    own = training.usd_per_gpu_hour if training else None
    return step.cluster.usd_per_gpu_hour if own is None else own


def required_price(step: Step, training: Training | None) -> float:
    """Return USD per GPU-hour above 0; raises InputError where there is none."""
    price = gpu_hour_price(step, training)
    if not price:
        raise InputError("cluster.usd_per_gpu_hour", price, f"a price above 0 for {step.cluster.device}")
    return price
