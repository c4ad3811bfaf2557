"""The tracer against torch's own counters, closed forms, and real runs."""

import time

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from calibration.tracing.choices import Choices, attention, dropout
from calibration.tracing.trace import find_layers, flop, run, trace
from sim.specs.fields import InputError
from sim.specs.table import at
from tests import reference_modules as ref
from tests.full import FULL, fully
from tests.pace import slower

SEQ, HIDDEN, HEADS, VOCAB = 32, 64, 4, 100


def tokens(*lengths):
    def make(batch):
        return tuple(torch.zeros(batch, n, dtype=torch.long) for n in lengths)

    return make


def images(batch):
    return torch.zeros(batch, 3, 32, 32)


def gpt(**given):
    return ref.GPT(2, HIDDEN, HEADS, VOCAB, SEQ, **given)


def llama(**given):
    return ref.Llama(2, HIDDEN, HEADS, 2, 96, VOCAB, **given)


MLA = {"q_lora": 24, "kv_lora": 16, "nope": 8, "rope": 4, "value_dim": 8}
MOE = {"ffn": 32, "experts": 4, "top": 2, "shared_ffn": 48}
MODULES = {
    "gpt flash": (gpt, tokens(SEQ), None),
    "gpt eager": (lambda: gpt(eager=True), tokens(SEQ), None),
    "llama": (llama, tokens(SEQ), None),
    "mistral": (lambda: llama(window=8), tokens(SEQ), None),
    "qwen3": (lambda: llama(qk_norm=True), tokens(SEQ), None),
    "moe": (lambda: llama(moe=MOE, dense_layers=1), tokens(SEQ), None),
    "mla": (lambda: llama(latent=MLA), tokens(SEQ), None),
    "bert": (lambda: ref.BertModel(2, HIDDEN, HEADS, 128, VOCAB, SEQ), tokens(SEQ), None),
    "t5": (lambda: ref.T5(2, 2, HIDDEN, HEADS, 16, 128, VOCAB), tokens(SEQ, 16), ["encoder", "decoder"]),
    "vit": (lambda: ref.ViT(2, HIDDEN, HEADS, 128, size=32, patch=8, classes=10), images, None),
    "resnet": (lambda: ref.ResNet((1, 2), width=8, classes=10), images, None),
    "mamba": (lambda: ref.Mamba2(2, HIDDEN, VOCAB, state=16, head_dim=16), tokens(SEQ), None),
}


def uncounted(name, batch):
    """What torch's counter gets wrong, per network, in FLOP of one forward and backward pass."""
    if name == "mla":  # no fused CPU kernel for unequal head sizes: it keeps the scores that CUDA computes again
        return 2 * 2 * batch * HEADS * SEQ * SEQ * 12
    if name == "mamba":  # a depthwise convolution's weight gradient counts as if all channels met all others
        channels, taps, out = 2 * HIDDEN + 2 * 16, 4, SEQ + 3
        return -2 * (channels - 1) * 2 * batch * out * taps * channels
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_flop_and_parameters_are_exact(name):
    make, inputs, layers = MODULES[name]
    module = make()
    table = trace(module, inputs, layers)
    assert table.parameters == sum(p.numel() for p in module.parameters())
    assert sum(layer.trainable_parameters * layer.count for layer in table.layers) == table.parameters
    assert sum(layer.tensors * layer.count for layer in table.layers) == len([*module.parameters()])
    for batch in (2, 5) if FULL else (2,):
        assert table.flop(batch, "forward") == flop(module, inputs(batch), backward=False)
        assert table.flop(batch) == flop(module, inputs(batch)) + uncounted(name, batch)


def really_saved(module, inputs):
    """Bytes that a real forward pass in fp32 saves for backward, without parameters, buffers and the data."""
    apart = [*module.parameters(), *module.buffers(), *inputs]
    found, known = {}, {t.untyped_storage().data_ptr() for t in apart}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = (storage.nbytes(), t.detach())  # held, so that no address is used twice
        return t.detach()

    with Choices({functional.dropout: dropout}), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = module(*inputs)
    assert out.requires_grad
    return sum(n for n, _ in found.values())


@pytest.mark.parametrize("name", [*MODULES, "gpt eager dropout", "gpt flash dropout"])
@pytest.mark.parametrize("batch", [1, 3])
def test_saved_bytes_equal_a_real_run(name, batch):
    base, _, masks = name.partition(" dropout")
    make, inputs, layers = MODULES[base]
    module = gpt(eager="eager" in name, dropout=0.1) if masks or name.endswith("dropout") else make()
    arguments = inputs(batch)
    arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    # Where the CPU has a fused kernel it saves what CUDA's does; for unequal head sizes it has none.
    fused = {functional.scaled_dot_product_attention: attention} if name != "mla" else {}
    choices = Choices({functional.dropout: dropout} | fused)
    parts = run(module, arguments, find_layers(module, layers), torch.float32, choices)
    assert sum(part.saved for part in parts) == really_saved(module, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("seq", [24])
def test_saved_bytes_of_a_block_are_the_closed_forms(seq):
    """Korthikanti et al. 2022 (arXiv 2205.05198), and its forms for fp32; two fp32 statistics per norm and row."""
    sbh, asb, as2b = seq * HIDDEN, HEADS * seq, HEADS * seq * seq
    norms = 2 * 2 * 4 * seq
    for dtype, eager, expected in (
        (torch.bfloat16, True, 34 * sbh + 5 * as2b),
        (torch.bfloat16, False, 34 * sbh + 4 * asb),
        (torch.float32, True, 66 * sbh + 9 * as2b),
        (torch.float32, False, 66 * sbh + 4 * asb),
    ):
        table = trace(ref.GPT(3, HIDDEN, HEADS, VOCAB, seq, eager, dropout=0.1), tokens(seq), dtype=dtype)
        first, block, last = table.layers
        assert (first.name, block.name, block.count, last.name) == ("first", "blocks.0", 3, "last")
        assert block.saved_bytes == (0, expected + norms)
        assert block.boundary_bytes == first.boundary_bytes == (0, dtype.itemsize * sbh)


def test_backward_splits_into_input_and_weight():
    table = trace(gpt(), tokens(SEQ))
    first, block, last = table.layers
    attention = 4 * HEADS * SEQ * SEQ * (HIDDEN // HEADS)
    products = block.flop("forward", 1) - attention
    assert products == 2 * SEQ * 12 * HIDDEN * HIDDEN
    assert block.flop("backward_input", 1) == products + 2.5 * attention
    assert block.flop("backward_weight", 1) == products
    assert not first.backward_input
    assert first.backward_weight
    assert last.flop("backward_input", 1) == last.flop("backward_weight", 1) == last.flop("forward", 1)


def test_kernels_of_a_block():
    block = trace(gpt(), tokens(SEQ)).layers[1]
    by_kind = {kind: [op for op in block.forward if op.kind == kind] for kind in ("gemm", "attention", "norm")}
    shapes = sorted((at(op.m, 3), op.n[0], op.k[0]) for op in by_kind["gemm"])
    assert shapes == sorted((3 * SEQ, n * HIDDEN, k * HIDDEN) for n, k in ((3, 1), (1, 1), (4, 1), (1, 4)))
    (core,) = by_kind["attention"]
    assert (core.causal, core.masked, core.batch, core.heads) == (True, False, (0, 1), (HEADS, 0))
    (norm,) = by_kind["norm"]
    # Read x, weight and bias; write y and two fp32 statistics.
    assert (norm.count, norm.columns, norm.bytes) == (2, (HIDDEN, 0), (2 * 2 * HIDDEN, SEQ * (4 * HIDDEN + 8)))
    (backward,) = [op for op in block.backward_input if op.kind == "norm"]
    assert backward.bytes == (2 * 2 * HIDDEN, SEQ * (6 * HIDDEN + 8))


@pytest.mark.slow
def test_grouped_queries_and_windows():
    plain, windowed = (trace(llama(window=w), tokens(SEQ)).layers[1] for w in (None, 8))
    (core,) = [op for op in plain.forward if op.kind == "attention"]
    assert (core.heads, core.kv_heads, core.causal, core.masked) == ((HEADS, 0), (2, 0), True, False)
    (core,) = [op for op in windowed.forward if op.kind == "attention"]
    assert (core.causal, core.masked) == (False, True)
    assert at(windowed.saved_bytes, 0) == 2 * SEQ * SEQ  # the mask in the data type, whatever the batch


def test_rms_norm_is_one_kernel_that_keeps_one_statistic():
    module = nn.RMSNorm(HIDDEN)
    (layer,) = trace(module, torch.zeros(1, SEQ, HIDDEN, requires_grad=True)).layers
    assert [op.kind for op in layer.forward + layer.backward_input + layer.backward_weight] == ["norm"] * 3
    assert layer.saved_bytes == (0, 2 * SEQ * HIDDEN + 4 * SEQ)


def test_convolutions_are_implicit_products():
    module = nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=4, bias=False)
    table = trace(module, torch.zeros(1, 8, 16, 16, requires_grad=True), dtype=torch.float32)
    (forward,), (to_input,), (to_weight,) = (
        table.layers[0].ops(p) for p in ("forward", "backward_input", "backward_weight")
    )
    assert (forward.m, forward.n, forward.k, forward.batch) == ((0, 64), (3, 0), (18, 0), (4, 0))
    assert (to_input.m, to_input.n, to_input.k) == ((0, 64), (18, 0), (3, 0))
    assert (to_weight.m, to_weight.n, to_weight.k) == ((3, 0), (18, 0), (0, 64))
    assert [op.channels for op in (forward, to_input, to_weight)] == [2, 2, 2]
    up = nn.ConvTranspose2d(8, 12, 2, stride=2, bias=False)
    image = torch.zeros(1, 8, 16, 16, requires_grad=True)
    assert trace(up, image).flop(1) == flop(up, image)
    assert trace(up, image).layers[0].forward[0].channels is None


def test_shared_parameters_are_counted_once_and_named():
    class Thrice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(self.layer(self.layer(x)))

    table = trace(Thrice(), torch.zeros(1, 8), layers=["layer"])
    assert [(x.name, x.count, x.parameters) for x in table.layers] == [
        ("layer", 1, 72),
        ("layer", 1, 0),
        ("layer", 1, 0),
    ]
    assert table.layers[1].shared == {"layer.weight": 64, "layer.bias": 8}
    assert trace(gpt(), tokens(SEQ)).layers[-1].shared == {"tokens.weight": VOCAB * HIDDEN}


def test_frozen_weights_have_no_gradient():
    module = gpt()
    for p in module.blocks[0].parameters():
        p.requires_grad_(False)
    first, frozen, free, _ = trace(module, tokens(SEQ)).layers
    assert (frozen.trainable_parameters, frozen.tensors, frozen.parameters) == (0, 0, free.parameters)
    assert frozen.flop("backward_weight", 1) == 0 < frozen.flop("backward_input", 1)
    assert frozen.saved_bytes < free.saved_bytes
    assert first.trainable_parameters == first.parameters


@pytest.mark.slow
def test_activations_cross_boundaries_without_gradients_too():
    module = gpt()
    module.requires_grad_(False).norm.requires_grad_(True)
    first, block, last = trace(module, tokens(SEQ)).layers
    assert first.boundary_bytes == block.boundary_bytes == (0, 2 * SEQ * HIDDEN)
    assert first.saved_bytes == block.saved_bytes == (0, 0)
    assert last.flop("backward_input", 1) == 0
    # Rotary angles depend on no parameter: every stage makes its own.
    assert trace(llama(), tokens(SEQ)).layers[0].boundary_bytes == (0, 2 * SEQ * HIDDEN)


@pytest.mark.slow
def test_what_an_encoder_passes_on_crosses_every_decoder_boundary():
    make, inputs, layers = MODULES["t5"]
    table = trace(make(), inputs, layers)
    boundaries = {layer.name: layer.boundary_bytes for layer in table.layers}
    memory, x, bias = 2 * SEQ * HIDDEN, 2 * 16 * HIDDEN, 2 * HEADS * 16 * 16
    assert boundaries["decoder.0"] == (bias, memory + x)
    assert boundaries["decoder.1"] == (0, x)
    assert boundaries["last"] == (0, 0)


@pytest.mark.slow
def test_torch_own_transformer_layer_gets_the_fused_kernel_and_byte_masks():
    layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 128, dropout=0.1, batch_first=True)
    (found,) = trace(layer, torch.zeros(1, SEQ, HIDDEN, requires_grad=True)).layers
    assert [op.kind for op in found.forward].count("attention") == 1


def test_a_module_that_takes_no_batch_of_one():
    module = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    table = trace(module, torch.zeros(1, 8))
    assert table.batches == [2, 3, 4]
    (norm,) = [op for op in table.layers[1].forward if op.kind == "norm"]
    assert table.parameters == 36 + 8 + 10
    assert norm.columns == (0, 1)


def test_parametrized_weights_are_no_layers():
    table = trace(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), torch.zeros(1, 8))
    assert [(layer.name, layer.parameters) for layer in table.layers] == [("all", 64 + 8 + 8)]


@pytest.mark.slow
def test_a_loss_in_a_mapping_is_an_output():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = gpt()

        def forward(self, tokens, labels):
            logits = self.body(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
            return {"loss": loss, "logits": logits.detach(), "cache": None}

    (ids,) = tokens(SEQ)(1)
    table, bare = trace(WithLoss(), {"tokens": ids, "labels": ids}), trace(gpt(), ids)
    assert table.flop(3) == bare.flop(3)
    # The fp32 log-probabilities are kept for the loss, and its denominator.
    assert table.layers[-1].saved_bytes == (4, bare.layers[-1].saved_bytes[1] + 4 * SEQ * VOCAB)


class Pairs(nn.Module):
    """Scores of all pairs in the batch: quadratic in it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        return (y @ y.T).softmax(-1)


class Chosen(Pairs):
    def forward(self, x):
        return self.layer(x[x[:, 0] > 0])


class Branch(Pairs):
    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


class Quadratic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Bilinear(8, 8, 4)

    def forward(self, x):
        return self.layer(x, x)


class Checkpointed(Pairs):
    def forward(self, x):
        return checkpoint(self.layer, self.layer(x), use_reentrant=False)


class OldCheckpointed(Pairs):
    def forward(self, x):
        return checkpoint(self.layer, self.layer(x), use_reentrant=True)


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (Checkpointed(), "without activation checkpointing"),
        (OldCheckpointed(), "without activation checkpointing"),
        (Pairs(), "affine in the batch"),
        (Chosen(), "do not depend on data"),
        (Branch(), "do not depend on data"),
        (nn.LSTM(8, 8), "the same operations at every batch size"),  # a product for every step of the sequence
        (nn.Identity(), "a trainable parameter"),
        (Quadratic(), "_trilinear.*whose products can be counted"),
    ],
)
def test_refusals(module, match):
    with pytest.raises(InputError, match=match):
        trace(module, torch.zeros(1, 8))


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_are_their_steps(kind, gates):
    (part,) = trace(kind(8, 16, 2, batch_first=True), lambda batch: torch.zeros(batch, 5, 8)).layers
    assert part.parameters == sum(t.numel() for t in kind(8, 16, 2).parameters())
    assert sum(op.count * op.flop(3) for op in part.forward) == 2 * 3 * 5 * gates * 16 * (8 + 16 + 16 + 16)


@pytest.mark.parametrize("layers", [["nothing"], [nn.Linear(1, 1)], []])
def test_layers_must_be_parts_of_the_module(layers):
    with pytest.raises(InputError, match="layers"):
        trace(gpt(), tokens(SEQ), layers=layers)


def test_the_module_is_left_alone():
    module = ref.ResNet((1, 1), width=8, classes=10)
    before = {n: (id(t), t.dtype, t.clone()) for n, t in module.state_dict(keep_vars=True).items()}
    trace(module, images)
    for name, t in module.state_dict(keep_vars=True).items():
        assert before[name][:2] == (id(t), t.dtype)
        assert torch.equal(before[name][2], t)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


@pytest.mark.slow
def test_examples_and_functions_of_the_batch_agree():
    assert trace(gpt(), tokens(SEQ)(1)) == trace(gpt(), tokens(SEQ)) == trace(gpt(), {"tokens": tokens(SEQ)(1)[0]})


@pytest.mark.slow
def test_gpt3_layer_in_a_second():
    with torch.device("meta"):
        block, x = ref.GPTBlock(12_288, 96, dropout=0.1), torch.zeros(1, 2048, 12_288, requires_grad=True)
    spent = []
    for _ in range(3):
        begin = time.process_time()
        (layer,) = trace(block, x).layers
        spent.append(time.process_time() - begin)
    assert layer.saved_bytes == (0, 34 * 2048 * 12_288 + 4 * 96 * 2048 + 2 * 2 * 4 * 2048)
    assert layer.parameters == 12 * 12_288**2 + 13 * 12_288
    assert min(spent) < slower()


@fully
def test_gpt3_whole():
    with torch.device("meta"):
        module = ref.GPT(96, 12_288, 96, 51_200, 2048)
    table = trace(module, tokens(2048))
    assert [layer.count for layer in table.layers] == [1, 96, 1]
    assert table.parameters == 96 * (12 * 12_288**2 + 13 * 12_288) + (51_200 + 2048 + 2) * 12_288


class Convolved(nn.Module):
    """Two convolutions, of 3 and of 16 channels, with a layer's width of images between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x):
        return self.second(self.first(x)).sum()


def test_what_a_hosts_convolutions_copy_has_channels_in_whole_blocks():
    module = Convolved()
    (layer,) = trace(module, images, [module], torch.float32).layers
    pixels = 32 * 32 * 4
    first, second = (8 + 16) * pixels, (16 + 8) * pixels
    kept = 16 * pixels  # what the second reads; the images are data
    assert layer.forward_bytes == (0, max(first, kept + second))
    assert layer.saved_bytes == (0, kept)
    plain = nn.Linear(4, 4)
    (other,) = trace(plain, lambda b: torch.zeros(b, 4), [plain], torch.float32).layers
    assert other.forward_bytes is None


class TableAndLoss(nn.Module):
    """A table whose gradient is larger than all else of a few samples, and logits in fp32, which grow with them."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(4096, 64), nn.Linear(64, 4096)

    def forward(self, x):
        return functional.cross_entropy(self.head(self.table(x)).float().flatten(0, 1), x.flatten())


def test_the_largest_temporary_is_that_of_many_samples():
    module = TableAndLoss()
    (layer,) = trace(module, tokens(8), [module], torch.bfloat16).layers
    assert layer.temporary_bytes == (0, 8 * 4096 * 4)
