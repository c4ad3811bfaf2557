"""Compute-optimal training: what model and how many tokens a budget is best spent on.

Compute is counted as C = 6 N D (Kaplan et al. 2020, arXiv 2001.08361, section 2.1), N the parameters that a token
passes (all of a dense model, the active ones of a mixture of experts), D tokens. A
parametric law L(N, D) = E + A / N^alpha + B / D^beta has its minimum at a fixed C where N = G (C / 6)^a with
a = beta / (alpha + beta) and G = (alpha A / (beta B))^(1 / (alpha + beta)) (Hoffmann et al. 2022, eq. 4).
"""

from dataclasses import dataclass
from math import hypot

from sim.engine.step import Step
from sim.run.losses import losses
from sim.run.measures import Interval
from sim.run.whole import required_price
from sim.specs import Checkpointing, InputError, Loading, Model, Training
from sim.specs.arguments import checked
from sim.specs.catalog import scaling_law
from sim.specs.scaling import ScalingLaw
from sim.units import DAY_S, HOUR_S

FLOP_PER_PARAMETER_AND_TOKEN = 6.0
DEFAULT_LAW = "besiroglu-2024"
LEAST_FLOP, MOST_FLOP = 1e12, 1e32
MOST_PARAMETERS = 1e18
MOST_TIMES = 100
"""That the steps of a budget are counted, each time fewer; mostly a few do."""


@dataclass(frozen=True)
class Budget:
    """Compute to spend, in FLOP of 6 N D, with its 80 % interval (a point where it was stated in FLOP)."""

    flop: float
    flop_interval: Interval
    assumptions: tuple[str, ...] = ()

    @classmethod
    def of_flop(cls, flop: float) -> "Budget":
        """Return a budget in FLOP; raises InputError out of 1e12 to 1e32."""
        _checked("budget_flop", flop, LEAST_FLOP, MOST_FLOP, "FLOP")
        return cls(flop, (flop, flop))

    @classmethod
    def on(
        cls,
        step: Step,
        days: float | None = None,
        gpu_hours: float | None = None,
        usd: float | None = None,
        training: Training | None = None,
        loading: Loading | None = None,
        checkpointing: Checkpointing | None = None,
    ) -> "Budget":
        """Return what exactly one of wall days, GPU-hours or USD buys on the step's devices at the step's speed.

        training: the price and goodput that hold; tokens and steps are not used. loading, checkpointing: what the steps
        lose to data, checkpoints and failures, as in `whole_run`.

        Raises:
            InputError: not exactly one budget, one out of range, USD without a price, too little for one step, or
                `training` states a goodput and there are checkpoints, whose goodput is computed.
        """
        given = {k: v for k, v in (("days", days), ("gpu_hours", gpu_hours), ("usd", usd)) if v is not None}
        if len(given) != 1:
            raise InputError("budget", sorted(given), "exactly one of days, gpu_hours and usd")
        [(name, amount)] = given.items()
        _checked(name, amount, 1e-6, 1e15)
        price = required_price(step, training) if name == "usd" else 1.0
        device_s = {"days": DAY_S * step.placed.gpus, "gpu_hours": HOUR_S, "usd": HOUR_S / price}[name] * amount
        wall_s = device_s / step.placed.gpus
        steps = None
        for _ in range(MOST_TIMES):  # how many steps there are says what filling caches is of them
            lost = losses(step, training or Training(steps=1), loading, checkpointing, steps)
            before, steps = steps, max(1, int(wall_s * lost.goodput / step.step_time_s))
            if steps == before or not loading:
                break
        useful_s = wall_s * lost.goodput
        flop_per_step = FLOP_PER_PARAMETER_AND_TOKEN * step.model.active_parameters * step.tokens_per_step
        if useful_s < step.step_time_s:
            raise InputError(name, amount, f"enough for one step of {step.step_time_s:.3g} s")
        fast_s, slow_s = step.profile.interval80(step.step_time_s, hypot(step.sigma_log, lost.luck_log(wall_s)))
        least, flop, most = (useful_s / t * flop_per_step for t in (slow_s, step.step_time_s, fast_s))
        return cls(flop, (least, most), (SAME_SPEED, *lost.assumptions))


SAME_SPEED = "another model size is trained at the same 6 N D FLOP/s, losses included, as the job's model"


@dataclass(frozen=True)
class Allocation:
    """Parameters, tokens, and the loss in nats per token that the law predicts."""

    parameters: float
    tokens: float
    loss: float

    @property
    def tokens_per_parameter(self) -> float:
        """D / N."""
        return self.tokens / self.parameters

    @property
    def flop(self) -> float:
        """6 N D."""
        return FLOP_PER_PARAMETER_AND_TOKEN * self.parameters * self.tokens


@dataclass(frozen=True)
class Optimal:
    """How to spend a budget.

    given: the whole budget on the model asked about, with the interval of its tokens; best: the size and tokens of
    least loss; balanced: the tokens (and so the budget) for which the model asked about is the best size.
    """

    budget: Budget
    law: ScalingLaw
    given: Allocation
    given_tokens_interval: Interval
    best: Allocation
    balanced: Allocation

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the answer rests on."""
        return (
            f"scaling law {self.law.name}: {self.law.a.source.split(' (')[0]}; fitted to {self.law.range}",
            "C = 6 N D with N the parameters a token passes (the laws were fitted to dense models)",
            "the loss is that of the law's data and tokenizer: compare, do not quote",
            *self.budget.assumptions,
        )


@checked
def compute_optimal(model: Model | float, budget: Budget | float, law: str = DEFAULT_LAW) -> Optimal:
    """Return what `budget` (FLOP, or `Budget.on` a step's devices) buys for `model` (or its parameters) and at best.

    law: a scaling law of the catalog: "besiroglu-2024" (refit) or "hoffmann-2022" (Chinchilla as published).

    Raises:
        InputError: a number is out of range, or the law is unknown.
    """
    found = scaling_law(law)
    spent = budget if isinstance(budget, Budget) else Budget.of_flop(budget)
    size = model.active_parameters if isinstance(model, Model) else model
    _checked("parameters", size, 1.0, MOST_PARAMETERS)

    def allocation(parameters: float, flop: float) -> Allocation:
        tokens = flop / FLOP_PER_PARAMETER_AND_TOKEN / parameters
        return Allocation(parameters, tokens, found.loss(parameters, tokens))

    least, most = (allocation(size, flop).tokens for flop in spent.flop_interval)
    return Optimal(
        budget=spent,
        law=found,
        given=allocation(size, spent.flop),
        given_tokens_interval=(least, most),
        best=allocation(optimal_parameters(found, spent.flop), spent.flop),
        balanced=allocation(size, balanced_flop(found, size)),
    )


def _shape(law: ScalingLaw) -> tuple[float, float]:
    """Return G and a of the minimum N = G (C / 6)^a."""
    alpha, beta = law.alpha.value, law.beta.value
    return (alpha * law.a.value / (beta * law.b.value)) ** (1 / (alpha + beta)), beta / (alpha + beta)


def optimal_parameters(law: ScalingLaw, flop: float) -> float:
    """Return the parameters of least loss at `flop`."""
    g, a = _shape(law)
    return float(g * (flop / FLOP_PER_PARAMETER_AND_TOKEN) ** a)


def balanced_flop(law: ScalingLaw, parameters: float) -> float:
    """Return the FLOP at which `parameters` is the size of least loss: the inverse of `optimal_parameters`."""
    g, a = _shape(law)
    return float(FLOP_PER_PARAMETER_AND_TOKEN * (parameters / g) ** (1 / a))


def _checked(name: str, value: object, low: float, high: float, unit: str = "") -> None:
    # The negated comparison refuses NaN too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(name, value, f"a number from {low:g} to {high:g} {unit}".strip())
