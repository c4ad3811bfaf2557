"""One rank of a training step as the simulator describes it (ZeRO-0 and ZeRO-1, tensor and pipeline parallel).

Weights, gradients and optimizer states lie in flat buffers (Megatron-LM's distributed optimizer, DDP's
`gradient_as_bucket_view`): gradients are summed in place over the microbatches, reduced once a step, and one fused Adam
updates what the rank holds. With `overlap_dp` a block's gradients are reduced as soon as the last backward pass has
made them; the tables' come last in any case.
"""

from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibration.execute.host import HostMemory
from calibration.execute.moved import Mover
from calibration.execute.network import Chunk
from calibration.execute.place import ENDS, Place
from calibration.execute.runtime import Pipeline, Stage, Wiring
from calibration.execute.split import Split, gradient_of, local, whole_of
from calibration.execute.swapped import SwappedAdam
from calibration.kernels.gpt import SmallGpt
from calibration.kernels.tuned import library
from calibration.layers.tempo import with_tempo
from calibration.taskmap.networks import with_tuned_linears
from sim.specs import Model, Plan

CPU = torch.device("cpu")
LEARNING_RATE = 1e-3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def chunks_of(
    model: Model, plan: Plan, place: Place, seed: int, device: torch.device = CPU, mover: Mover | None = None
) -> dict[int, Chunk]:
    """Return a rank's stages by number: parts of the model that `seed` makes, alike on every rank."""
    with device:  # a processor takes long to draw as many numbers
        whole = SmallGpt(model, seed).to(DTYPES[plan.precision])
    split = Split.of(place.group("tp"), device, plan.sequence_parallel)
    edges = pairwise((0, *accumulate(plan.split(model))))
    parts = [range(*edge) for edge in edges]
    held: dict[int, Chunk] = {}
    for stage, rank in enumerate(plan.rank_of):
        if rank == place.at["pp"]:
            first, last = stage == 0, stage == len(parts) - 1
            held[stage] = Chunk(
                whole, parts[stage], first=first, last=last, split=split, recompute=plan.recompute,
                recomputed=plan.recompute_layers, mover=mover,
            )  # fmt: skip
            if plan.tempo:
                with_tempo(held[stage].blocks)
            if plan.product_kernel == "task-mapped":
                with_tuned_linears(held[stage], library(torch.get_num_threads()))
            for block in held[stage].blocks.values() if plan.compiled else ():
                setattr(block, "forward", torch.compile(block.forward))  # noqa: B010 - names stay
    ends = held.get(0), held.get(len(parts) - 1)
    if model.tied_embeddings and ends[0] and ends[1]:
        ends[1].head.weight = ends[0].tokens.weight
    return held


class Trainer:
    """The state of one of `ranks` processes; all of them start from parts of the same weights (`seed`).

    plan: where stages have techniques of their own, `Trainer.plan` is this rank's for all (`Plan.at`). order: the CSV
    file of the pipeline's order.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        rank: int,
        ranks: int,
        device: torch.device,
        seed: int,
        order: Path | None = None,
    ) -> None:
        self.place = Place.of(plan.at(0), rank) if ranks > 1 else Place()
        plan = plan.at(self.place.at["pp"])
        self.model, self.plan, self.seed, self.device = model, plan, seed, device
        self.host, moved = HostMemory(device), plan.offload.activations
        self.chunks = chunks_of(model, plan, self.place, seed, device, Mover(self.host, moved) if moved else None)
        self.parts = nn.ModuleList(self.chunks.values())
        self.module = next(iter(self.chunks.values()))
        draw = torch.Generator().manual_seed(seed)
        self.batch = torch.randint(model.vocab, (plan.global_batch, model.seq + 1), generator=draw).to(device)
        self.ranks, self.rank = self.place.size["dp"], self.place.at["dp"]
        self.microbatches = plan.global_batch // plan.micro_batch // self.ranks
        self.tables = model.embedding_parameters
        self.pending: list[Any] = []
        self._prepare()
        self.pipeline = self._pipeline(order) if order else None

    def _pipeline(self, order: Path) -> Pipeline:
        plan, model = self.plan, self.model
        group = self.place.group("pp")
        if group is None:
            raise ValueError("an order of pipeline stages needs two ranks or more")
        seq = model.seq // (plan.tp if plan.sequence_parallel else 1)
        kind = DTYPES[plan.precision]
        hidden = torch.empty(plan.micro_batch, seq, model.hidden, dtype=kind, device="meta", requires_grad=True)
        # As `backward` cuts them from rows that hold the targets too: torch compares strides.
        tokens = torch.empty(plan.micro_batch, model.seq + 1, dtype=torch.int64, device="meta")[:, :-1]
        logits = torch.empty(
            plan.micro_batch, model.seq, model.vocab // plan.tp, dtype=kind, device="meta", requires_grad=True
        )
        stages, done = [], []  # type: ignore[var-annotated]
        for stage, chunk in self.chunks.items():
            wiring = Wiring(tokens if chunk.first else hidden, logits if chunk.last else hidden, group, self.device)
            stages.append(Stage(chunk, stage, len(plan.rank_of), wiring, done, self._sum_up))
        return Pipeline(stages, order, self.microbatches, self._part_of_mean)

    def _sum_up(self) -> None:
        """Add 16-bit gradients that no hook has seen to their fp32 sums: the runtime's W makes them without one."""
        for parameter, add in self.sums:
            add(parameter)

    def _part_of_mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.module.loss(logits, targets) / (self.microbatches * self.ranks)

    def _prepare(self) -> None:
        """Lay out weights, gradients and optimizer states."""
        self._flatten(self.device)
        self._watch_last_gradients()

    def _flatten(self, device: torch.device) -> None:
        held = list(self.parts.parameters())
        partial = {p for chunk in self.chunks.values() for p in chunk.partial()}
        size = sum(local(p).numel() for p in held)
        padded = -(-size // self.ranks) * self.ranks if self.plan.zero else size
        self.weights = torch.zeros(padded, dtype=held[0].dtype, device=device)
        self.gradients = torch.zeros(padded, device=device)
        self.sums: list[tuple[Tensor, Callable[[Tensor], None]]] = []
        made: dict[Tensor, nn.Parameter] = {}
        begin = 0
        for p in held:
            own = local(p.detach())
            part = slice(begin, begin := begin + own.numel())
            self.weights[part] = own.flatten()
            total = gradient_of(p, self.gradients[part].view_as(own), p in partial)
            new = made[p] = nn.Parameter(whole_of(p)(self.weights[part].view_as(own)))
            if p.dtype == torch.float32:
                new.grad = total
            else:
                add = _add_to(total)
                new.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]
                self.sums.append((new, add))
        for module in self.parts.modules():
            for name, p in list(module.named_parameters(recurse=False)):
                setattr(module, name, made[p])
        shard = slice(None)
        if self.plan.zero:
            each = padded // self.ranks
            shard = slice(self.rank * each, (self.rank + 1) * each)
        self.shard = shard
        weights, gradients = self.weights[shard], self.gradients[shard]
        self.swapped = round(self.plan.offload.optimizer * len(weights))
        if self.swapped:
            away, pieces = slice(self.swapped), sum(len(chunk.blocks) for chunk in self.chunks.values())
            self.swapper = SwappedAdam(weights[away], gradients[away], pieces, self.host, LEARNING_RATE)
        # 16-bit weights have fp32 masters; fp32 weights are their own.
        self.master = nn.Parameter(weights[self.swapped :].float())
        self.master.grad = gradients[self.swapped :]
        self.optimizer = torch.optim.Adam([self.master], lr=LEARNING_RATE, fused=True)

    def _watch_last_gradients(self) -> None:
        """Reduce a block's gradients when they are complete, in the last microbatch."""
        self.last_backward = False
        begin = self.rest = self.tables
        if self.ranks == 1 or self.plan.zero or not self.plan.overlap_dp:
            self.rest = self.tables = 0
            return
        for block in self.module.blocks.values():
            own = list(block.parameters())
            part = slice(begin, begin := begin + sum(local(p).numel() for p in own))
            missing = {"n": len(own)}

            def complete(_: Tensor, part: slice = part, missing: dict[str, int] = missing, n: int = len(own)) -> None:
                if self.last_backward:
                    missing["n"] -= 1
                    if missing["n"] == 0:
                        missing["n"] = n
                        self.pending.append(self._summed(self.gradients[part], "dp"))

            for p in own:
                p.register_post_accumulate_grad_hook(complete)  # type: ignore[no-untyped-call]
        self.rest = begin

    def _summed(self, tensor: Tensor, axis: str) -> Any:
        """Start adding up `tensor` over the ranks of an axis; the handle waits for the end."""
        return dist.all_reduce(tensor, group=self.place.group(axis), async_op=True)

    def tensors(self) -> list[Tensor]:
        """Return what lives from step to step: batch, weights, gradients, optimizer states, buffers."""
        states = [t for held in self.optimizer.state.values() for t in held.values() if isinstance(t, Tensor)]
        received = self.pipeline.buffers() if self.pipeline else []
        own = [self.batch, self.weights, self.gradients, self.master, *states, *self.parts.buffers()]
        return own + received

    def step(self) -> float:
        """Train on the global batch once; return the mean loss of this rank's part (0 without the last stage)."""
        loss = self.backward()
        self.reduce()
        self.optimizer.step()
        if self.swapped:
            self.swapper.step()
        if self.weights.dtype != self.master.dtype:
            self.weights[self.shard][self.swapped :] = self.master.detach()
        if self.plan.zero and self.ranks > 1:
            parts = self.weights.view(self.ranks, -1)
            dist.all_gather(list(parts), parts[self.rank].clone(), group=self.place.group("dp"))
        self.gradients.zero_()
        return loss

    def backward(self) -> float:
        """Add up the gradients of this rank's microbatches, each a part of the global mean."""
        with self.module.split.losses():
            return self._microbatches()

    def _microbatches(self) -> float:
        mine = self.batch.view(self.ranks, -1, self.batch.shape[1])[self.rank]
        if self.pipeline:
            losses = self.pipeline.step(mine[:, :-1], mine[:, 1:])
            return self.ranks * sum(float(loss) for loss in losses)
        parts = mine.split(self.plan.micro_batch)  # type: ignore[no-untyped-call]
        total = torch.zeros((), device=self.device)
        for n, tokens in enumerate(parts):
            total += self._pass(tokens, n == len(parts) - 1)
        return float(total)

    def _pass(self, tokens: Tensor, last: bool) -> Tensor:
        """Run a microbatch forward and backward; return its part of the loss of this rank's microbatches."""
        self.last_backward = last
        loss = self.loss(tokens) / self.microbatches
        (loss / self.ranks).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def loss(self, tokens: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `tokens` (batch, seq + 1), from the second one on."""
        return self.module.loss(self.module(tokens[:, :-1]), tokens[:, 1:])

    def reduce(self) -> None:
        """Add up gradients over the ranks: all of them, or under ZeRO-1 this rank's part.

        Before that those of a table that first and last stage share, and under sequence parallelism those of what
        works on a part of the sequence with weights held whole.
        """
        if self.model.tied_embeddings and ENDS in self.place.groups:
            for chunk in self.chunks.values():
                if chunk.first or chunk.last:
                    self._summed(self._gradient((chunk.tokens if chunk.first else chunk.head).weight), ENDS).wait()
        if self.plan.tp > 1 and self.plan.sequence_parallel:
            self._add_partial()
        if self.ranks == 1:
            return
        if self.plan.zero:
            self._reduce_scatter()
            return
        for part in (slice(self.rest, None), slice(0, self.tables)):
            if part.stop is None or part.stop > 0:
                self.pending.append(self._summed(self.gradients[part], "dp"))
        for handle in self.pending:
            handle.wait()
        self.pending.clear()

    def _gradient(self, parameter: Tensor) -> Tensor:
        """Return the part of the flat gradients that is a parameter's."""
        own = local(parameter)
        return self.gradients[own.storage_offset() : own.storage_offset() + own.numel()]

    def _add_partial(self) -> None:
        """Add up the gradients of which tensor-parallel ranks have parts, in one message (Megatron-LM's way)."""
        parts = [self._gradient(p) for chunk in self.chunks.values() for p in chunk.partial()]
        together = torch.cat(parts)
        self._summed(together, "tp").wait()
        for part, found in zip(parts, together.split([len(p) for p in parts]), strict=True):  # type: ignore[no-untyped-call]
            part.copy_(found)

    def _reduce_scatter(self) -> None:
        """Add up this rank's part of the gradients.

        By an exchange of parts: gloo has no reduce-scatter (torch 2.13 runs an all-reduce, twice the bytes).
        """
        parts = torch.empty_like(self.gradients)
        dist.all_to_all_single(parts, self.gradients, group=self.place.group("dp"))
        self.gradients.view(self.ranks, -1)[self.rank] = parts.view(self.ranks, -1).sum(dim=0)

    def gradient_error(self) -> float:
        """Return the largest difference between this rank's reduced gradients and those of the whole batch in one
        pass of one process, over the largest of them. Leaves gradients zero; to be called before any step."""
        self.backward()
        self.reduce()
        found = self.gradients[self.shard].clone()
        self.gradients.zero_()
        whole, wanted = self.serial_gradients(), torch.zeros_like(self.gradients)
        for chunk in self.chunks.values():
            for name, parameter in chunk.named_parameters():
                own = local(parameter)
                part = chunk.split.own(whole[name], parameter).flatten()
                wanted[own.storage_offset() : own.storage_offset() + own.numel()] = part
        return float((found - wanted[self.shard]).abs().max() / wanted.abs().max())

    def serial_gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the whole batch by the whole model as `seed` makes it in one process, by name.

        In one pass; in 16 bit in the plan's microbatches, added up in fp32, as a plan without splits has them.
        """
        with self.device:
            serial = SmallGpt(self.model, self.seed).to(DTYPES[self.plan.precision])
        size = len(self.batch) if self.plan.precision == "fp32" else self.plan.micro_batch
        total: dict[str, Tensor] = {}
        for rows in self.batch.split(size):  # type: ignore[no-untyped-call]
            serial.zero_grad()
            (serial.loss(rows[:, :-1], rows[:, 1:]) * (size / len(self.batch))).backward()  # type: ignore[no-untyped-call]
            for name, p in serial.named_parameters(remove_duplicate=False):
                if p.grad is not None:
                    total[name] = total[name] + p.grad if name in total else p.grad.float()
        return total


def _add_to(total: Tensor) -> Callable[[Tensor], None]:
    """Return the hook that adds a 16-bit gradient to its fp32 sum and lets it go."""

    def add(parameter: Tensor) -> None:
        if parameter.grad is not None:
            total.add_(parameter.grad)
            parameter.grad = None

    return add
