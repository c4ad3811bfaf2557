"""What a simulated decentralised training comes to: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sim.decentralized.accuracy import Estimate
from sim.decentralized.processes import Part, Span
from sim.decentralized.setting import Decentralized


class Since(NamedTuple):
    """A theta, and from which minibatch and second on it held."""

    step: int
    at_s: float
    theta: float


@dataclass(frozen=True)
class Travel:
    """What models that travelled after minibatch `step` showed, and what the controller made of it.

    `accuracy_loss` is seen with `theta`, None where no short runs say it; `sent_bytes`: from one partition to one other
    for a minibatch; `models`: how many arrived.
    """

    step: int
    at_s: float
    theta: float
    accuracy_loss: float | None
    sent_bytes: float
    objective: float | None
    next_theta: float
    models: int


@dataclass(frozen=True)
class SlowLink:
    """A link whose messages take `times` as long as those of the middle one, `seconds` each."""

    source: int
    target: int
    seconds: float
    times: float


@dataclass(frozen=True)
class Simulated:
    """A simulated training. Bytes are those that arrived, of all messages; accuracies are fractions.

    `parts_s`: seconds of each partition (K,) by what it did; of those that lasted to the end they sum to `seconds`.
    `spans`: the begin of each partition, for a figure. `accuracy` and `accuracy_loss` are None where no short runs say
    them. `bsp_seconds` and `bsp_traffic_bytes`: of the same training by BSP with nothing that fails or changes.
    """

    setting: Decentralized
    seconds: float
    steps: int
    exchanges: int
    update_bytes: int
    travel_bytes: int
    thetas: tuple[Since, ...]
    travels: tuple[Travel, ...]
    final_theta: float
    accuracy: Estimate | None
    accuracy_loss: Estimate | None
    parts_s: tuple[Mapping[Part, float], ...]
    spans: tuple[Span, ...] = field(repr=False)
    slow_links: tuple[SlowLink, ...]
    failed: tuple[int, ...]
    reports: tuple[str, ...]
    bsp_seconds: float
    bsp_traffic_bytes: int
    assumptions: tuple[str, ...]

    @property
    def traffic_bytes(self) -> int:
        """All that arrived: updates and models that travelled."""
        return self.update_bytes + self.travel_bytes

    @property
    def finished(self) -> bool:
        """Whether all steps were done."""
        return self.steps == self.setting.steps

    @property
    def saving(self) -> float | None:
        """How many times as much traffic BSP has; None where there is none, or not all was trained by all."""
        comparable = self.traffic_bytes and self.finished and not self.failed
        return self.bsp_traffic_bytes / self.traffic_bytes if comparable else None

    @property
    def bearable(self) -> bool | None:
        """Whether the theta it ends with loses no more accuracy than is borne; None where nothing says it."""
        return None if self.accuracy_loss is None else self.accuracy_loss.value <= self.setting.objective.tolerated
