"""Optimizer states in host memory: they come to the update in pieces, and leave (`sim.costs.offload`).

Of three pieces at most something is on the device: one comes, one is updated, one leaves.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam

from calibration.execute.host import HostMemory


class Piece(NamedTuple):
    """Part of the weights, and its states (both moments, and an fp32 master of 16-bit weights) in host memory."""

    part: slice
    states: tuple[Tensor, ...]


class Here(NamedTuple):
    """A piece's states on the device, and the copies that they wait for."""

    piece: Piece
    states: list[Tensor]
    copies: list[Any]


class SwappedAdam:
    """Adam (arXiv 1412.6980; torch's fused one) of flat `weights` by flat fp32 `gradients`, in `pieces`."""

    def __init__(self, weights: Tensor, gradients: Tensor, pieces: int, memory: HostMemory, rate: float) -> None:
        self.weights, self.gradients, self.memory, self.rate = weights, gradients, memory, rate
        self.steps = torch.zeros((), device=weights.device)
        size = -(-len(weights) // pieces)
        self.pieces = [self._piece(slice(a, min(a + size, len(weights)))) for a in range(0, len(weights), size)]

    def _piece(self, part: slice) -> Piece:
        n = part.stop - part.start
        states = tuple(self.memory.empty(n, torch.float32).zero_() for _ in range(2))
        if self.weights.dtype == torch.float32:
            return Piece(part, states)
        return Piece(part, (*states, self.memory.empty(n, torch.float32).copy_(self.weights[part])))

    def step(self) -> None:
        """Update all weights."""
        last: Here | None = None
        after = self._fetch(self.pieces[0])
        for n in range(len(self.pieces)):
            here = after
            if n + 1 < len(self.pieces):
                after = self._fetch(self.pieces[n + 1])
            self.memory.wait(here.copies)
            self._update(here)
            if last:
                self.memory.wait(last.copies)
            last = self._leave(here)
        if last:
            self.memory.wait(last.copies)
        self.steps += 1

    def _fetch(self, piece: Piece) -> Here:
        states = [torch.empty_like(s, device=self.weights.device) for s in piece.states]
        with self.memory.copying("in") as copies:
            for here, host in zip(states, piece.states, strict=True):
                here.copy_(host, non_blocking=True)
        return Here(piece, states, copies)

    def _update(self, here: Here) -> None:
        first, second, *master = here.states
        weights = self.weights[here.piece.part]
        held = master[0] if master else weights
        adam(
            [held], [self.gradients[here.piece.part]], [first], [second], [], [self.steps.clone()],
            fused=True, amsgrad=False, beta1=0.9, beta2=0.999, lr=self.rate, weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip
        if master:
            weights.copy_(held)

    def _leave(self, here: Here) -> Here:
        with self.memory.copying("out") as copies:
            for state, host in zip(here.states, here.piece.states, strict=True):
                host.copy_(state, non_blocking=True)
        return Here(here.piece, here.states, copies)
