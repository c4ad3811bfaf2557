"""A network whose state is one vector, as messages need it."""

import torch
from torch import Tensor, nn


class Flat:
    """`module` whose parameters [values] and floating-point buffers are views of `state` [values + buffers].

    `weights` is the part of `state` that holds the parameters, `gradient` [values] their gradients, `sizes` how many
    values each parameter has. Counters of batch norm are no part of it.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        every = [*parameters, *buffers]
        self.module = module
        self.sizes = tuple(parameter.numel() for parameter in parameters)
        self.state = torch.cat([tensor.detach().flatten() for tensor in every])
        self.weights = self.state[: sum(self.sizes)]
        self.gradient = torch.zeros_like(self.weights)
        for tensor, part in zip(every, self.state.split_with_sizes([tensor.numel() for tensor in every]), strict=True):
            tensor.data = part.view_as(tensor)
        for parameter, part in zip(parameters, self.gradient.split_with_sizes(self.sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def differentiate(self, inputs: Tensor, labels: Tensor) -> None:
        """Put the gradient of the mean cross-entropy of a minibatch into `gradient`."""
        self.gradient.zero_()
        nn.functional.cross_entropy(self.module(inputs), labels).backward()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def accuracy(self, inputs: Tensor, labels: Tensor) -> float:
        """Return the share of samples that are told right, with the running statistics of batch norm."""
        self.module.train(False)
        right = int((self.module(inputs).argmax(dim=1) == labels).sum())
        self.module.train()
        return right / len(labels)
