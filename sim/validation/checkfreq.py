"""What is published of CheckFreq (FAST '21), by its authors and by PCcheck's (ASPLOS '25), beside what is predicted.

The authors bound overhead and shorten recovery on networks of 2021; settings that the abstract does not state are
assumptions here, said where they stand. PCcheck's measured CheckFreq on one A100 of Google Cloud. Nothing is fitted:
how fast snapshots are copied to memory that is not pinned is not stated either, and predicted is a range.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from sim.checkpointing import Advice, Times, plan, times
from sim.costs.carry import carried_to_fp32, ratios
from sim.costs.profile import CARRY_SIGMA_LOG, load_profile, profile_text
from sim.engine.step import Step, simulate
from sim.specs import Checkpointing, Cluster, Failures, Model, Plan, Storage
from sim.specs.catalog import device, storage
from sim.specs.files import write_atomically

PAPER = "CheckFreq: Frequent, Fine-Grained DNN Checkpointing, FAST '21, abstract"
PCCHECK = "PCcheck: Persistent Concurrent Checkpointing for ML, ASPLOS '25"
OVERHEAD_PERCENT = 3.5
"""CheckFreq's bound on the overhead, over all models, storage and GPUs of the abstract."""

FP32 = 4
MOMENTUM, ADAM = 4, 8
"""Bytes a parameter of SGD's momentum and of Adam's moments, beside fp32 weights."""
IMAGES = 1_281_167
"""Of ImageNet-1k: an epoch."""
TASK_SAMPLES = 88_524
"""Of SQuAD v1.1's training set, as fine-tuning of BERT cuts it: an epoch."""


class Network(NamedTuple):
    """Parameters, multiply-adds of a sample's forward (torchvision's counts, at its usual size), bytes of optimizer
    states a parameter, samples of an epoch."""

    parameters: int
    multiply_adds: float
    states: int
    epoch: int

    @property
    def state_bytes(self) -> float:
        """Of weights and optimizer."""
        return float(self.parameters * (FP32 + self.states))


NETWORKS = {
    "resnet18": Network(11_689_512, 1.81e9, MOMENTUM, IMAGES),
    "resnet50": Network(25_557_032, 4.09e9, MOMENTUM, IMAGES),
    "vgg16": Network(138_357_544, 15.47e9, MOMENTUM, IMAGES),
    "densenet121": Network(7_978_856, 2.83e9, MOMENTUM, IMAGES),
    "inception-v3": Network(27_161_264, 5.71e9, MOMENTUM, IMAGES),
    # 384 tokens a sample; products with all weights but the embeddings
    "bert-large": Network(335_141_888, 384 * 304e6, ADAM, TASK_SAMPLES),
}
DEVICES = {"v100-sxm-16gb": 15.7e12, "gtx-1080-ti": 11.3e12}
"""Peaks in fp32 FLOP/s by datasheets; links to the host are PCIe 3.0 x16."""
EFFICIENCY = 0.5
"""Share of that peak in training. Assumption: a V100 in fp32 trains ResNet-50 at about 360 images/s."""
BATCH = {"bert-large": 4}
USUAL_BATCH = 64
"""Samples a device, of all but BERT. Assumptions."""
UPDATE = 0.03
"""Share of a step that updates weights. Assumption."""
SNAPSHOT_BYTES_PER_S = (1e9, 2e9, 4e9)
"""Of copies to host memory that is not pinned, which the driver stages and one core moves on: the least, the middle and
the most. Assumptions."""


def disk(name: str) -> Storage:
    """Return storage of the catalog, from which a checkpoint is read in order: no slower than it is written."""
    found = storage(name)
    return replace(found, read_bytes_per_s=max(found.read_bytes_per_s, found.write_bytes_per_s))


@dataclass(frozen=True)
class Case:
    """A network of CheckFreq's paper on a device and a disk: how often, at what cost, and how long a recovery takes."""

    network: str
    device: str
    storage: str
    times: Times
    advice: Advice
    epoch_s: float

    @property
    def by_epochs_s(self) -> float:
        """Mean recovery where only the end of an epoch is saved: half of it on one device, and reading."""
        return self.epoch_s / 2 + self.times.reload_s


def case(network: str, device_name: str, storage_name: str) -> Case:
    """Return one of `cases`."""
    held, kept, batch = NETWORKS[network], disk(storage_name), BATCH.get(network, USUAL_BATCH)
    iteration = 6 * held.multiply_adds * batch / (EFFICIENCY * DEVICES[device_name])  # forward and twice it backward
    made = Times.of(iteration, held.state_bytes, kept, SNAPSHOT_BYTES_PER_S[1], update_s=UPDATE * iteration)
    given = Checkpointing(overhead_budget=OVERHEAD_PERCENT / 100)
    return Case(network, device_name, storage_name, made, plan(made, given), held.epoch / batch * iteration)


def cases() -> Iterator[Case]:
    """Yield every network on either device with a solid-state and a magnetic disk."""
    for name in DEVICES:
        for disk_name in ("sata-ssd", "hdd"):
            yield from (case(network, name, disk_name) for network in NETWORKS)


class Published(NamedTuple):
    """How many times as long training takes with a checkpoint every k steps."""

    network: str
    steps_between: int
    slowdown: float
    source: str


PUBLISHED = Published("opt-1.3b", 50, 1.17, PCCHECK)
A100_FP32 = 19.5e12
"""Peak without TF32, which PyTorch 2.1 leaves out of matrix products (NVIDIA A100 datasheet)."""


@dataclass(frozen=True)
class Row:
    """What is published, and what is predicted with snapshots at the middle rate. `interval`: from the fastest to the
    slowest snapshots; `pinned`: with copies over the full host link."""

    published: Published
    times: Times
    slowdown: float
    interval: tuple[float, float]
    pinned: float

    @property
    def error(self) -> float:
        """Of the prediction, relative."""
        return self.slowdown / self.published.slowdown - 1

    @property
    def bottleneck(self) -> str:
        """What training waits for: the snapshot, or the checkpoint before that is still being written."""
        advice = _every(self.times, self.published.steps_between)
        return "writing" if advice.waited_s > advice.exposed_s else "snapshot"


def opt_1_3b() -> Model:
    """Return OPT-1.3B (arXiv 2205.01068, table 1) on 1,024 tokens a sample, as Hugging Face's example cuts texts."""
    sizes: dict[str, Any] = {"layers": 24, "hidden": 2_048, "heads": 32, "ffn": 8_192, "vocab": 50_272, "seq": 1_024}
    return Model(name="opt-1.3b", max_positions=2_050, attention="eager", dropout=0.1, **sizes)


def opt_step(folder: Path) -> Step:
    """Return a step of it in fp32 on one A100 with 40 GB, one sample; folder: for a profile of fp32 kernels."""
    name = "a100-sxm-40gb"
    known = device(name)
    by = replace(ratios(known, known), compute=A100_FP32 / known.peak_bf16_flop_per_s.value)
    made = carried_to_fp32(load_profile(name), f"{name}-fp32", by, "by peaks of fp32 and 16 bit", CARRY_SIGMA_LOG)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "profile.json", profile_text(made))
    cluster = Cluster.of(name, nodes=1, gpus_per_node=1, profile=str(folder))
    return simulate(opt_1_3b(), cluster, Plan(global_batch=1, precision="fp32", framework="torch"))


def pccheck(folder: Path) -> Row:
    """Return PCcheck's measurement of CheckFreq beside ours; folder: for a profile of fp32 kernels."""
    step = opt_step(folder)
    pinned = times(step, Checkpointing(storage=storage("pd-ssd"), snapshot="host"))
    copied = [replace(pinned, host_snapshot_s=pinned.state_bytes / rate) for rate in SNAPSHOT_BYTES_PER_S]
    high, middle, low = (_slowdown(made, PUBLISHED.steps_between) for made in copied)
    return Row(PUBLISHED, copied[1], middle, (low, high), _slowdown(pinned, PUBLISHED.steps_between))


def _every(made: Times, steps_between: int) -> Advice:
    return plan(made, Checkpointing(every=steps_between))


def _slowdown(made: Times, steps_between: int) -> float:
    return 1 + _every(made, steps_between).overhead_fraction


def beside_best(made: Times, mtbf_s: float, restart_s: float = 60.0) -> Advice:
    """Return CheckFreq's k beside Young's, Daly's and that of most goodput, for failures every `mtbf_s` that a spare
    node takes over after `restart_s`."""
    failures = Failures(device_mtbf_s=mtbf_s, restart_s=restart_s, repair_s=0.0)
    return plan(made, Checkpointing(overhead_budget=OVERHEAD_PERCENT / 100, failures=failures), mtbf_s)
