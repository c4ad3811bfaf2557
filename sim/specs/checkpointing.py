"""When training state is saved, where to, and what fails (CheckFreq, FAST '21)."""

from dataclasses import field
from typing import Annotated, Literal, get_args

from pydantic import Field

from sim.specs.catalog import storage
from sim.specs.fields import DERIVED, InputError, real, spec, whole
from sim.specs.named import StoredAt

Policy = Literal["checkfreq", "checkfreq-rule", "checkfreq-released", "young", "daly", "best"]
Snapshot = Literal["auto", "device", "host", "none"]

STORAGE = "nvme"
MOST_STEPS = 1_000_000_000
EVERY = f"steps from 1 to {MOST_STEPS}, or one of {', '.join(get_args(Policy))}"
DEVICE_MTBF_S = 16_384 * 54 * 86_400 / 419
"""Of one H100 with its share of host, network and software: 419 unexpected interruptions in 54 days on 16,384 of them
(The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.4)."""

USUAL_FAILURES = {
    "device_mtbf_s": (DEVICE_MTBF_S, "419 unexpected interruptions in 54 days on 16,384 H100s, arXiv 2407.21783"),
    "restart_s": (300.0, "an assumption: noticing, rescheduling and starting all processes again"),
    "repair_s": (86_400.0, "an assumption: a day until a node that failed is back"),
}


@spec
class Failures:
    """What fails, and what happens then; times in seconds.

    `device_mtbf_s`: mean time between failures of one device that stop the run; `node_mtbf_s`: of a whole node at once,
    beside those of its devices (left out: none). After either the node is away for `repair_s`, and training goes on
    after `restart_s` and reading the last checkpoint: on one of `spares` hot spare nodes, else, if `elastic`, on fewer
    replicas, else when the node is back.

    Raises:
        InputError: a number is out of range.
    """

    device_mtbf_s: Annotated[float, real(1.0, 1e15, "s")] = DERIVED
    node_mtbf_s: Annotated[float, real(1.0, 1e15, "s")] | None = None
    restart_s: Annotated[float, real(0.0, 1e7, "s")] = DERIVED
    repair_s: Annotated[float, real(0.0, 1e9, "s")] = DERIVED
    spares: Annotated[int, whole(0, 100_000, "nodes")] = 0
    elastic: bool = False
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        assumed = []
        for name, (value, why) in USUAL_FAILURES.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
                assumed.append(f"checkpointing.failures.{name} = {value:.3g} ({why})")
        object.__setattr__(self, "assumptions", tuple(assumed))


@spec
class Checkpointing:
    """How training state is kept.

    `every`: steps between two checkpoints, or the policy that chooses them: checkfreq (the least that stays within
    `overhead_budget`), checkfreq-rule (CheckFreq's own rule, which counts no contention), checkfreq-released (its
    released code's, which counts all of the snapshot as a stall), young and daly (the interval of least lost time) or
    best (of most goodput). `snapshot`: a copy on the device or in host memory that training goes on beside (auto: on
    the device if it fits and is faster), or none: training waits until the state is written. `storage`: a name of the
    catalog or its numbers. `contention`: by how much of itself a step takes longer while a snapshot is written to
    storage, and the writing beside steps. `state_bytes`: of the whole run (left out: weights and optimizer states of
    the plan).

    Raises:
        InputError: a number is out of range or a name is unknown.
    """

    every: Annotated[int | Policy, Field(description=EVERY)] = "checkfreq"
    overhead_budget: Annotated[float, real(1e-4, 1.0)] = 0.035
    snapshot: Snapshot = "auto"
    storage: StoredAt = DERIVED
    contention: Annotated[float, real(0.0, 100.0)] = DERIVED
    state_bytes: Annotated[float, real(1.0, 1e15, "B")] | None = None
    failures: Failures = DERIVED
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.every, int) and not 1 <= self.every <= MOST_STEPS:
            raise InputError("every", self.every, EVERY)
        assumed = []
        if getattr(self, "storage") is None:  # noqa: B009 - declared storage, None when left out
            object.__setattr__(self, "storage", storage(STORAGE))
            assumed.append(f"checkpointing.storage: {STORAGE}")
        if getattr(self, "contention") is None:  # noqa: B009 - declared float, None when left out
            object.__setattr__(self, "contention", 0.0)
            assumed.append("checkpointing.contention = 0 (writing a snapshot does not slow training; not measured)")
        if getattr(self, "failures") is None:  # noqa: B009
            object.__setattr__(self, "failures", Failures())
        object.__setattr__(self, "assumptions", (*assumed, *self.failures.assumptions))
