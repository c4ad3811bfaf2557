"""Which updates partitions send each other, and how many bytes that is.

Sources: K. Hsieh et al., The Non-IID Data Quagmire of Decentralized Machine Learning, arXiv 1910.00189, section 3 (BSP,
Gaia, FedAvg, DGC and their knobs theta); A. Douillard et al., DiLoCo, arXiv 2311.08105 (local steps with an outer
optimizer).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from sim.specs.fields import InputError, real, spec

AlgorithmName = Literal["bsp", "gaia", "fedavg", "dgc", "diloco"]

LOCAL: tuple[AlgorithmName, ...] = ("fedavg", "diloco")
"""Algorithms that send models (parameters and floating-point buffers) once a period, not updates at every step."""

VALUE_BYTES, INDEX_BYTES = 4, 4
"""fp32 values; an index goes with every value of an update that is not whole."""


@dataclass(frozen=True)
class Knob:
    """What theta is of an algorithm; `thetas` go from the most traffic to the least."""

    meaning: str
    thetas: tuple[float, ...]
    low: float
    high: float
    whole: bool = False


KNOBS: Mapping[str, Knob] = {
    "bsp": Knob("none: every update is sent", (1.0,), 1.0, 1.0, True),
    "gaia": Knob("relative update above which a weight's is sent, T0", (0.02, 0.05, 0.10, 0.20, 0.30, 0.40), 0.0, 1.0),
    "fedavg": Knob("local steps between averages, Iter_local", (5.0, 10.0, 20.0, 50.0, 100.0, 200.0), 1.0, 1e6, True),
    "dgc": Knob("share of an update that is held back, s", (0.75, 0.90, 0.95, 0.99, 0.995, 0.999), 0.0, 0.999999),
    "diloco": Knob("local steps between outer ones, H", (5.0, 10.0, 20.0, 50.0, 100.0, 200.0), 1.0, 1e6, True),
}


@spec
class Communication:
    """An algorithm with its knob.

    Raises:
        InputError: theta is out of the range of the algorithm's knob.
    """

    algorithm: AlgorithmName
    theta: Annotated[float, real(0.0, 1e6)] = 1.0

    def __post_init__(self) -> None:
        knob = KNOBS[self.algorithm]
        if not knob.low <= self.theta <= knob.high or (knob.whole and self.theta != int(self.theta)):
            kind = "a whole number" if knob.whole else "a number"
            allowed = f"{kind} from {knob.low:g} to {knob.high:g}: {knob.meaning}"
            if knob.low == knob.high:
                allowed = f"left out, or {knob.low:g}: {self.algorithm} has no theta, every update is sent"
            raise InputError("theta", self.theta, allowed)

    @property
    def period(self) -> int:
        """Steps from one exchange to the next."""
        return int(self.theta) if self.algorithm in LOCAL else 1


def whole_bytes(values: int) -> int:
    """Return the bytes of a message with all values."""
    return VALUE_BYTES * values


def sparse_bytes(sent: int, values: int) -> int:
    """Return the bytes of a message with `sent` of `values` and their indices; all of them where that is less."""
    return min((VALUE_BYTES + INDEX_BYTES) * sent, whole_bytes(values))


def kept_by_dgc(theta: float, values: int) -> int:
    """Return how many of so many values DGC sends of one tensor: at least one."""
    return max(1, round((1 - theta) * values))


WARM_UP = (0.75, 0.9375, 0.984375, 0.996, 0.999)
"""Shares that DGC holds back in its first stages (arXiv 1712.01887, section 3.3)."""


def warmed_up(theta: float, step: int, stage_steps: int) -> float:
    """Return the share that DGC holds back at a step, counted from 1, with warm-up stages of so many steps."""
    stage = (step - 1) // stage_steps
    return min(theta, WARM_UP[stage]) if stage < len(WARM_UP) else theta
