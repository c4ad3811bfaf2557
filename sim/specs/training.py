"""The whole run: how long to train, and what a wall hour and a kilowatt hour are worth."""

from dataclasses import field
from typing import Annotated

from sim.specs.fields import DERIVED, InputError, real, spec, whole

USUAL = {
    "goodput": (1.0, "no time lost to checkpoints, failures or stalls"),
    "pue": (1.0, "cooling and power conversion not counted"),
}


@spec
class Training:
    """How much is trained, by tokens or by steps, and the terms of the site.

    `goodput` is the share of wall time that makes progress; `pue` (power usage effectiveness) is the site's energy
    over the devices' energy; `utilisation` replaces the share of the range between idle and full draw that the
    power model derives from the step; `usd_per_gpu_hour` wins over the cluster's price.

    Raises:
        InputError: a number is out of range, or not exactly one of tokens and steps is given.
    """

    tokens: Annotated[float, real(1.0, 1e18, "tokens")] | None = None
    steps: Annotated[int, whole(1, 1_000_000_000)] | None = None
    goodput: Annotated[float, real(0.01, 1.0)] = DERIVED
    pue: Annotated[float, real(1.0, 3.0)] = DERIVED
    utilisation: Annotated[float, real(0.0, 1.0)] | None = None
    usd_per_gpu_hour: Annotated[float, real(0.0, 1e4, "USD")] | None = None
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)

    @property
    def goodput_stated(self) -> bool:
        """Whether the goodput was given, rather than assumed."""
        return not any(line.startswith("training.goodput = ") for line in self.assumptions)

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.steps is None):
            raise InputError("tokens", self.tokens, "exactly one of tokens and steps")
        assumed = []
        for name, (value, why) in USUAL.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
                assumed.append(f"training.{name} = {value:g} ({why})")
        object.__setattr__(self, "assumptions", tuple(assumed))
