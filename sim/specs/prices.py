"""What a run's devices cost: one price, or files of prices from which it rents where it is cheap."""

from dataclasses import field, fields
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sim.specs.fields import DERIVED, InputError, real, spec

BOOT_S = 120.0
WAN_BYTES_PER_S = 1.25e8
YEARS = (1900, 2999)
"""Of begins and prices: what begins then ends before the last year that a date can have."""

USUAL = {
    "data_bytes": (0.0, "an assumption: data is wherever the run goes"),
    "boot_s": (BOOT_S, "an assumption: from asking for an instance until it can be logged in to"),
    "egress_usd_per_gb": (0.09, "an assumption, as AWS: of clouds whose tariff the catalog does not know"),
    "wan_bytes_per_s": (WAN_BYTES_PER_S, "an assumption: 1 Gbit/s between two regions or clouds"),
}

StrategyName = Literal[
    "baseline_worst", "baseline", "gpu_type", "packed", "multi_cloud", "preemption", "preemption_data_movement",
    "dynamic", "uniform_progress",
]  # fmt: skip
"""Names of `sim.market.STRATEGIES`."""


def usual_strategy(deadline: float | None) -> StrategyName:
    """Return the strategy where none is named."""
    return "dynamic" if deadline is None else "uniform_progress"


def _listed(value: Any) -> Any:
    """Let one name stand for a list of it, and a list for a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Names = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=1_000, description="text")], ...],
    Field(max_length=100),
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
    Field(description="text, or a list of texts"),
]


@spec
class Prices:
    """What devices cost: `usd_per_gpu_hour` always, or the `files` of prices of offers among which the run moves.

    Either wins over the cluster's price.

    `files`: one path or several, of price histories or a SkyPilot-style catalogue. Of what they offer only instances
    with the cluster's device are rented that hold its nodes, whole: `device` is its name there (left out: what the
    catalog knows it by), and `billing`, `clouds` and `regions` ("us-east-1" or "aws us-east-1") leave others out.
    `begin`: date or time, ISO 8601, UTC where it says no other (left out: the first change of a price of what is left,
    or any time where none changes). `strategy` (left out: dynamic, with a deadline uniform_progress) chooses every
    `every_hours`, on prices in steps of `step_hours`. An hour is worth `usd_per_hour` to the owner, beside the rent;
    `deadline_hours` after its begin the run should end. `availability`: a file that says when spot instances are there.
    `data_bytes` move with the run between regions, the first time from `home` ("aws us-east-1"; left out: where it
    begins), at `wan_bytes_per_s` and the clouds' tariffs, or `egress_usd_per_gb` where the catalog has none; an
    instance boots in `boot_s`.

    Raises:
        InputError: a number is out of range, not exactly one of usd_per_gpu_hour and files is given, something is
            stated that one price has no use for, or two fields contradict each other.
    """

    usd_per_gpu_hour: Annotated[float, real(0.0, 1e4, "USD")] | None = None
    files: Names = ()
    billing: Literal["spot", "on-demand", "any"] = "any"
    clouds: Names = ()
    regions: Names = ()
    device: str | None = None
    begin: Annotated[str, Field(max_length=40, description="a date such as 2020-03-01, or a time of it")] | None = None
    strategy: StrategyName = DERIVED
    every_hours: Annotated[float, real(1e-2, 1e4, "hours")] = 24.0
    step_hours: Annotated[float, real(1e-2, 168.0, "hours")] = 1.0
    usd_per_hour: Annotated[float, real(0.0, 1e9, "USD")] = 0.0
    deadline_hours: Annotated[float, real(1e-2, 1e6, "hours")] | None = None
    availability: str | None = None
    data_bytes: Annotated[float, real(0.0, 1e18, "B")] = DERIVED
    home: str = ""
    egress_usd_per_gb: Annotated[float, real(0.0, 100.0, "USD/GB")] = DERIVED
    boot_s: Annotated[float, real(0.0, 86_400.0, "s")] = DERIVED
    wan_bytes_per_s: Annotated[float, real(1.0, 1e15, "B/s")] = DERIVED
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.usd_per_gpu_hour is None) == (not self.files):
            raise InputError("usd_per_gpu_hour", self.usd_per_gpu_hour, "exactly one of usd_per_gpu_hour and files")
        if self.files:
            self._check()
            self._assume()
            return
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "usd_per_gpu_hour" and value != each.default:
                raise InputError(each.name, value, "left out beside usd_per_gpu_hour: nothing is chosen then")

    def _check(self) -> None:
        """Refuse fields that contradict each other."""
        steps = self.every_hours / self.step_hours
        if abs(steps - round(steps)) > 1e-6 or steps < 1:
            raise InputError("every_hours", self.every_hours, f"a multiple of step_hours = {self.step_hours:g}")
        if self.strategy == "uniform_progress" and self.deadline_hours is None:
            raise InputError("deadline_hours", None, "required with strategy uniform_progress")
        if self.availability and self.billing == "on-demand":
            raise InputError("availability", self.availability, "left out: on-demand instances are never taken away")
        if self.begin is not None:
            utc_s(self.begin)

    def _assume(self) -> None:
        """Fill what was left out."""
        assumed = []
        if self.__dict__["strategy"] is None:
            object.__setattr__(self, "strategy", usual_strategy(self.deadline_hours))
            if self.deadline_hours is not None:
                assumed.append(f"prices.strategy = {self.strategy} (a deadline is stated)")
        for name, (value, why) in USUAL.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
                assumed.append(f"prices.{name} = {value:g} ({why})")
        object.__setattr__(self, "assumptions", tuple(assumed))

    @property
    def begin_s(self) -> float | None:
        """`begin` in seconds since 1970-01-01 UTC; None where it is left out."""
        return None if self.begin is None else utc_s(self.begin)


def utc_s(text: str) -> float:
    """Return a date or time in seconds since 1970-01-01 UTC; raises InputError where it is none of `YEARS`."""
    try:
        return dated_s(datetime.fromisoformat(text))
    except ValueError:
        told = "a date such as 2020-03-01, or a time such as 2020-03-01T12:00:00, of the years {} to {}".format(*YEARS)
        raise InputError("begin", text, told) from None


def dated_s(when: datetime) -> float:
    """Return a time (UTC unless it says) in seconds since 1970-01-01 UTC; raises ValueError outside of `YEARS`."""
    if not YEARS[0] <= when.year <= YEARS[1]:
        raise ValueError(when.year)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def iso_utc(time_s: float) -> str:
    """Return seconds since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(time_s, UTC).isoformat()
