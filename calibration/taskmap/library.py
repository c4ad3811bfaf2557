"""Kernels tuned for this processor, on torch tensors: products and convolutions, chosen once for each size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from calibration.taskmap.contraction import BIAS, Contraction, Elementwise
from calibration.taskmap.cost import Costs
from calibration.taskmap.native import Kernel, compiled
from calibration.taskmap.processor import Processor, processor
from calibration.taskmap.program import fused_after
from calibration.taskmap.space import KernelSchedule
from calibration.taskmap.tune import TOP, Bench, Chosen, learned, tune
from sim.specs.fields import InputError

Key = tuple[Contraction, tuple[int, ...]]


@dataclass
class Library:
    """Tuned kernels of a processor, of fp32; what is learned and chosen is kept as long as it lives.

    The costs of a contraction are learned when it is first asked for. Each new size then takes the measurement of at
    most `top` schedules.
    """

    machine: Processor = field(default_factory=processor)
    threads: int = 1
    top: int = TOP
    costs: dict[Contraction, Costs] = field(default_factory=dict)
    chosen: dict[Key, Chosen[KernelSchedule]] = field(default_factory=dict)
    kernels: dict[tuple[Key, tuple[Elementwise, ...]], Kernel] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> "Library":
        return self  # of the processor, which a copy of a network runs on, too

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._anew, (self.threads, self.top)  # machine code and times are of this process' processor

    @classmethod
    def _anew(cls, threads: int, top: int) -> "Library":
        return cls(threads=threads, top=top)

    def choice(self, contraction: Contraction, sizes: Mapping[str, int]) -> Chosen[KernelSchedule]:
        """Return the schedule for a contraction at some sizes."""
        key = contraction, tuple(sizes.values())
        if key not in self.chosen:
            if contraction not in self.costs:
                self.costs[contraction] = learned(contraction, self.machine, self.threads)
            self.chosen[key] = tune(self.costs[contraction], Bench(contraction, sizes, self.threads), self.top)
        return self.chosen[key]

    def kernel(
        self, contraction: Contraction, sizes: Mapping[str, int], epilogue: Sequence[Elementwise] = ()
    ) -> Kernel:
        """Return the tuned kernel; functions of the epilogue are fused into it after it is chosen."""
        key = (contraction, tuple(sizes.values())), tuple(epilogue)
        if key not in self.kernels:
            program = self.choice(contraction, sizes).schedule.program(contraction)
            self.kernels[key] = compiled(fused_after(program, *epilogue))
        return self.kernels[key]

    def __call__(
        self,
        contraction: Contraction,
        a: Tensor,
        b: Tensor,
        sizes: Mapping[str, int],
        shape: Sequence[int],
        epilogue: Sequence[Elementwise] = (),
        bias: Tensor | None = None,
    ) -> Tensor:
        """Return C in `shape`, after the bias, if there is one, and the epilogue.

        Raises:
            InputError: a tensor is not of fp32 on the host.
        """
        epilogue = (*(() if bias is None else (BIAS,)), *epilogue)
        given = {"a": a, "b": b, **({} if bias is None else {"bias": bias})}
        for name, tensor in given.items():
            if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
                raise InputError(name, f"{tensor.dtype} on {tensor.device.type}", "torch.float32 on cpu")
        held = [tensor.detach().contiguous() for tensor in given.values()]  # until the kernel has read them
        c = torch.empty(shape)
        held.insert(2, c)
        kernel = self.kernel(contraction, sizes, epilogue)
        kernel.launch([tensor.data_ptr() for tensor in held], sizes, self.threads)
        return c
