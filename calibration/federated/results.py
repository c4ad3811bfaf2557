"""What a decentralised training did, as data."""

from dataclasses import dataclass, field

from sim.decentralized.communication import LOCAL


@dataclass(frozen=True)
class Exchange:
    """The messages of one exchange: `sent_bytes` and `significant` values of each partition's message to each other."""

    step: int
    theta: float
    partitions: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    significant: tuple[int, ...]


@dataclass(frozen=True)
class Travel:
    """What travelling models showed (fractions): at each of `partitions`, on one sample of its training data,
    `home` is the accuracy of its own model and `away` that of the model that came to it.

    `sent_bytes`: from one partition to one other for a minibatch, in the mean since the travel before; `accuracy`: of
    the mean of the models, on test data; `theta`: until then.
    """

    step: int
    theta: float
    partitions: tuple[int, ...]
    home: tuple[float, ...]
    away: tuple[float, ...]
    sent_bytes: float
    accuracy: float

    @property
    def accuracy_loss(self) -> float:
        """Mean accuracy at home minus that away."""
        return (sum(self.home) - sum(self.away)) / len(self.home)


@dataclass(frozen=True)
class FederatedRun:
    """A training: `values` parameters, `state_values` with floating-point buffers.

    `thetas`: of each step; `traffic_bytes`: all messages, those of travelling models (`travel_bytes`) too;
    `accuracy`: of the mean of all models on test data, `partition_accuracy`: of each partition's; `state`: the mean of
    the models [state_values]. `seconds`: of wall time, `step_s` of each step; `compute_s`: of it, what each partition's
    gradients and updates took.
    """

    algorithm: str
    steps: int
    values: int
    state_values: int
    thetas: tuple[float, ...]
    exchanges: tuple[Exchange, ...]
    travels: tuple[Travel, ...]
    traffic_bytes: int
    travel_bytes: int
    partitions: tuple[int, ...]
    accuracy: float
    partition_accuracy: tuple[float, ...]
    state: tuple[float, ...] = field(repr=False)
    seconds: float = field(compare=False)
    step_s: tuple[float, ...] = field(compare=False, repr=False)
    compute_s: tuple[float, ...] = field(compare=False)

    @property
    def accuracy_loss(self) -> float:
        """Mean over the travels of the later half of the run, 0 where there were none."""
        late = [travel.accuracy_loss for travel in self.travels if 2 * travel.step > self.steps]
        return sum(late) / len(late) if late else 0.0

    @property
    def sent_bytes(self) -> float:
        """Bytes from one partition to one other for a minibatch, in the mean; travelling models are not counted."""
        sent = sum(sum(one.sent_bytes) / len(one.sent_bytes) for one in self.exchanges)
        return sent / self.steps

    @property
    def sent_fraction(self) -> float:
        """Values that say something of those that a message could hold, in the mean over all messages."""
        counts = [count for one in self.exchanges for count in one.significant]
        whole = self.state_values if self.algorithm in LOCAL else self.values
        return sum(counts) / len(counts) / whole if counts else 0.0
