"""Pipelines that never flush: PipeDream's and PipeDream-2BW's orders, each pass with its own version of the weights.

(arXiv 1806.03377, section 3.3; arXiv 2006.09503, section 3.1.) PyTorch's runtime holds one version, so the order is
run here: forward activations and backward gradients are sent to the neighbours as soon as they are made and received
when they are needed.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from calibration.execute.place import Place
from calibration.execute.trainer import DTYPES, LEARNING_RATE, Trainer, chunks_of
from calibration.execute.updates import microbatch_order
from calibration.kernels.gpt import SmallGpt
from sim.schedules import Action, Kind, versions
from sim.specs import Model, Plan


class DelayedTrainer(Trainer):
    """One rank, with one stage; versions of its weights are flat tensors, the newest is the optimizer's."""

    def _prepare(self) -> None:
        self.done: list[str] = []
        self.ends: list[float] = []
        self.restart()

    def restart(self) -> None:
        """Begin again from the weights that `seed` makes."""
        self.chunks = chunks_of(self.model, self.plan, self.place, self.seed)
        self.parts = nn.ModuleList(self.chunks.values()).to(self.device, DTYPES[self.plan.precision])
        self.stage, self.module = next(iter(self.chunks.items()))
        first = torch.cat([p.detach().flatten() for p in self.module.parameters()])
        self.shapes = {name: p.shape for name, p in self.module.named_parameters()}
        self.parts.requires_grad_(False)
        self.parts.to_empty(device="meta")
        self.gradients = torch.zeros_like(first)
        self.master = nn.Parameter(first)
        self.master.grad = self.gradients
        self.optimizer = torch.optim.Adam([self.master], lr=LEARNING_RATE, fused=True)
        self.versions = {0: self._leaves(first)}
        self.newest = 0

    def _leaves(self, flat: Tensor) -> dict[str, Tensor]:
        """Return a version's parameters: parts of `flat` whose gradients are added to the common sum."""
        leaves, begin = {}, 0
        for name, shape in self.shapes.items():
            part = slice(begin, begin := begin + shape.numel())
            leaf = leaves[name] = flat.detach()[part].view(shape).requires_grad_()
            leaf.grad = self.gradients[part].view(shape)
        return leaves

    def tensors(self) -> list[Tensor]:
        """Return what lives from update to update: batch, weights, gradients, optimizer states, buffers."""
        states = [t for held in self.optimizer.state.values() for t in held.values() if isinstance(t, Tensor)]
        return [self.batch, self.master, self.gradients, *states, *self.module.buffers()]

    def run(self, microbatches: int) -> list[float]:
        """Run a whole order of so many microbatches, after a restart; return their losses (of the last stage).

        `done` are then its passes and updates, `ends` when each backward ended.
        """
        order = microbatch_order(self.plan, microbatches)
        uses = versions(order)
        rank = self.place.at["pp"]
        own = order.actions[rank]
        self.last_use = {uses[rank, a.microbatch].forward: a.microbatch for a in own if a.kind is Kind.F}
        self.held: dict[int, tuple[Tensor, Tensor, int]] = {}
        self.sent: dict[int, tuple[Any, Tensor]] = {}
        self.done, self.ends = [], []
        losses: list[float] = []
        for action in own:
            if action.kind is Kind.F:
                losses += self._forward(action, uses[rank, action.microbatch].forward)
            elif action.kind is Kind.B:
                self._backward(action)
            else:
                self._update()
            self.done.append(str(action))
            if action.kind is Kind.B:
                self.ends.append(time.perf_counter())
        for work, _ in self.sent.values():
            work.wait()
        self.sent.clear()
        return losses

    def _forward(self, action: Action, version: int) -> Iterator[float]:
        k, plan = action.microbatch, self.plan
        rows = self.batch.split(plan.micro_batch)[k % self.microbatches]  # type: ignore[no-untyped-call]
        given = rows[:, :-1] if self.module.first else self._receive(-1).requires_grad_()
        out = functional_call(self.module, self.versions[version], (given,))
        if self.last_use[version] == k:
            del self.versions[version]  # those of its microbatches that are under way hold it themselves
        if self.module.last:
            out = self.module.loss(out, rows[:, 1:]) / (self.microbatches if plan.pipeline.updates == "group" else 1)
            yield float(out.detach()) * (self.microbatches if plan.pipeline.updates == "group" else 1)
        else:
            self._send(out.detach(), 1)
        self.held[k] = given, out, version

    def _backward(self, action: Action) -> None:
        given, out, _ = self.held.pop(action.microbatch)
        gradient = None if self.module.last else self._receive(1)
        out.backward(gradient)  # type: ignore[no-untyped-call]
        if not self.module.first and given.grad is not None:
            self._send(given.grad, -1)

    def _update(self) -> None:
        """Make the next version: of a copy of the newest weights where a pass still needs those."""
        needed = self.newest in self.versions or any(version == self.newest for _, _, version in self.held.values())
        newer = self.master.detach().clone() if needed else self.master.detach()
        self.master.data = newer
        self.optimizer.step()
        self.gradients.zero_()
        self.newest += 1
        if self.newest in self.last_use:
            self.versions[self.newest] = self._leaves(newer)

    def _receive(self, distance: int) -> Tensor:
        shape = self.plan.micro_batch, self.model.seq, self.model.hidden
        found = torch.empty(shape, dtype=DTYPES[self.plan.precision], device=self.device)
        dist.recv(found, group=self.place.group("pp"), group_src=self.place.at["pp"] + distance)
        return found

    def _send(self, tensor: Tensor, distance: int) -> None:
        """Send to a neighbour, when it has taken the last message: in orders of 1F1B it has that behind it by then."""
        if distance in self.sent:
            self.sent[distance][0].wait()
        to = self.place.at["pp"] + distance
        self.sent[distance] = dist.isend(tensor, group=self.place.group("pp"), group_dst=to), tensor


def serial_losses(model: Model, plan: Plan, batch: Tensor, microbatches: int, seed: int) -> list[float]:
    """Return the losses of a run in one process whose stages use older weights, by the papers' formulas.

    Microbatch k (from 0) uses on stage s of p version max(k - (p - 1 - s), 0), an update each (PipeDream); or on every
    stage version max(k // m - 1, 0), an update for m of them (2BW).
    """
    grouped = plan.pipeline.updates == "group"
    m = plan.global_batch // plan.micro_batch
    alone = [Place(0, {"tp": 0, "dp": 0, "pp": r}, {"tp": 1, "dp": 1, "pp": plan.pp}) for r in range(plan.pp)]
    names = [[n for n, _ in c.named_parameters()] for p in alone for c in chunks_of(model, plan, p, seed).values()]
    whole = SmallGpt(model, seed).to(batch.device, DTYPES[plan.precision])
    parameters = dict(whole.named_parameters())
    optimizers = [torch.optim.Adam([parameters[n] for n in own], lr=LEARNING_RATE, fused=True) for own in names]
    history = [{n: p.detach().clone() for n, p in parameters.items()}]
    losses = []
    for k in range(microbatches):
        used = {
            n: history[max(k // m - 1 if grouped else k - (plan.pp - 1 - s), 0)][n].clone().requires_grad_()
            for s, own in enumerate(names)
            for n in own
        }
        rows = batch.split(plan.micro_batch)[k % m]  # type: ignore[no-untyped-call]
        logits = functional_call(whole, used, (rows[:, :-1],))
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        losses.append(float(loss.detach()))
        gradients = torch.autograd.grad(loss / (m if grouped else 1), list(used.values()))
        for (name, _), gradient in zip(used.items(), gradients, strict=True):
            held = parameters[name]
            held.grad = gradient if held.grad is None else held.grad + gradient
        if not grouped or (k + 1) % m == 0:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            history.append({n: p.detach().clone() for n, p in parameters.items()})
    return losses
