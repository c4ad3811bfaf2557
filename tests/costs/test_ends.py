"""What a network keeps from its embedding to its logits, against saved-tensor hooks; operations of both ends."""

import numpy as np
import pytest
import torch

from sim.costs import inputs
from sim.costs.algebra import Interpreted
from sim.costs.layers import ends
from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, symbol_values
from sim.engine.step import simulate
from sim.specs import Cluster, Model, Plan
from tests import reference_modules as ref

BATCH, LAYERS, HIDDEN, HEADS, FFN, VOCAB, SEQ, ENCODER = 3, 2, 64, 4, 256, 101, 48, 80
USUAL = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS}


class Bloom(ref.GPT):
    """With a norm behind the embedding, and no positions."""

    def __init__(self):
        super().__init__(LAYERS, HIDDEN, HEADS, VOCAB, SEQ)
        self.first = torch.nn.LayerNorm(HIDDEN)
        del self.positions

    def forward(self, tokens):
        x = self.first(self.tokens(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class T5(ref.T5):
    """With LayerNorm: on CPU the norm by the root mean square is a row of kernels that keep more."""

    def __init__(self):
        super().__init__(LAYERS, LAYERS, HIDDEN, HEADS, HIDDEN // HEADS, FFN, VOCAB)
        for layer in (*self.encoder, *self.decoder):
            layer.norms = torch.nn.ModuleList(torch.nn.LayerNorm(HIDDEN) for _ in layer.norms)
        self.encoder_norm, self.decoder_norm = torch.nn.LayerNorm(HIDDEN), torch.nn.LayerNorm(HIDDEN)


class Opt(ref.GPT):
    """With a ReLU."""

    def __init__(self):
        super().__init__(LAYERS, HIDDEN, HEADS, VOCAB, SEQ)
        for block in self.blocks:
            block.__class__ = OptBlock


class OptBlock(ref.GPTBlock):
    def forward(self, x):
        x = x + self.out(self.attend(self.ln1(x)))
        return x + self.down(torch.relu(self.up(self.ln2(x))))


def tokens(seq=SEQ):
    return torch.zeros(BATCH, seq, dtype=torch.long)


NETWORKS = {
    "gpt": (ref.GPT(LAYERS, HIDDEN, HEADS, VOCAB, SEQ), [tokens()], Model(vocab=VOCAB, seq=SEQ, **USUAL)),
    "bloom": (
        Bloom(),
        [tokens()],
        Model(vocab=VOCAB, seq=SEQ, embedding_norm=True, positions="none", **USUAL),
    ),
    "opt": (Opt(), [tokens()], Model(vocab=VOCAB, seq=SEQ, activation="relu", **USUAL)),
    "bert": (
        ref.BertModel(LAYERS, HIDDEN, HEADS, FFN, VOCAB, SEQ),
        [tokens()],
        Model(family="encoder", vocab=VOCAB, seq=SEQ, type_vocab=2, head_bias=True, **USUAL),
    ),
    "t5": (
        T5(),
        [tokens(ENCODER), tokens()],
        Model(
            family="encoder-decoder", vocab=VOCAB, seq=SEQ, encoder_seq=ENCODER, encoder_layers=LAYERS, bias=False,
            positions="relative", attention="eager", activation="relu",
            **USUAL | {"layers": 2 * LAYERS},
        ),
    ),
    "vit": (
        ref.ViT(LAYERS, HIDDEN, HEADS, FFN, size=32, patch=8, classes=10),
        [torch.zeros(BATCH, 3, 32, 32)],
        Model(family="vit", image_size=32, patch=8, classes=10, **USUAL),
    ),
}  # fmt: skip


def kept(network, given):
    """Return the bytes of all real numbers but parameters that autograd holds after the forward pass, by storage, and
    how many logits there are."""
    storages = {}

    def pack(tensor):
        if tensor.is_floating_point():
            storages[tensor.untyped_storage()._cdata] = tensor.detach()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        logits = network(*given)
    own = {p.untyped_storage()._cdata for p in network.parameters()}
    return sum(t.untyped_storage().nbytes() for c, t in storages.items() if c not in own), logits.numel()


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_whole_network_keeps_these_bytes(name):
    """In fp32, whose statistics of norms CPU keeps as CUDA does."""
    network, given, model = NETWORKS[name]
    plan = Plan(global_batch=BATCH, micro_batch=BATCH, precision="fp32")
    costs = simulate(model, Cluster.of("cpu", nodes=1, gpus_per_node=1), plan).costs
    found, logits = kept(network, given)
    parts = sum(float(costs[f"saved_{end}_bytes"]) for end in ("embedding", "head"))
    softmax = 4 * logits
    assert found == float(np.sum(costs["saved_bytes"])) + parts - softmax
    assert sum(p.numel() for p in network.parameters()) == model.parameters


def operations(model, end, quantity="bytes"):
    cluster = Cluster.of("h100-sxm-80gb")
    placed = Plan(global_batch=8).on(model, cluster)
    values = inputs.model_values(model) | inputs.cluster_values(cluster, load_profile("h100-sxm-80gb"))
    values |= inputs.plan_values(model, placed, cluster) | symbol_values(RunLevel())
    held = {op.name: getattr(op, quantity) for op in end(Structure.of(model))}
    return {name: float(x) for name, x in Interpreted(held)(values).items()}


def test_an_encoders_tokens_are_looked_up_and_normalised_too():
    model = NETWORKS["t5"][2]
    alone = Model(vocab=VOCAB, seq=SEQ, positions="relative", **USUAL)
    for end, name in ((ends.embedding, "embedding"), (ends.head, "final norm"), (ends.head, "final norm dgrad")):
        ratio = operations(model, end)[name] / operations(alone, end)[name]
        assert ratio == pytest.approx((SEQ + ENCODER) / SEQ)


def test_images_have_no_gradient():
    model = NETWORKS["vit"][2]
    found = operations(model, ends.embedding, "flop")
    assert found == dict.fromkeys(("patches", "patches wgrad"), 2 * 16 * HIDDEN * 3 * 8**2)


def test_berts_transform_and_the_norm_behind_an_embedding_take_time():
    moved = operations(NETWORKS["bert"][2], ends.head)
    assert (moved["transform activation"], moved["transform activation dgrad"]) == (4 * SEQ * HIDDEN, 6 * SEQ * HIDDEN)
    assert operations(NETWORKS["bloom"][2], ends.embedding)["embedding norm"] > 0
