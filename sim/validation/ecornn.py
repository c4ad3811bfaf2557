"""What EcoRNN (arXiv 1805.08899) publishes of faster LSTMs, and kernels measured on GPUs, beside what is predicted.

Nothing is fitted to it. Word language models of one to four LSTM layers train on one GPU in fp32, MXNet's default;
compared are passes, layers and ends of the model together: what a whole run adds to a step is the same for all. The
GPUs' kernels are carried over by peaks, bandwidths and multiprocessors. That a launch takes the host 5 us
(`host_s_per_launch`, and the floor of a small kernel) fits MXNet: 4.8 us in 659,205 launches (nvprof, pull request 9055
of apache/mxnet). Layouts come out alike, which misses the published figure: few rows leave as much of a tile idle as
few columns do, and what a library's kernels for transposed operands do otherwise is not in the model.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from sim.costs import kernels
from sim.costs.algebra import Interpreted, symbol
from sim.costs.carry import Ratios, carried_to_fp32
from sim.costs.profile import CARRY_SIGMA_LOG, Profile, load_profile, profile_text
from sim.costs.run_level import RunLevel, RunLevelSet
from sim.engine.step import Step, simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import device, models
from sim.specs.files import write_atomically

PAPER = "arXiv 1805.08899, abstract"
DEEPBENCH = "baidu-research/DeepBench README, training results"
Kernel = Literal["default", "cudnn", "fused"]
Quantity = Literal["seconds", "flop", "bytes", "launches"]
KERNELS: tuple[Kernel, ...] = ("default", "cudnn", "fused")
BASE = "v100-sxm-16gb"


class Published(NamedTuple):
    """How many times as long as `under` `over` takes: the most ("up to"), or about so."""

    over: Kernel
    under: Kernel
    ratio: float
    most: bool
    source: str


PUBLISHED = (
    Published("default", "fused", 3.0, True, PAPER),
    Published("cudnn", "fused", 1.5, True, PAPER),
    Published("default", "cudnn", 2.0, False, PAPER),
)


class Chip(NamedTuple):
    """A GPU by its datasheet: fp32 FLOP/s, memory's bytes/s, multiprocessors."""

    flop_per_s: float
    bytes_per_s: float
    multiprocessors: int


CHIPS: Mapping[str, Chip] = {
    "V100": Chip(15.7e12, 900e9, 80),
    "Titan Xp": Chip(12.15e12, 547.7e9, 30),
    "Titan X Pascal": Chip(10.97e12, 480e9, 28),
    "GTX 1080 Ti": Chip(11.34e12, 484e9, 28),
    "GTX 1080": Chip(8.87e12, 320e9, 20),
    "P100": Chip(10.6e12, 732e9, 56),
}
"""NVIDIA's datasheets and, of the GeForce and Titan cards, specifications at boost clock."""


class Skinny(NamedTuple):
    """A measured product in fp32: m results of each of n columns, sums of k, at so many FLOP/s."""

    chip: str
    m: int
    n: int
    k: int
    flop_per_s: float


SKINNY = (
    Skinny("GTX 1080 Ti", 1760, 128, 1760, 7.93e12),
    Skinny("Titan X Pascal", 7860, 64, 2560, 5.59e12),
    Skinny("P100", 2560, 64, 2560, 5.31e12),
    Skinny("Titan X Pascal", 3072, 128, 1024, 6.01e12),
)
"""All products of `DEEPBENCH` with few columns: what a time step of a recurrent layer computes."""


class Timed(NamedTuple):
    """A measured training step of one LSTM layer by cuDNN in fp32; inputs: whether their products are in it."""

    chip: str
    hidden: int
    batch: int
    seq: int
    seconds: float
    source: str


TIMED = (
    Timed("Titan Xp", 1024, 128, 25, 9.76e-3, DEEPBENCH),
    Timed("GTX 1080", 256, 32, 200, 14.0e-3, "MilesQLi, gist 22d116118fd762b20608a19b36c32fc0: torch 0.4, 40 inputs"),
)
"""Both all but without the products of the inputs."""

GRID: Mapping[str, tuple[int, ...]] = {
    "hidden": (256, 512, 1024), "batch": (32, 64, 128), "seq": (25, 50, 100), "layers": (1, 2, 4),
}  # fmt: skip
"""Sizes of the word language models."""


@dataclass(frozen=True)
class Point:
    """Seconds by kernel: of all passes, of the recurrent layers in them, and in which the host launches these."""

    hidden: int
    batch: int
    seq: int
    layers: int
    passes_s: Mapping[Kernel, float]
    layers_s: Mapping[Kernel, float]
    launching_s: Mapping[Kernel, float]

    def ratio(self, over: Kernel, under: Kernel) -> float:
        """Return how many times as long one takes as the other."""
        return self.passes_s[over] / self.passes_s[under]

    def launching(self, kernel: Kernel) -> float:
        """Return the share of the layers' time in which the host launches their kernels."""
        return self.launching_s[kernel] / self.layers_s[kernel]

    @property
    def layout(self) -> str:
        """The layout that fused layers take: samples in rows, as cuDNN's way, or in columns."""
        return "columns" if self.passes_s["fused"] < self.passes_s["cudnn"] else "rows"


class Compared(NamedTuple):
    """A published ratio beside the predicted ones."""

    published: Published
    least: float
    median: float
    most: float

    @property
    def name(self) -> str:
        """Whose time over whose, and which of all such ratios."""
        one = self.published
        return f"{one.over} over {one.under}, {'at most' if one.most else 'about'}"

    @property
    def ours(self) -> float:
        """What the published ratio is to be compared with."""
        return self.most if self.published.most else self.median


def in_fp32(chip: str) -> Profile:
    """Return the profile of a GPU's fp32 kernels, carried over from the V100's in 16 bit.

    Raises:
        InputError: nobody says what the chip can do.
    """
    if chip not in CHIPS:
        raise InputError("chip", chip, "one of " + ", ".join(CHIPS))
    base, known, to = load_profile(BASE), device(BASE), CHIPS[chip]
    by = Ratios(
        to.flop_per_s / known.peak_bf16_flop_per_s.value,
        to.bytes_per_s / known.memory_bytes_per_s.value,
        to.multiprocessors / known.sms.value,
        anchored=False,
    )
    made = carried_to_fp32(base, f"{chip} fp32", by, "by datasheets", CARRY_SIGMA_LOG)
    return made.with_issue_of(None)  # MXNet's engine issues kernels, not Python


def one_gpu(chip: str, folder: Path) -> Cluster:
    """Return a GPU of `CHIPS` on the V100's host; its profile is written into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "profile.json", profile_text(in_fp32(chip)))
    return Cluster.of(BASE, nodes=1, gpus_per_node=1, profile=str(folder))


def language_model(hidden: int, seq: int, layers: int) -> Model:
    """Return the catalog's LSTM language model (10,000 words) in other sizes."""
    named = f"lstm-lm-{layers}x{hidden}"
    return replace(models["lstm-lm"], name=named, layers=layers, pattern="L" * layers, hidden=hidden, seq=seq)


def step(model: Model, cluster: Cluster, batch: int, kernel: Kernel, level: RunLevelSet | None = None) -> Step:
    """Return a step of all samples at once; level: run-level parameters, by default the shipped ones."""
    plan = Plan(global_batch=batch, micro_batch=batch, precision="fp32", recurrent_kernel=kernel)
    return simulate(model, cluster, plan, level=level)


def points(cluster: Cluster) -> Iterator[Point]:
    """Yield every model of `GRID` with what its passes take on a GPU."""
    for hidden, batch, seq, layers in product(*GRID.values()):
        model = language_model(hidden, seq, layers)
        steps: dict[Kernel, Step] = {kernel: step(model, cluster, batch, kernel) for kernel in KERNELS}
        passes: dict[Kernel, float] = {kernel: one.breakdown_s["compute"] for kernel, one in steps.items()}
        layers_s: dict[Kernel, float] = {kernel: of_layers(one, "seconds") for kernel, one in steps.items()}
        launching: dict[Kernel, float] = {kernel: launching_s(one) for kernel, one in steps.items()}
        yield Point(hidden, batch, seq, layers, passes, layers_s, launching)


def ratios(found: Iterable[Point], over: Kernel, under: Kernel, seq: int, layers: int) -> dict[str, dict[str, float]]:
    """Return ratios of models of `layers` layers by width, then by batch."""
    table: dict[str, dict[str, float]] = {}
    for one in found:
        if (one.seq, one.layers) == (seq, layers):
            table.setdefault(str(one.hidden), {})[str(one.batch)] = one.ratio(over, under)
    return table


def of_layers(step: Step, quantity: Quantity, name: str = "recurrent") -> float:
    """Return what the kernels of all recurrent layers take of a quantity in a microbatch; name: how theirs begin."""
    return float(sum(getattr(op, quantity) * op.count for op in step.operations if op.name.startswith(name)))


PARTS = {
    "products of inputs": "recurrent in",
    "products of states": "recurrent state",
    "between two products": "recurrent gates",
    "sums of gradients": "recurrent wgrad sums",
}
"""What a recurrent layer does, and how its kernels' names begin."""


def by_part(step: Step, quantity: Quantity, scale: float = 1.0) -> dict[str, float]:
    """Return what each part of a layer's training step takes of a quantity, over `scale`."""
    whole = scale * step.model.layers
    return {part: of_layers(step, quantity, name) / whole for part, name in PARTS.items()}


def by_kernel(
    cluster: Cluster, model: Model, batch: int, quantity: Quantity, scale: float = 1.0
) -> dict[Kernel, dict[str, float]]:
    """Return `by_part` of every kernel."""
    return {kernel: by_part(step(model, cluster, batch, kernel), quantity, scale) for kernel in KERNELS}


def launching_s(step: Step) -> float:
    """Return the seconds that the host launches kernels of recurrent layers in a microbatch."""
    return of_layers(step, "launches") * step.level.parameters.host_s_per_launch


def compared(found: Iterable[Point]) -> tuple[Compared, ...]:
    """Return every published ratio beside those of some points."""
    kept, rows = list(found), []
    for one in PUBLISHED:
        ratios = [point.ratio(one.over, one.under) for point in kept]
        rows.append(Compared(one, min(ratios), median(ratios), max(ratios)))
    return tuple(rows)


def product_flop_per_s(one: Skinny, finest: bool = True) -> float:
    """Return the predicted rate of a product; finest: with small tiles, as recurrent layers take it."""
    m, n, k = (symbol(name) for name in ("m", "n", "k"))
    tile = kernels.SMALLEST_TILE if finest else None
    seconds = kernels.product_seconds("forward", n, m, k, plain=True, smallest_tile=tile)
    at = in_fp32(one.chip).values | {"m": one.m, "n": one.n, "k": one.k, "element_bytes": 4.0, "gemm_slowdown": 1.0}
    return 2.0 * one.m * one.n * one.k / float(Interpreted({"seconds": seconds})(at)["seconds"])


def layer_seconds(one: Timed, folder: Path) -> float:
    """Return the predicted seconds of a layer without the products of its inputs; folder: for a profile.

    It was timed by itself: what whole runs take longer than single kernels is not in it.
    """
    alone, gpu = RunLevelSet.bare(RunLevel()), one_gpu(one.chip, folder)
    made = step(language_model(one.hidden, one.seq, 1), gpu, one.batch, "cudnn", alone)
    skipped = ("recurrent in", "recurrent dropout")
    return of_layers(made, "seconds") - sum(of_layers(made, "seconds", name) for name in skipped)
