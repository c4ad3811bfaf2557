"""Published throughput per device beside its prediction, in the publication's own convention."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.engine.step import Step
from sim.specs import InputError, Model
from sim.units import grouped
from sim.validation.predict import Range, elsewhere
from sim.validation.table import Measured
from sim.validation.translate import translate


@dataclass(frozen=True)
class Throughput:
    """FLOP/s per device of one run: as published (by `scheme`), and as predicted with the central 80 %."""

    model: str
    gpus: int
    scheme: str
    published: float
    predicted: Range

    @property
    def name(self) -> str:
        """Model and devices."""
        return f"{self.model} on {grouped(self.gpus)}"

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted.value / self.published - 1

    @property
    def inside(self) -> bool:
        """Whether what was published lies in the predicted interval."""
        return self.predicted.low <= self.published <= self.predicted.high


def flop_with_recompute(model: Model, global_batch: int) -> float:
    """Return the FLOP of a step of a GPT, all layers' forward counted twice: arXiv 2104.04473, equation 3.

    96 B s l h^2 (1 + s / 6h + V / 16lh); the output layer's forward is not repeated.
    """
    s, layers, h = model.seq, model.layers, model.hidden
    return 96 * global_batch * s * layers * h**2 * (1 + s / (6 * h) + model.vocab / (16 * layers * h))


def achieved(step: Step) -> float:
    """Return the FLOP/s per device of a simulated step of a GPT with full recomputation, by equation 3."""
    return flop_with_recompute(step.model, step.plan.global_batch) / step.step_time_s / step.placed.gpus


def throughputs(rows: Sequence[Measured]) -> list[Throughput]:
    """Return the rows' throughput, predicted by run-level parameters that never saw their source.

    The FLOP of equation 3 over seconds and devices. Published is what the row states, in FLOP/s.

    Raises:
        InputError: a row cannot be expressed, or states neither a throughput nor a step time.
    """
    for row in rows:
        if row.tflops_per_gpu is None and row.step_time_s is None:
            raise InputError(f"{row.id}.tflops_per_gpu", None, "required, or step_time_s")
    cases = [translate(row) for row in rows]
    found = []
    for case, prediction in zip(cases, elsewhere(cases), strict=True):
        row, time = case.row, prediction.step_time_s
        flop = flop_with_recompute(case.model, case.plan.global_batch) / case.placed.gpus
        predicted = Range(flop / time.value, flop / time.high, flop / time.low)
        published = flop / row.step_time_s if row.tflops_per_gpu is None else row.tflops_per_gpu * 1e12
        found.append(Throughput(row.model, case.placed.gpus, row.group, published, predicted))
    return found
