"""How sequences lie in memory: Y = X W^T with features innermost, or Y^T = W X^T with the batch innermost."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where a sequence's steps, batch and features are; both keep all steps of a tensor side by side.

    rows: [steps, batch, features]; columns: [features, steps, batch], so that a product of all steps is one product of
    matrices in either. A step is [batch, features] or [features, batch], its last axis without gaps.
    """

    name: Literal["rows", "columns"]

    @property
    def columns(self) -> bool:
        """Whether the batch is innermost."""
        return self.name == "columns"

    def empty(self, like: Tensor, steps: int, batch: int, features: int) -> Tensor:
        """Return room for a sequence, of the dtype and on the device of `like`."""
        return like.new_empty((features, steps, batch) if self.columns else (steps, batch, features))

    def laid(self, tensor: Tensor) -> Tensor:
        """Return a view of [(steps,) batch, features] in this layout."""
        return tensor.movedim(-1, 0) if self.columns else tensor

    def usual(self, tensor: Tensor) -> Tensor:
        """Return a view of a tensor in this layout as [(steps,) batch, features]."""
        return tensor.movedim(0, -1) if self.columns else tensor

    def steps(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Return views of all steps."""
        return tensor.unbind(1 if self.columns else 0)

    def from_to(self, tensor: Tensor, first: int, last: int) -> Tensor:
        """Return a view of the steps from `first` to before `last`."""
        return tensor[:, first:last] if self.columns else tensor[first:last]

    def flat(self, tensor: Tensor) -> Tensor:
        """Return a sequence as one matrix of all steps."""
        return tensor.flatten(1, 2) if self.columns else tensor.flatten(0, 1)

    def part(self, tensor: Tensor, slots: tuple[int, int]) -> Tensor:
        """Return a view of some features of a sequence, a matrix or a step."""
        first, last = slots
        return tensor[first:last] if self.columns else tensor[..., first:last]

    def spread(self, vector: Tensor, axes: int) -> Tensor:
        """Return a vector of features as a tensor of `axes` axes that broadcasts."""
        return vector.view(-1, *[1] * (axes - 1)) if self.columns else vector

    def add_product(self, out: Tensor, x: Tensor, w: Tensor) -> None:
        """Add x W^T to `out`; w: [outputs, inputs]."""
        out.addmm_(w, x) if self.columns else out.addmm_(x, w.T)

    def back(self, out: Tensor, gradient: Tensor, w: Tensor, kept: bool = False) -> None:
        """Write the gradient of a product's input to `out`, or (`kept`) add it."""
        if self.columns:
            out.addmm_(w.T, gradient, beta=int(kept))
        else:
            out.addmm_(gradient, w, beta=int(kept))

    def weight_gradient(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of a weight, [outputs, inputs], of matrices of all steps."""
        return gradient @ x.T if self.columns else gradient.T @ x

    def summed(self, sequence: Tensor) -> Tensor:
        """Return the sum over steps and batch, [features]."""
        return sequence.sum((1, 2) if self.columns else (0, 1))


ROWS, COLUMNS = Layout("rows"), Layout("columns")


@dataclass(frozen=True)
class Choice:
    """How a layer runs: its layout, and whether the products of all steps' inputs are one (`hoisted`)."""

    layout: Layout = ROWS
    hoisted: bool = True

    @property
    def name(self) -> str:
        """Its name in files: "rows", "columns", or one of these with " by step"."""
        return self.layout.name + ("" if self.hoisted else " by step")


CHOICES = tuple(Choice(layout, hoisted) for layout in (ROWS, COLUMNS) for hoisted in (True, False))
