"""What a decentralised training trains, and how."""

from typing import Annotated

from calibration.federated.data import DATA, Data, DataName, training_samples
from calibration.federated.models import Norm
from calibration.federated.partition import partitioned
from sim.specs.fields import InputError, real, spec, whole

DECAY = 0.1


@spec
class Setting:
    """A network with `norm` on `data` in `partitions`, trained by SGD with momentum for `steps` minibatches each.

    `lr` is that of a step on the mean gradient; at each of `lr_decays` (steps) it falls to a tenth. `clip_norm`: of a
    gradient over all partitions, for DGC. Every `travel_every` steps models travel and are tried on `travel_sample`
    samples. Defaults are those of DiLoCo (arXiv 2311.08105, section 3) for the outer optimizer, else assumptions.
    """

    data: DataName = "digits"
    norm: Norm = "group"
    partitions: Annotated[int, whole(2, 64)] = 5
    skew: Annotated[float, real(0.0, 1.0)] = 0.0
    steps: Annotated[int, whole(1, 1_000_000)] = 300
    batch: Annotated[int, whole(1, 10_000)] = 20
    lr: Annotated[float, real(1e-6, 10.0)] = 0.02
    lr_decays: tuple[Annotated[int, whole(1, 1_000_000)], ...] = ()
    momentum: Annotated[float, real(0.0, 0.999)] = 0.9
    outer_lr: Annotated[float, real(1e-6, 10.0)] = 0.7
    outer_momentum: Annotated[float, real(0.0, 0.999)] = 0.9
    clip_norm: Annotated[float, real(1e-6, 1e6)] = 10.0
    travel_every: Annotated[int, whole(1, 1_000_000)] = 50
    travel_sample: Annotated[int, whole(1, 100_000)] = 200
    seed: Annotated[int, whole(0, 2**31 - 1)] = 0

    def __post_init__(self) -> None:
        most = training_samples(self.data) // self.partitions
        if self.batch > most:
            raise InputError("batch", self.batch, f"a whole number from 1 to {most}, the samples of a partition")

    def shares(self) -> list[Data]:
        """Return what each partition has of the data; the test is the same for all."""
        data = DATA[self.data]()
        return [data.part(samples) for samples in partitioned(data.labels, self.partitions, self.skew, self.seed)]

    @property
    def epoch_steps(self) -> int:
        """Minibatches of a partition's data."""
        return max(1, training_samples(self.data) // self.partitions // self.batch)

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        return self.lr * DECAY ** sum(step > decay for decay in self.lr_decays)
