"""One rank's part of the small GPT: the layers of a pipeline stage, of each its part of the tensor-parallel split."""

from collections.abc import Iterator

from torch import Tensor, nn

from calibration.execute.moved import Mover
from calibration.execute.split import Split
from calibration.kernels.gpt import SmallGpt
from calibration.kernels.recompute import repeating
from sim.specs.plan import Recompute


class Chunk(nn.Module):
    """Layers `layers` of `whole`, with the embedding if it is the first stage and the head if it is the last.

    Takes tokens[batch, seq] or hidden states, returns hidden states or logits[batch, seq, vocab / tp]. Parameters
    carry their names in the whole model, which gives its own. `recomputed`: so many layers recompute, the first ones
    (None: all).
    """

    tokens: nn.Embedding
    head: nn.Linear

    def __init__(
        self,
        whole: SmallGpt,
        layers: range,
        *,
        first: bool = True,
        last: bool = True,
        split: Split = Split(),  # noqa: B008 - frozen
        recompute: Recompute = "none",
        recomputed: int | None = None,
        mover: Mover | None = None,
    ) -> None:
        super().__init__()
        self.model, self.first, self.last, self.split, self.recompute = whole.model, first, last, split, recompute
        self.mover, self.recomputed = mover, len(layers) if recomputed is None else recomputed
        if first:
            self.tokens, self.positions = whole.tokens, whole.positions
        self.blocks = nn.ModuleDict({str(i): whole.blocks[i] for i in layers})
        if last:
            self.norm, self.head = whole.norm, whole.head
        split.apply(self)
        for block in self.blocks.values():
            setattr(block, "heads", self.model.heads // split.size)  # noqa: B010 - typed as any module
        if first and last and self.model.tied_embeddings:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output for tokens or hidden states."""
        if self.first:
            x = self.tokens(x) + self._positions(x.shape[1])
        x = self._layers(x) if self.mover is None else self._moving(x, self.mover)
        if self.last:
            x = self.head(self.norm(x))
        return x

    def _layers(self, x: Tensor) -> Tensor:
        for n, block in enumerate(self.blocks.values()):
            x = self._run(n, block, x)
        return x

    def _moving(self, x: Tensor, mover: Mover) -> Tensor:
        """Run the layers, a share of which keep what they save in host memory; what was received stays."""
        layer, stays = None, None if self.first else x
        for n, block in enumerate(self.blocks.values()):
            with mover.layer(block, n, layer, stays) as layer:
                x = self._run(n, block, x)
        return x

    def _positions(self, seq: int) -> Tensor:
        rows: Tensor = self.positions.weight[:seq]
        return self.split.part(rows, 0) if self.split.sequence else rows

    def _run(self, number: int, block: nn.Module, x: Tensor) -> Tensor:
        return repeating(block, x, self.recompute if number < self.recomputed else "none")

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of targets[batch, seq]."""
        return self.split.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def partial(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of whose gradient every tensor-parallel rank has a part of the sum only."""
        for name, parameter in self.named_parameters():
            if self.split.sequence and name.split(".")[-2] in ("positions", "norm", "norm1", "norm2"):
                yield parameter
