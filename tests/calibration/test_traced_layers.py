"""What the tracer counts of torch's own layers and losses, kernel by kernel."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from calibration.tracing.trace import trace
from sim.specs.table import at


def moved(layer, kind, phases=("forward", "backward_input", "backward_weight")):
    """Bytes of the first kernel of a kind in each phase, for a micro-batch of three."""
    return [at(next(op for op in layer.ops(p) if op.kind == kind).bytes, 3) for p in phases]


def test_a_bag_of_embeddings_reads_the_rows_that_it_sums():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingBag(10_000, 8, mode="sum")

        def forward(self, numbers):
            return self.table(numbers)

    (layer,) = trace(Bag(), lambda batch: torch.zeros(batch, 5, dtype=torch.long), dtype=torch.float32).layers
    rows, sums, places = 3 * 5 * 8 * 4, 3 * 8 * 4, 8 * (3 * 5 + 3)
    forward, backward = moved(layer, "embedding", ("forward", "backward_weight"))
    assert rows + sums + places <= forward <= rows + sums + 3 * places  # torch notes which bag each row went to
    assert backward >= 10_000 * 8 * 4  # a gradient of the whole table


def test_a_loss_reads_the_log_probabilities_of_its_targets_alone():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 1000)

        def forward(self, x, target):
            return functional.cross_entropy(self.head(x), target)

    (layer,) = trace(
        Loss(), lambda b: (torch.zeros(b, 8), torch.zeros(b, dtype=torch.long)), dtype=torch.float32
    ).layers
    logits = 3 * 1000 * 4
    forward, backward = moved(layer, "elementwise", ("forward", "backward_weight"))
    assert forward < logits / 100
    assert logits < backward < 1.01 * logits
    assert moved(layer, "softmax", ("forward", "backward_weight")) == [2 * logits, 3 * logits]


def test_a_sum_of_products_counts_as_its_products():
    class Outer(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return torch.addbmm(torch.zeros(8, 8), y[:, :, None], y[:, None, :])

    assert trace(Outer(8, 8), torch.zeros(1, 8), dtype=torch.float32).flop(3, "forward") == 2 * 2 * 3 * 8 * 8


def by_helper():
    return nn.Transformer.generate_square_subsequent_mask(4)


def by_hand():
    return torch.where(torch.ones(8, 8).tril().bool(), 0.0, float("-inf"))[:4, :4].to(torch.bfloat16)


def banded():
    return by_helper() + torch.ones(4, 4).tril(-2) * -1e9


def written_over():
    return by_helper().zero_()


class Masked(nn.Module):
    def __init__(self, mask, told=None):
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), 1)
        self.mask, self.told = mask, told

    def forward(self, x):
        return self.layers(x, self.mask(), is_causal=self.told)


def attention_of(module):
    table = trace(module, torch.zeros(1, 4, 8))
    (attention,) = [op for layer in table.layers for op in layer.forward if op.kind == "attention"]
    return attention


@pytest.mark.parametrize(
    ("mask", "told", "causal"),
    [
        (by_helper, True, True),
        (by_helper, None, True),
        (by_hand, None, True),
        (by_helper, False, False),
        (banded, None, False),
        (written_over, None, False),
    ],
)
def test_masks_of_torch_own_transformers_are_causal_where_torch_would_see_it(mask, told, causal):
    attention = attention_of(Masked(mask, told))
    assert (attention.causal, attention.masked) == (causal, not causal)


def test_a_mask_in_a_buffer_is_seen():
    module = Masked(lambda: module.kept[:4, :4])
    module.register_buffer("kept", nn.Transformer.generate_square_subsequent_mask(8))
    assert attention_of(module).causal


class Scaled(nn.Module):
    """A product, of which `act` makes something."""

    def __init__(self, act):
        super().__init__()
        self.layer, self.act = nn.Linear(8, 16, bias=False), act

    def forward(self, x):
        return self.act(self.layer(x))


@pytest.mark.parametrize(
    ("act", "floats"),
    [
        (lambda y: torch.mul(*y.chunk(2, -1)), 8 + 8 + 8),  # two halves of what the product wrote
        (lambda y: y[:, :8] * y[:, :8], 8 + 8),  # the same half
        (lambda y: y[:, 1:] * y[:, :-1], 16 + 15),  # all of it, though each part is nearly all
    ],
)
def test_views_of_one_tensor_are_read_as_far_as_they_differ(act, floats):
    (layer,) = trace(Scaled(act), torch.zeros(1, 8), dtype=torch.float32).layers
    assert moved(layer, "elementwise", ("forward",)) == [3 * 4 * floats]


@pytest.mark.parametrize(("values", "floats"), [("tensor", 2 * 16), ("number", 16)])
def test_what_is_scattered_in_place_leaves_the_rest_alone(values, floats):
    def act(y):
        places = torch.zeros(y.shape[0], 16, dtype=torch.long)
        wide = y.repeat(1, 100) + 0
        return wide.scatter_(1, places, y if values == "tensor" else 1.0)

    (layer,) = trace(Scaled(act), torch.zeros(1, 8), dtype=torch.float32).layers
    last = [op for op in layer.forward if op.kind == "elementwise"][-1]
    assert at(last.bytes, 3) == 3 * (4 * floats + 8 * 16)
