"""Saved bytes: the published closed form, and PyTorch itself, to the byte."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as nn

from calibration.layers.attention import _Core
from calibration.layers.gelu import _Gelu
from calibration.layers.norm import _Norm
from sim.costs import memory
from sim.costs.algebra import compile_expressions
from sim.costs.inputs import model_values, precision_values, rank_values, switch_values
from sim.costs.layers.structure import STATISTICS, BlockKind, Structure
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models


def sizes(precision="bf16"):
    """Return the sizes of elements under a precision recipe."""
    return precision_values(precision, Cluster.of("h100-sxm-80gb"))


def block_bytes(
    model, batch, tp=1, sequence_parallel=False, recompute=0, statistics=2, native=0, precision="bf16", tempo=0
):
    kept, rebuilt = memory.block_bytes(BlockKind.of(next(iter(model.blocks))), 0, statistics)
    values = (
        model_values(model)
        | {"tp": tp, "cp": 1, "ep": 1, "etp": 1, "micro_batch": batch, "native": native, "ring": native}
        | sizes(precision)
        | {"tempo": tempo, "experts_again": 0}
    )
    values |= switch_values(0, recompute, sequence_parallel)
    values |= rank_values(values)
    out = compile_expressions({"kept": kept, "rebuilt": rebuilt})(values)
    return float(out["kept"]), float(out["rebuilt"])


def gpt(attention="eager", dropout=0.1, **given):
    return Model(**{"layers": 1, "hidden": 64, "heads": 4, "seq": 32} | given, attention=attention, dropout=dropout)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("sp", [False, True])
def test_korthikanti_equations_2_and_4(tp, sp):
    """sbh (10 + 24/t + 5as/ht), and /t throughout with sequence parallelism; norm statistics come on top."""
    m, b = gpt(), 2
    s, h, a = m.seq, m.hidden, m.heads
    statistics = 2 * 4 * 2 * s * b
    outside = (10 * s * b * h + statistics) / (tp if sp else 1)
    assert block_bytes(m, b, tp, sp)[0] == outside + 24 * s * b * h / tp + 5 * a * s * s * b / tp


def test_selective_and_full_recompute():
    m, b = gpt(), 2
    s, h, a = m.seq, m.hidden, m.heads
    statistics = 2 * 4 * 2 * s * b
    assert block_bytes(m, b, recompute=1) == (34 * s * b * h + statistics, 5 * a * s * s * b)
    assert block_bytes(m, b, recompute=2) == (2 * s * b * h, 32 * s * b * h + statistics + 5 * a * s * s * b)


LATENT_UP = ("query up", "key-value up", "rope")
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "rope_head_dim": 4, "head_dim": 8, "v_head_dim": 8, "kv_heads": None}
ROUTED = {"experts": 4, "experts_per_token": 2, "moe_ffn": 32, "shared_ffn": 48}


@pytest.mark.slow
def test_what_megatrons_selective_recompute_drops():
    """Norms that stand alone, experts' activation, what MLA makes of its latents; else what attention stores."""
    m, b = llama(), 2
    up = 2 * b * m.seq * m.heads * (2 * (LATENT["head_dim"] + LATENT["rope_head_dim"]) + LATENT["v_head_dim"])
    norm, activation = 2 * b * m.seq * m.hidden, 2 * b * m.seq * ROUTED["experts_per_token"] * ROUTED["moe_ffn"]
    for given, dropped, names in [
        ({}, 0, ()),
        (LATENT, norm + up, (*LATENT_UP, "attention norm")),
        (ROUTED, norm + activation, ("mlp norm", "expert activation")),
        (LATENT | ROUTED, 2 * norm + up + activation, (*LATENT_UP, "attention norm", "mlp norm", "expert activation")),
        (LATENT | {"attention": "eager"}, 2 * b * m.heads * m.seq**2, ("scores forward", "softmax", "context forward")),
    ]:
        model = llama(**given)
        none, (kept, back) = (block_bytes(model, b, statistics=1, recompute=k) for k in (0, 1))
        assert (none[0] - kept, back) == (dropped, dropped)
        step = simulate(
            model,
            Cluster.of("h100-sxm-80gb", nodes=1, gpus_per_node=1),
            Plan(global_batch=b, micro_batch=b, recompute="selective"),
        )
        again = sum(op.seconds for op in step.operations if op.name in names)
        assert float(step.costs["recompute"].sum()) == pytest.approx(again)


def test_single_precision_keeps_byte_masks():
    """66 s b h + 9 a s^2 b with eager attention, 66 s b h + 4 a s b with the fused kernel's fp32 row sums."""
    b = 2
    for attention in ("eager", "flash"):
        m = gpt(attention)
        s, h, a = m.seq, m.hidden, m.heads
        core = 9 * a * s * s * b if attention == "eager" else 4 * a * s * b
        assert block_bytes(m, b, precision="fp32")[0] == 66 * s * b * h + core + 16 * s * b


def test_flash_attention_keeps_the_logsumexp():
    m, b = gpt("flash"), 2
    s, h, a = m.seq, m.hidden, m.heads
    assert block_bytes(m, b)[0] == 34 * s * b * h + 4 * a * s * b + 16 * s * b


def dropout(x, p):
    return torch.native_dropout(x, p, True)[0]


class Usual:
    """The layers that Tempo's stand in the place of."""

    norm = staticmethod(lambda x, gamma, beta: nn.layer_norm(x, (len(gamma),), gamma, beta))
    gelu = staticmethod(nn.gelu)
    core = staticmethod(lambda scores, values, p: torch.matmul(dropout(nn.softmax(scores, dim=-1), p), values))


class Tempo:
    """Tempo's."""

    norm = staticmethod(lambda x, gamma, beta: _Norm.apply(x, gamma, beta, 1e-5, True))
    gelu = staticmethod(_Gelu.apply)
    core = staticmethod(_Core.apply)


def eager_block(x, w, heads, p, layers):
    """A pre-LN block as Megatron-LM writes it: separate products, softmax and dropout on the scores."""
    s, b, h = x.shape
    y = layers.norm(x, w["g1"], w["b1"])
    q, k, v = nn.linear(y, w["qkv"]).view(s, b, heads, -1).permute(1, 2, 0, 3).chunk(3, dim=-1)
    scores = torch.matmul(q, k.transpose(-1, -2)) * (h // heads) ** -0.5
    context = layers.core(scores, v, p).permute(2, 0, 1, 3).reshape(s, b, h)
    x = x + dropout(nn.linear(context, w["out"]), p)
    y = layers.norm(x, w["g2"], w["b2"])
    return x + dropout(nn.linear(layers.gelu(nn.linear(y, w["up"])), w["down"]), p)


@pytest.mark.parametrize("layers", [Usual, Tempo])
def test_pytorch_saves_exactly_these_bytes(layers):
    s, b, h, heads = 32, 2, 64, 4
    storages = {}

    def pack(tensor):
        storages.setdefault(tensor.untyped_storage()._cdata, (tensor.detach(), tensor.untyped_storage().nbytes()))
        return tensor.detach()

    with nullcontext() if layers is Tempo else FakeTensorMode():  # Tempo's norm looks at its weights
        shapes = {"g1": (h,), "b1": (h,), "g2": (h,), "b2": (h,), "qkv": (3 * h, h), "out": (h, h)}
        shapes |= {"up": (4 * h, h), "down": (h, 4 * h)}
        w = {n: torch.ones(shape, dtype=torch.bfloat16, requires_grad=True) for n, shape in shapes.items()}
        x = torch.ones((s, b, h), dtype=torch.bfloat16, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            eager_block(x, w, heads, 0.1, layers)
        weights = {t.untyped_storage()._cdata for t in (*w.values(), *([x] if layers is Tempo else []))}
        saved = sum(n for t, n in storages.values() if t.untyped_storage()._cdata not in weights)
    # On CPU in bf16 the norms' statistics are kept in 16 bit, on CUDA in fp32. The block's input is its first norm's,
    # which Tempo's does not keep.
    statistics = 2 * s * b * (2 if layers is Usual else 1)
    expected, _ = block_bytes(gpt(), b, tempo=layers is Tempo)
    assert saved == expected - statistics * 4 + statistics * 2


def evaluated(expression, model, batch, tp=1, sequence_parallel=False, loss="in-place"):
    values = model_values(model) | {"tp": tp, "cp": 1, "ep": 1, "etp": 1, "micro_batch": batch} | sizes()
    values |= switch_values(0, 0, sequence_parallel) | {"native": 0, "ring": 0, "autograd_loss": loss == "autograd"}
    values |= {"fused_loss": loss == "fused", "shard_n": 1, "tempo": 0}
    values |= rank_values(values)
    return float(compile_expressions({"x": expression})(values)["x"])


def saved_bytes(model, precision):
    """Return what a layer of `model` keeps of one sample on one device."""
    return block_bytes(model, 1, statistics=STATISTICS[model.norm], precision=precision)[0]


def llama(**given):
    usual = {"layers": 1, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "vocab": 512, "seq": 32}
    return Model(**usual | {"gated_mlp": True, "norm": "rmsnorm", "tied_embeddings": False} | given)


@pytest.mark.parametrize(("tp", "sp", "hidden_states"), [(1, False, 2), (2, False, 2), (2, True, 3.5)])
def test_gradients_of_a_gated_mlp_meet_gathered_hidden_states(tp, sp, hidden_states):
    """Gradients of gate and up; of output and input; with sequence parallelism gathered output, input and gradient."""
    m, b = llama(), 2
    t = m.seq * b
    found = evaluated(memory.gradient_bytes(BlockKind.of(next(iter(m.blocks))), 0), m, b, tp, sp)
    assert found == 2 * t * 2 * m.ffn / tp + 2 * hidden_states * t * m.hidden


def test_gradients_of_the_scores_come_when_the_mlp_is_gone():
    m, b = gpt(), 2
    s, h, a = m.seq, m.hidden, m.heads
    found = evaluated(memory.gradient_bytes(BlockKind.of(next(iter(m.blocks))), 0), m, b)
    mlp = 2 * s * b * 2 * m.ffn
    assert found == max(4 * a * s * s * b - mlp, 2 * s * b * m.ffn) + 2 * 2 * s * b * h


def test_latent_attention_has_scores_like_any_other():
    """Their gradients come in the backward pass, and PyTorch's selective recompute drops and repeats them."""
    m, b = llama(**LATENT | {"attention": "eager", "seq": 256}), 2
    t, scores = m.seq * b, m.heads * m.seq**2 * b
    found = evaluated(memory.gradient_bytes(BlockKind.of(next(iter(m.blocks))), 0), m, b)
    assert found == 4 * scores - 2 * t * 3 * m.ffn + 4 * t * m.hidden
    none, (kept, back) = (block_bytes(m, b, statistics=1, recompute=k, native=1) for k in (0, 1))
    assert (none[0] - kept, back) == (2 * scores, 2 * scores)


@pytest.mark.parametrize(
    ("loss", "tp", "held", "more"),
    [("in-place", 1, 4, 2), ("in-place", 2, 4, 2), ("autograd", 1, 4, 8), ("autograd", 2, 4, 12), ("fused", 1, 2, 2)],
)
def test_bytes_per_logit_of_every_cross_entropy(loss, tp, held, more):
    m, b = llama(seq=4096, hidden=16), 2
    rows = m.seq * b
    logits = rows * m.vocab / tp
    kept, beside = memory.head_bytes(Structure.of(m))
    assert evaluated(kept, m, b, tp, loss=loss) == held * logits + 4 * rows * m.hidden + 4 * rows
    product = 2 * m.vocab * m.hidden / tp + 2 * rows * m.hidden + (2 - held) * logits
    assert evaluated(beside, m, b, tp, loss=loss) == max(more * logits, product)


@pytest.mark.parametrize("sp", [False, True])
def test_gradient_of_the_heads_weight_follows_the_softmax(sp):
    """Few tokens, a wide model: its 16-bit gradient is the most, when the fp32 softmax (4) made way for 2."""
    m, b = llama(hidden=1024), 1
    rows = m.seq * b
    found = evaluated(memory.head_bytes(Structure.of(m))[1], m, b, 2, sp)
    hidden_states = (2 if sp else 1) * 2 * rows * m.hidden
    assert found == 2 * m.vocab * m.hidden / 2 + hidden_states - 2 * rows * m.vocab / 2


def test_torchtitan_keeps_every_second_product():
    """Block input, q, v, context, gate, down, and the row sums; what else was saved comes back for a while."""
    m, b = llama(), 2
    t, h = m.seq * b, m.hidden
    none, _ = block_bytes(m, b, statistics=1)
    kept, rebuilt = block_bytes(m, b, recompute=1, statistics=1, native=1)
    assert kept == 2 * t * (h + h + h / 2 + h + m.ffn + h) + 4 * m.heads * t
    assert kept + rebuilt == none


def test_a_gpt_keeps_q_k_and_v_as_one_product():
    """18.03 s b h bytes, row sums with them, are what an H200 kept with cuDNN's attention."""
    m, b = gpt("flash", 0.0), 2
    t, h = m.seq * b, m.hidden
    assert block_bytes(m, b, recompute=1, native=1)[0] == 2 * t * (h + 3 * h + h + m.ffn) + 4 * m.heads * t


def test_experts_on_a_latent_width_save_narrow_rows():
    """Per row: input and output of the expert; per token: what both projections read."""
    given = {"experts": 4, "experts_per_token": 2, "moe_ffn": 32, "gated_mlp": False, "pattern": "E"}
    wide, narrow = llama(**given), llama(**given, moe_latent=16)
    b, t = 2, 64
    kinds = [BlockKind.of(next(iter(m.blocks))) for m in (wide, narrow)]
    saved = [evaluated(memory.saved(k, 0, 1).mlp, m, b) for k, m in zip(kinds, (wide, narrow), strict=True)]
    assert saved[0] - saved[1] == 4 * 2 * t * (64 - 16) - 2 * t * (64 + 16)


def test_one_expert_stands_for_all_of_its_shape():
    m = llama(experts=4, experts_per_token=2, moe_ffn=32)
    block = next(iter(m.blocks))
    found = evaluated(memory.product_parameters(0), m, 1)
    assert found == block.parameters - block.expert_parameters * 3 / 4


def test_recomputed_layers_of_several_chunks_a_rank():
    cluster = Cluster.of("h100-sxm-80gb", nodes=1)

    def peak(**given):
        plan = Plan(**{"pp": 2, "virtual_stages": 2, "global_batch": 32, "recompute": "full"} | given)
        return simulate(models["llama3.2-1b"], cluster, plan).peak_memory_bytes

    assert peak() < peak(recompute_layers=2) < peak(recompute="none")
    with pytest.raises(InputError, match="different lengths"):
        peak(recompute_layers=2, stage_layers=(2, 6, 4, 4))
