"""A job of a shared cluster: how much work, on how many devices, from when."""

from typing import Annotated

from sim.specs.fields import InputError, real, spec, whole

Kind = tuple[str, int]
"""What a throughput is known for: a type of job and on how many devices it runs."""


@spec
class ClusterJob:
    """A training job that holds `scale_factor` devices of one type while it runs, and ends after `steps`.

    `weight` is its share beside others of its `entity`; `slo`: it should end within so many times what it takes alone
    on the fastest type that has devices enough for it (None: whenever).
    """

    job_type: str
    steps: Annotated[int, whole(1, 10**15)]
    scale_factor: Annotated[int, whole(1, 100_000)] = 1
    arrival_s: Annotated[float, real(0, 1e12, "s")] = 0.0
    weight: Annotated[float, real(1e-6, 1e6)] = 1.0
    slo: Annotated[float, real(1e-3, 1e6)] | None = None
    entity: str = ""

    def __post_init__(self) -> None:
        if not self.job_type:
            raise InputError("job_type", self.job_type, "a name")

    @property
    def kind(self) -> Kind:
        """The row of a throughput table that it reads."""
        return self.job_type, self.scale_factor
