"""One data-parallel rank of a training step as the simulator describes it (ZeRO-0 and ZeRO-1).

Weights, gradients and optimizer states lie in flat buffers (Megatron-LM's distributed optimizer, DDP's
`gradient_as_bucket_view`): gradients are summed in place over the microbatches, reduced once a step, and one fused Adam
updates what the rank holds. With `overlap_dp` a block's gradients are reduced as soon as the last backward pass has
made them; the tables' come last in any case.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from calibration.kernels.gpt import SmallGpt
from sim.specs import Model, Plan

LEARNING_RATE = 1e-3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Wire:
    """The collectives of one rank, counting the bytes that it sends (a ring's, which no algorithm undercuts)."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.moved_bytes = ranks, 0

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank has sent: (n - 1)/n of a buffer for each way through it."""
        return self.moved_bytes * (self.ranks - 1) / self.ranks

    def _count(self, tensor: Tensor, passes: int) -> None:
        self.moved_bytes += passes * tensor.numel() * tensor.element_size()

    def all_reduce(self, tensor: Tensor) -> Any:
        """Start adding up `tensor` over the ranks; the handle waits for the end."""
        self._count(tensor, 2)
        return dist.all_reduce(tensor, async_op=True)

    def reduce_scatter(self, tensor: Tensor, rank: int) -> None:
        """Add up this rank's part of `tensor` over the ranks.

        By an exchange of parts: gloo has no reduce-scatter (torch 2.13 runs an all-reduce, twice the bytes).
        """
        self._count(tensor, 1)
        parts = torch.empty_like(tensor)
        dist.all_to_all_single(parts, tensor)
        tensor.view(self.ranks, -1)[rank] = parts.view(self.ranks, -1).sum(dim=0)

    def all_gather(self, tensor: Tensor, rank: int) -> None:
        """Fill `tensor` with every rank's part of it."""
        self._count(tensor, 1)
        parts = tensor.view(self.ranks, -1)
        dist.all_gather(list(parts), parts[rank].clone())


class Trainer:
    """The state of one of `ranks` replicas; every rank starts from the same weights (`seed`)."""

    def __init__(self, model: Model, plan: Plan, rank: int, ranks: int, device: torch.device, seed: int) -> None:
        self.plan, self.rank, self.ranks = plan, rank, ranks
        self.module = SmallGpt(model, seed).to(device, DTYPES[plan.precision])
        draw = torch.Generator().manual_seed(seed)
        self.batch = torch.randint(model.vocab, (plan.global_batch, model.seq + 1), generator=draw).to(device)
        self.wire = Wire(ranks)
        self.tables = model.embedding_parameters
        self.pending: list[Any] = []
        self._flatten(device)
        self._watch_last_gradients(model)

    def _flatten(self, device: torch.device) -> None:
        held = list(self.module.parameters())
        size = sum(p.numel() for p in held)
        padded = -(-size // self.ranks) * self.ranks
        self.weights = torch.zeros(padded, dtype=held[0].dtype, device=device)
        self.gradients = torch.zeros(padded, device=device)
        begin = 0
        for p in held:
            part = slice(begin, begin := begin + p.numel())
            self.weights[part] = p.detach().flatten()
            p.data = self.weights[part].view_as(p)
            mine = self.gradients[part].view_as(p)
            if p.dtype == torch.float32:
                p.grad = mine
            else:
                p.register_post_accumulate_grad_hook(_add_to(mine))  # type: ignore[no-untyped-call]
        shard = slice(None)
        if self.plan.zero:
            each = padded // self.ranks
            shard = slice(self.rank * each, (self.rank + 1) * each)
        self.shard = shard
        # 16-bit weights have fp32 masters; fp32 weights are their own.
        self.master = torch.nn.Parameter(self.weights[shard].float())
        self.master.grad = self.gradients[shard]
        self.optimizer = torch.optim.Adam([self.master], lr=LEARNING_RATE, fused=True)

    def _watch_last_gradients(self, model: Model) -> None:
        """Reduce a block's gradients when they are complete, in the last microbatch."""
        self.last_backward = False
        begin = self.rest = self.tables
        if self.ranks == 1 or self.plan.zero or not self.plan.overlap_dp:
            return
        for block in self.module.blocks:
            own = list(block.parameters())
            part = slice(begin, begin := begin + sum(p.numel() for p in own))
            missing = {"n": len(own)}

            def complete(_: Tensor, part: slice = part, missing: dict[str, int] = missing, n: int = len(own)) -> None:
                if self.last_backward:
                    missing["n"] -= 1
                    if missing["n"] == 0:
                        missing["n"] = n
                        self.pending.append(self.wire.all_reduce(self.gradients[part]))

            for p in own:
                p.register_post_accumulate_grad_hook(complete)  # type: ignore[no-untyped-call]
        self.rest = begin

    def tensors(self) -> list[Tensor]:
        """Return what lives from step to step: batch, weights, gradients, optimizer states, buffers."""
        states = [t for held in self.optimizer.state.values() for t in held.values() if isinstance(t, Tensor)]
        return [self.batch, self.weights, self.gradients, self.master, *states, *self.module.buffers()]

    def step(self) -> float:
        """Train on the global batch once; return the mean loss of this rank's part."""
        loss = self.backward()
        self.reduce()
        self.optimizer.step()
        if self.weights.dtype != self.master.dtype:
            self.weights[self.shard] = self.master.detach()
        if self.plan.zero and self.ranks > 1:
            self.wire.all_gather(self.weights, self.rank)
        self.gradients.zero_()
        return loss

    def backward(self) -> float:
        """Add up the gradients of this rank's microbatches, each a part of the global mean."""
        mine = self.batch.view(self.ranks, -1, self.batch.shape[1])[self.rank]
        parts = mine.split(self.plan.micro_batch)  # type: ignore[no-untyped-call]
        total = torch.zeros((), device=self.batch.device)
        for n, tokens in enumerate(parts):
            self.last_backward = n == len(parts) - 1
            loss = self.loss(tokens) / len(parts)
            (loss / self.ranks).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return float(total)

    def loss(self, tokens: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `tokens` (batch, seq + 1), from the second one on."""
        return self.module.loss(tokens[:, :-1], tokens[:, 1:])

    def reduce(self) -> None:
        """Add up gradients over the ranks: all of them, or under ZeRO-1 this rank's part."""
        if self.ranks == 1:
            return
        if self.plan.zero:
            self.wire.reduce_scatter(self.gradients, self.rank)
            return
        for part in (slice(self.rest, None), slice(0, self.tables)):
            self.pending.append(self.wire.all_reduce(self.gradients[part]))
        for handle in self.pending:
            handle.wait()
        self.pending.clear()

    def gradient_error(self) -> float:
        """Return the largest difference between this rank's reduced gradients and those of the whole batch in one
        pass of one process, over the largest of them. Leaves gradients zero."""
        self.backward()
        self.reduce()
        found = self.gradients[self.shard].clone()
        self.gradients.zero_()
        self.last_backward = False
        self.loss(self.batch).backward()  # type: ignore[no-untyped-call]
        wanted = self.gradients.clone()
        self.gradients.zero_()
        self.wire.moved_bytes = 0
        return float((found - wanted[self.shard]).abs().max() / wanted.abs().max())


def _add_to(total: Tensor) -> Callable[[Tensor], None]:
    """Return the hook that adds a 16-bit gradient to its fp32 sum and lets it go."""

    def add(parameter: Tensor) -> None:
        if parameter.grad is not None:
            total.add_(parameter.grad)
            parameter.grad = None

    return add
