"""A decentralised training: what is trained where, over which network, by which algorithm and controller."""

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from sim.decentralized.communication import KNOBS, AlgorithmName, Communication
from sim.decentralized.controllers import CONTROLLERS
from sim.decentralized.objective import Objective
from sim.decentralized.traffic import Messages, Sizes
from sim.decentralized.wan import MOST_PARTITIONS, PerPartition, Wan, checked_row, row_of, tuples
from sim.engine.clock import tick_array
from sim.specs.arguments import checked
from sim.specs.fields import DERIVED, InputError, read, real, spec, whole
from sim.specs.files import load_mapping

Ints = NDArray[np.int64]
PARAMETERS = 25_000_000
STEP_S = 0.2
TRAVEL_EVERY = 500
MOST_STEPS = 1_000_000
MOST_JITTERED = 20_000_000
LONGEST_S = 4e9
"""Of all that a partition computes, and of one message: ticks of both together are whole numbers of 64 bits."""


@spec
class Failure:
    """A partition that is gone from `at_s` on."""

    partition: Annotated[int, whole(0, MOST_PARTITIONS - 1, "a partition")]
    at_s: Annotated[float, real(0.0, 1e9, "s")]


@spec
class Decentralized:
    """Training of `steps` minibatches on every partition, `skew` of whose data was sorted by label before it was split.

    `theta` is the algorithm's knob (left out: the middle of `thetas`); a `controller` other than fixed begins with it
    (left out: with the last, which costs the least traffic until it is known to lose too much). `thetas`: what a
    controller may choose, from the most traffic to the least (left out: the algorithm's usual ones). Every
    `travel_every` minibatches (0: never; left out: 500 with such a controller, else never) each partition's model
    travels to one other, where its accuracy is taken in `evaluate_s`, as at home. A minibatch takes `step_s` (a number,
    or one for each partition); `jitter` is the standard deviation of its logarithm. Who waits for a partition that
    failed notices `timeout_s` after everything else has arrived. `noise`: accuracy losses are drawn about the fitted
    ones, by `seed`. `warm_up_steps`: of each stage of DGC's warm-up. `norm` and `data` choose among the short runs that
    say what accuracy is lost.

    Raises:
        InputError: a number is out of range or a name is unknown.
    """

    algorithm: AlgorithmName = "fedavg"
    theta: Annotated[float, real(0.0, 1e6)] | None = None
    controller: str = "fixed"
    thetas: Annotated[
        tuple[float, ...], BeforeValidator(tuples), Field(max_length=100, description="a list of thetas")
    ] = DERIVED
    skew: Annotated[float, real(0.0, 1.0)] = 1.0
    steps: Annotated[int, whole(1, MOST_STEPS)] = 10_000
    step_s: PerPartition = DERIVED
    jitter: Annotated[float, real(0.0, 1.0)] = 0.0
    sizes: Sizes = DERIVED
    wan: Wan = DERIVED
    travel_every: Annotated[int, whole(0, MOST_STEPS, "minibatches")] = DERIVED
    evaluate_s: Annotated[float, real(0.0, 1e6, "s")] = DERIVED
    objective: Objective = field(default_factory=Objective)
    warm_up_steps: Annotated[int, whole(0, MOST_STEPS, "steps")] = 0
    failures: Annotated[
        tuple[Failure, ...], BeforeValidator(tuples), Field(max_length=1_000, description="a list of failures")
    ] = ()
    timeout_s: Annotated[float, real(0.0, 1e6, "s")] = DERIVED
    noise: bool = True
    seed: Annotated[int, whole(0, 2**31)] = 0
    norm: str | None = None
    data: str | None = None
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)
    filled: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)
    """Names of fields that were left out."""

    def __post_init__(self) -> None:
        self._fill()
        self._check_thetas()
        checked_row("step_s", self.step_s, self.wan.partitions, 0.0, 1e6, "s")
        longest_s = max(row_of(self.step_s, self.wan.partitions))
        if self.steps * longest_s > LONGEST_S:
            raise InputError("step_s", longest_s, f"with {self.steps} steps at most {LONGEST_S / self.steps:g} s")
        for n, failure in enumerate(self.failures):
            if failure.partition >= self.wan.partitions:
                allowed = f"a partition from 0 to {self.wan.partitions - 1}"
                raise InputError(f"failures.{n}.partition", failure.partition, allowed)
        if self.jitter and self.steps * self.wan.partitions > MOST_JITTERED:
            raise InputError("steps", self.steps, f"with jitter at most {MOST_JITTERED // self.wan.partitions}")

    def _fill(self) -> None:
        """Fill in what was left out, and tell what matters of it."""
        usual: dict[str, tuple[Any, str]] = {
            "travel_every": (TRAVEL_EVERY if self.adapts else 0, f"{TRAVEL_EVERY} minibatches" if self.adapts else ""),
            "step_s": (STEP_S, f"{STEP_S} s a minibatch"),
            "sizes": (Sizes(parameters=PARAMETERS), f"{PARAMETERS:,} parameters in one tensor"),
            "wan": (Wan(), "5 partitions, 100 Mbit/s and 50 ms from each to each other"),
            "evaluate_s": (1.0, "1 s to take the accuracy of a model that travels" if self.travels else ""),
            "timeout_s": (30.0, "30 s until partitions go on without one that failed" if self.failures else ""),
        }
        left_out = [name for name in (*usual, "thetas", "theta") if getattr(self, name) is None]
        object.__setattr__(self, "filled", tuple(left_out))
        told = []
        for name, (value, words) in usual.items():
            if name in left_out:
                object.__setattr__(self, name, value)
                told += [f"{name}: {words} (an assumption)"] if words else []
        if "thetas" in left_out:
            object.__setattr__(self, "thetas", KNOBS[self.algorithm].thetas)
        if self.algorithm == "dgc" and not self.sizes.tensors:
            told.append("sizes.tensors: all parameters in one; DGC sends a share of every tensor")
        object.__setattr__(self, "assumptions", tuple(told))

    def _check_thetas(self) -> None:
        if self.controller not in CONTROLLERS:
            raise InputError("controller", self.controller, f"one of {', '.join(CONTROLLERS)}")
        if not self.thetas or list(self.thetas) != sorted(set(self.thetas)):
            raise InputError("thetas", self.thetas, "thetas in ascending order: from the most traffic to the least")
        for n, theta in enumerate(self.thetas):
            try:
                Communication(algorithm=self.algorithm, theta=theta)
            except InputError as error:
                raise InputError(f"thetas.{n}", error.value, error.allowed) from None
        if self.adapts and len(self.thetas) == 1:
            told = f"fixed with one theta, {self.thetas[0]:g}: there is no other to move to"
            raise InputError("controller", self.controller, told)
        if self.theta is None:
            middle = self.thetas[(len(self.thetas) - 1) // 2]
            object.__setattr__(self, "theta", self.thetas[-1] if self.adapts else middle)
        Communication(algorithm=self.algorithm, theta=self.begin)
        if self.adapts and self.begin not in self.thetas:
            raise InputError("theta", self.theta, f"one of thetas: {', '.join(f'{t:g}' for t in self.thetas)}")
        if self.adapts and not self.travel_every:
            raise InputError("travel_every", 0, "1 or more with a controller, which decides by what travels")
        if self.adapts and self.travel_every > self.steps:
            allowed = f"at most {self.steps} (steps) with a controller, which else never decides"
            raise InputError("travel_every", self.travel_every, allowed)

    @classmethod
    @checked
    def load(cls, path: str | Path) -> "Decentralized":
        """Return the setting in a YAML or JSON file. Raises InputError with the path of the first wrong field."""
        return read(cls, load_mapping(Path(path)))

    @property
    def begin(self) -> float:
        """The theta with which training begins."""
        assert self.theta is not None
        return self.theta

    @property
    def travels(self) -> bool:
        """Whether models travel."""
        return self.adapts if getattr(self, "travel_every") is None else self.travel_every > 0  # noqa: B009

    @property
    def adapts(self) -> bool:
        """Whether theta changes while it trains."""
        return self.controller != "fixed"

    @property
    def partitions(self) -> int:
        """K."""
        return self.wan.partitions

    def messages(self, theta: float, sent_fraction: float = 1.0) -> Messages:
        """Return what partitions send with a theta; `sent_fraction` of the values with Gaia."""
        return Messages(
            communication=Communication(algorithm=self.algorithm, theta=theta),
            sizes=self.sizes,
            warm_up_steps=self.warm_up_steps,
            sent_fraction=sent_fraction,
        )

    @cached_property
    def _jittered(self) -> Ints:
        """Ticks (K, steps + 1) that each partition has computed before each step and after the last, with jitter."""
        base = np.array(row_of(self.step_s, self.partitions))[:, None]
        drawn = np.random.default_rng(self.seed).standard_normal((self.partitions, self.steps))
        factor = np.exp(self.jitter * drawn - self.jitter**2 / 2)  # the mean stays
        return np.pad(np.cumsum(tick_array(base * factor), axis=1), ((0, 0), (1, 0)))

    def computed(self, steps: Sequence[int] | Ints) -> Ints:
        """Return the ticks (K, N) that each partition has computed after each of N numbers of steps."""
        after = np.asarray(steps, dtype=np.int64)
        if self.jitter:
            return self._jittered[:, after]
        return tick_array(row_of(self.step_s, self.partitions))[:, None] * after

    def with_(self, **changes: Any) -> "Decentralized":
        """Return the setting with other values, and what was left out filled in anew.

        Another algorithm has thetas of its own.

        Raises:
            InputError: a value is out of range.
        """
        if changes.get("algorithm", self.algorithm) != self.algorithm:
            changes = {"theta": None, "thetas": None} | changes
        left_out: dict[str, Any] = dict.fromkeys(self.filled)
        return replace(self, **(left_out | changes))
