"""Saved bytes: the published closed form, and PyTorch itself, to the byte."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as nn

from sim.costs import memory
from sim.costs.algebra import compile_expressions
from sim.costs.inputs import kv_columns, model_values, switch_values
from sim.costs.layers.structure import BlockKind
from sim.specs import Model


def block_bytes(model, batch, tp=1, sequence_parallel=False, recompute=0, statistics=2):
    kept, rebuilt = memory.block_bytes(BlockKind.of(next(iter(model.blocks))), 0, statistics)
    values = model_values(model) | {"tp": tp, "cp": 1, "micro_batch": batch, "input_bytes": 2}
    values |= switch_values(0, recompute, sequence_parallel)
    values["kv_columns"] = kv_columns(values)
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


def test_flash_attention_keeps_the_logsumexp():
    m, b = gpt("flash"), 2
    s, h, a = m.seq, m.hidden, m.heads
    assert block_bytes(m, b)[0] == 34 * s * b * h + 4 * a * s * b + 16 * s * b


def dropout(x, p):
    return torch.native_dropout(x, p, True)[0]


def eager_block(x, w, heads, p):
    """A pre-LN block as Megatron-LM writes it: separate products, softmax and dropout on the scores."""
    s, b, h = x.shape
    y = nn.layer_norm(x, (h,), w["g1"], w["b1"])
    q, k, v = nn.linear(y, w["qkv"]).view(s, b, heads, -1).permute(1, 2, 0, 3).chunk(3, dim=-1)
    scores = nn.softmax(torch.matmul(q, k.transpose(-1, -2)) * (h // heads) ** -0.5, dim=-1)
    context = torch.matmul(dropout(scores, p), v).permute(2, 0, 1, 3).reshape(s, b, h)
    x = x + dropout(nn.linear(context, w["out"]), p)
    y = nn.layer_norm(x, (h,), w["g2"], w["b2"])
    return x + dropout(nn.linear(nn.gelu(nn.linear(y, w["up"])), w["down"]), p)


def test_pytorch_saves_exactly_these_bytes():
    s, b, h, heads = 32, 2, 64, 4
    storages = {}

    def pack(tensor):
        storages.setdefault(id(tensor.untyped_storage()), (tensor.detach(), tensor.untyped_storage().nbytes()))
        return tensor.detach()

    with FakeTensorMode():
        shapes = {"g1": (h,), "b1": (h,), "g2": (h,), "b2": (h,), "qkv": (3 * h, h), "out": (h, h)}
        shapes |= {"up": (4 * h, h), "down": (h, 4 * h)}
        w = {n: torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for n, shape in shapes.items()}
        x = torch.empty((s, b, h), dtype=torch.bfloat16, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            eager_block(x, w, heads, 0.1)
        weights = {t.untyped_storage()._cdata for t in w.values()}
        saved = sum(n for t, n in storages.values() if t.untyped_storage()._cdata not in weights)
    # On CPU in bf16 the norms' statistics are kept in 16 bit, on CUDA in fp32.
    statistics = 2 * 2 * s * b
    expected, _ = block_bytes(gpt(), b)
    assert saved == expected - statistics * 4 + statistics * 2
