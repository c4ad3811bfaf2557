"""PyTorch's pipelining runtime, which is private API: this module alone touches it (`_PipelineScheduleRuntime`).

It runs any order of one direction from a CSV file ("compute_only": it adds messages and gradient reduction itself).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage, schedules
from torch.profiler import ProfilerActivity, profile

from calibration.execute.versions import check_torch
from sim.specs import InputError

NEEDED = ("_load_csv", "_step_microbatches", "step")
ACTIONS = ("0F0", "1I2", "1W2", "3B7", "(0F7;7B3)OVERLAP_F_B")
"""Of a schedule's file, as torch itself writes them."""


@dataclass(frozen=True)
class Wiring:
    """What a stage reads and writes: examples without data (`meta`), and the ranks that the stages are on."""

    input: Tensor
    output: Tensor
    group: ProcessGroup
    device: torch.device


class Stage(PipelineStage):
    """A stage that notes every pass that is run on it, after it has ended.

    weighed: called after every W, which adds to the weights' gradients without autograd's hooks.
    """

    def __init__(
        self,
        module: nn.Module,
        index: int,
        stages: int,
        wiring: Wiring,
        done: list[str],
        weighed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            module,
            index,
            stages,
            wiring.device,
            input_args=(wiring.input,),
            output_args=(wiring.output,),
            group=wiring.group,
        )
        self.done, self.weighed = done, weighed

    def _noted(self, kind: str, microbatch: int, run: Callable[[], Any]) -> Any:
        result = run()
        self.done.append(f"{self.stage_index}{kind}{microbatch}")
        return result

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        """Return torch's first messages to neighbouring stages, but for those on this very rank: gloo has none."""
        ops: list[Any] = super()._get_init_p2p_neighbors_ops()
        return [op for op in ops if op.group_peer != self.group_rank]

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run and note an F."""
        return self._noted(
            "F", fwd_chunk_id, lambda: super(Stage, self).forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        )

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run and note a B, or an I where the backward is split."""
        kind = "B" if kwargs.get("full_backward", True) else "I"
        return self._noted(
            kind, bwd_chunk_id, lambda: super(Stage, self).backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run and note a W."""
        made = self._noted(
            "W", bwd_chunk_id, lambda: super(Stage, self).backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        )
        self.weighed()
        return made


class Pipeline:
    """One rank's stages, run in the order of a CSV file over `microbatches` microbatches.

    loss: of (output of the last stage, target), of one microbatch; gradients of all of them are added up as they are.

    Raises:
        InputError: a version of torch without this runtime.
        ValueError, AssertionError: torch's own refusal of an order (`sim.schedules.custom` refuses it before).
    """

    def __init__(
        self, stages: Sequence[Stage], order: Path, microbatches: int, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        check()
        self.stages = stages
        self.done = stages[0].done
        logging.getLogger(schedules.__name__).setLevel(logging.CRITICAL)  # on a failure it writes the whole schedule
        made: Any = schedules._PipelineScheduleRuntime
        self.runtime = made(list(stages), microbatches, loss_fn=loss, scale_grads=False)
        self.runtime._load_csv(str(order), format="compute_only")

    def step(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Run all passes of a batch (batch, ...); return the losses of the microbatches, where the last stage is."""
        self.done.clear()
        losses: list[Tensor] = []
        first, last = (any(getattr(s, which) for s in self.stages) for which in ("is_first", "is_last"))
        given = {"target": targets, "losses": losses} if last else {}
        self.runtime.step(*((inputs,) if first else ()), **given, return_outputs=False)
        return losses

    def buffers(self) -> list[Tensor]:
        """Return what messages are received into, which lives from the first step on."""
        held = [infos for s in self.stages for kept in (s.args_recv_info, s.grad_recv_info) for infos in kept.values()]
        found = [getattr(info, "buffer", None) for infos in held for info in infos]  # what enters from outside has none
        return [buffer for buffer in found if buffer is not None]


def check() -> None:
    """Return if torch's runtime has what is used of it here: its methods, and how it reads and writes actions.

    Raises:
        InputError: another version of torch, or one whose runtime has changed.
    """
    check_torch(torch.__version__)
    runtime: Any = getattr(schedules, "_PipelineScheduleRuntime", None)
    missing = [name for name in NEEDED if not hasattr(runtime, name)]
    if missing:
        raise InputError("torch", torch.__version__, f"a _PipelineScheduleRuntime with {', '.join(missing)}")
    for text in ACTIONS:
        if (read := str(schedules._Action.from_str(text))) != text:
            raise InputError("torch", torch.__version__, f"one that reads action {text} as such, not as {read}")


@contextmanager
def tracing(path: Path) -> Iterator[None]:
    """Write a trace of what is done, with the ranges `PP:<action>` of the runtime, as `sim.validation.traces` reads."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        yield
    profiler.export_chrome_trace(str(path))
