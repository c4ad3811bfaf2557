"""What Tempo (arXiv 2210.10246) publishes of larger batches and higher throughput, beside what is predicted of it.

Nothing is fitted to it. Devices train in data parallel, each on its own batch; the largest batches are those whose
device memory in the median is not above the device's. At equal batches the layers lose throughput, more where kernels
are short beside memory (16 bit), and larger batches win it back: on the V100 in fp16 they do so here, not in the paper.
Predicted are kernels that memory bounds. `Gain.factor` says how many times as much extra time they may take before a
gain is lost: least on that V100. The published kernels do take more (`by_published_kernels`), and may lose it there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from sim.costs.carry import carried_to_fp32, ratios
from sim.costs.profile import CARRY_SIGMA_LOG, load_profile, profile_text
from sim.engine.step import Step, simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import device, models
from sim.specs.files import write_atomically

PAPER = "arXiv 2210.10246, abstract"
TABLE = "README of the paper's code (UofT-EcoSystem/Tempo), fine-tuning on SQuAD, four devices"
MOST = 512
"""Samples a device that are tried at most."""


class Published(NamedTuple):
    """Batches a device and samples/s (0: not told), usual layers first; percent: more throughput."""

    model: str
    seq: int
    device: str
    precision: str
    batches: tuple[int, int]
    samples_per_s: tuple[float, float]
    percent: float
    source: str

    @property
    def element_bytes(self) -> int:
        """Of activations."""
        return 4 if self.precision == "fp32" else 2


PUBLISHED = (
    Published("bert-large", 384, "v100-sxm-16gb", "fp16", (16, 22), (213.81, 203.36), -4.89, TABLE),
    Published("bert-large", 384, "v100-sxm-16gb", "fp32", (8, 13), (45.38, 50.75), 11.84, TABLE),
    Published("bert-large", 384, "rtx-2080-ti", "fp16", (8, 11), (49.36, 61.28), 24.14, TABLE),
    Published("bert-large", 384, "rtx-2080-ti", "fp32", (4, 6), (12.29, 16.23), 32.08, TABLE),
)


@dataclass(frozen=True)
class Gain:
    """Steps with the usual layers and with Tempo's, at batches a device.

    between: with the usual layers at the second batch, whether it fits or not.
    """

    batches: tuple[int, int]
    steps: tuple[Step, Step]
    between: Step

    @property
    def samples_per_s(self) -> tuple[float, float]:
        """Of all devices together."""
        first, second = (step.plan.global_batch / step.step_time_s for step in self.steps)
        return first, second

    @property
    def percent(self) -> float:
        """How much more throughput Tempo's layers have."""
        return self.percent_at(1.0)

    @property
    def extra_s(self) -> float:
        """What Tempo's kernels add to a step of the second batch."""
        return self.steps[1].step_time_s - self.between.step_time_s

    def percent_at(self, factor: float, more_s: float = 0.0) -> float:
        """Return how much more throughput they have where their kernels add so many times as much, and `more_s`.

        What collectives hide of it is taken to be the same share.
        """
        seconds = self.between.step_time_s + factor * self.extra_s + more_s
        return 100 * (self.batches[1] / seconds / (self.batches[0] / self.steps[0].step_time_s) - 1)

    def factor(self, percent: float = 0.0) -> float:
        """Return how many times as much Tempo's kernels add where they have so much more throughput: where they break
        even by default. Negative where they would have to save time."""
        seconds = self.steps[0].step_time_s * self.batches[1] / self.batches[0] / (1 + percent / 100)
        return (seconds - self.between.step_time_s) / self.extra_s


class Row(NamedTuple):
    """What is published and what is predicted: at the largest batches that fit, at the published ones, and at the
    smaller of these with and without."""

    published: Published
    largest: Gain
    same: Gain
    alike: Gain


def stored(name: str, seq: int) -> Model:
    """Return a model of the catalog on samples of `seq` tokens, with attention on stored scores, as in 2022."""
    known = models[name]
    return replace(known, seq=seq, attention="eager", max_positions=max(seq, known.max_positions))


def answering(name: str, seq: int) -> Model:
    """Return such an encoder with a head of two scores a token (SQuAD); its words' table counts among the positions."""
    known = stored(name, seq)
    return replace(known, name=f"{name} on SQuAD", vocab=2, max_positions=known.max_positions + known.vocab - 2)


def devices(name: str, precision: str, folder: Path, number: int = 4) -> Cluster:
    """Return devices of one server that train in this precision.

    folder: where a profile of fp32 kernels may be written: the shipped ones are of 16 bit, and are carried over by the
    datasheet's peaks; memory bandwidth stays.

    Raises:
        InputError: nobody says what the device does in fp32.
    """
    if precision != "fp32":
        return Cluster.of(name, nodes=1, gpus_per_node=number)
    known = device(name)
    if known.peak_fp32_flop_per_s is None:
        raise InputError("device", name, "one with peak_fp32_flop_per_s in the catalog")
    by = replace(ratios(known, known), compute=known.peak_fp32_flop_per_s.value / known.peak_bf16_flop_per_s.value)
    made = carried_to_fp32(load_profile(name), f"{name}-fp32", by, "by peaks of fp32 and 16 bit", CARRY_SIGMA_LOG)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "profile.json", profile_text(made))
    return Cluster.of(name, nodes=1, gpus_per_node=number, profile=str(folder))


def step(model: Model, cluster: Cluster, precision: str, batch: int, tempo: bool) -> Step:
    """Return a step of `batch` samples a device; raises InputError where the plan is not possible."""
    samples = batch * cluster.gpus
    given: dict[str, Any] = {"global_batch": samples, "micro_batch": batch, "precision": precision, "tempo": tempo}
    return simulate(model, cluster, Plan(framework="torch", **given))


def fitting(model: Model, cluster: Cluster, precision: str, tempo: bool) -> Step:
    """Return the step with the most samples a device that fit.

    Raises:
        InputError: not even one does.
    """
    found: Step | None = None
    low, high = 1, MOST
    while low <= high:
        batch = (low + high) // 2
        made = step(model, cluster, precision, batch, tempo)
        if made.device_memory_bytes <= cluster.memory_bytes:
            found, low = made, batch + 1
        else:
            high = batch - 1
    if found is None:
        raise InputError("model", model.name, f"one of which a sample fits {cluster.device}")
    return found


def largest(model: Model, cluster: Cluster, precision: str) -> Gain:
    """Return what Tempo's layers gain where each kind has the largest batch that fits."""
    usual, tempo = (fitting(model, cluster, precision, on) for on in (False, True))
    batches = usual.plan.micro_batch, tempo.plan.micro_batch
    return Gain(batches, (usual, tempo), step(model, cluster, precision, batches[1], tempo=False))


def at(model: Model, cluster: Cluster, precision: str, batches: tuple[int, int]) -> Gain:
    """Return what they gain at given batches."""
    made = ((batches[0], False), (batches[1], True), (batches[1], False))
    first, second, between = (step(model, cluster, precision, batch, on) for batch, on in made)
    return Gain(batches, (first, second), between)


def rows(folder: Path) -> Iterator[Row]:
    """Yield every published case beside what is predicted; folder: for profiles of fp32 kernels."""
    for one in PUBLISHED:
        cluster = devices(one.device, one.precision, folder / one.device)
        model, least = answering(one.model, one.seq), min(one.batches)
        case = model, cluster, one.precision
        yield Row(one, largest(*case), at(*case, one.batches), at(*case, (least, least)))


CLAIMS = {"bert-large": 16.0, "gpt2": 19.0, "roberta-large": 26.0}
"""Percent more throughput by the abstract (the batch up to twice as large)."""

LENGTHS = {"bert-large": (128, 512), "gpt2": (512, 1024), "roberta-large": (128, 512)}
"""Tokens of a sample in the what-ifs."""


DEVICES = ("v100-sxm-16gb", "rtx-2080-ti")
PRECISIONS = ("fp16", "fp32")


class Case(NamedTuple):
    """A model on samples of `seq` tokens, a device and a precision."""

    model: str
    seq: int
    device: str
    precision: str


def what_ifs(folder: Path, names: tuple[str, ...] = DEVICES) -> dict[Case, Gain]:
    """Return what Tempo's layers gain in pre-training at the largest batches, on each device in either precision.

    folder: for profiles of fp32 kernels.
    """
    found = {}
    for name, precision in product(names, PRECISIONS):
        cluster = devices(name, precision, folder / name)
        for model, seq in ((m, seq) for m in CLAIMS for seq in LENGTHS[m]):
            found[Case(model, seq, name, precision)] = largest(stored(model, seq), cluster, precision)
    return found


def best(found: Mapping[Case, Gain]) -> dict[str, tuple[Case, Gain]]:
    """Return by model the case with the largest gain, which is what the abstract tells."""
    return {
        m: max(((case, gain) for case, gain in found.items() if case.model == m), key=lambda held: held[1].percent)
        for m in CLAIMS
    }


def published_factor(model: Model, element_bytes: int) -> float:
    """Return how many times as many bytes the published kernels move more than usual layers as those costed here do.

    Here: a byte of every activation there and back, and a dropout of the scores. There also, in the backward pass of a
    layer's two LayerNorms: four kernels write the normalised input in fp32 and read it three times, and read the
    output's gradient three times in place of once, 16 + 2 e bytes a number more.
    Source: UofT-EcoSystem/Tempo at 51ce091, src/inplace_layernorm/inplace_layernorm_kernel.cu.
    """
    e, scores = element_bytes, model.heads * model.seq / model.hidden
    ours = 2 * model.ffn / model.hidden + (2 * e + 1) * scores
    return (ours + 2 * (16 + 2 * e)) / ours


MULTIPLY_ADDS = 12 + 12 + 12 + 13
"""Of the published GELU's gradient: four polynomials, one for each range of the output. The threads of a warp, whose
values lie in all ranges, take every one of them. Source: src/inplace_gelu/gelu_kernel.cu of the same revision."""


def polynomials_s(step: Step) -> float:
    """Return the seconds a step in which a device evaluates the published polynomials, at its peak in fp32.

    Raises:
        InputError: nobody says what the device does in fp32.
    """
    model, hardware = step.model, step.cluster.hardware
    if hardware.peak_fp32_flop_per_s is None:
        raise InputError("device", step.cluster.device, "one with peak_fp32_flop_per_s in the catalog")
    numbers = step.plan.global_batch / step.cluster.gpus * model.seq * model.ffn * model.layers
    return 2 * MULTIPLY_ADDS * numbers / hardware.peak_fp32_flop_per_s.value


def by_published_kernels(gain: Gain, element_bytes: int) -> tuple[float, float]:
    """Return the percent more throughput with kernels that move and compute what the published ones do.

    element_bytes: of activations. First where nothing hides the GELU's arithmetic, then where its memory traffic does.
    """
    after = gain.steps[1]
    factor = published_factor(after.model, element_bytes)
    return gain.percent_at(factor, polynomials_s(after)), gain.percent_at(factor)
