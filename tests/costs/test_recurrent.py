"""LSTM and GRU layers: parameters, FLOP, kernels, saved bytes and seconds against torch's modules and by hand."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from calibration.layers import lstm
from calibration.taskmap.native import compiler
from sim.costs import inputs, kernels, memory, tensors
from sim.costs.algebra import Interpreted
from sim.costs.layers.block import block
from sim.costs.layers.ops import total
from sim.costs.layers.recurrent import BETWEEN
from sim.costs.layers.structure import Structure
from sim.costs.profile import load_profile
from sim.costs.run_level import RunLevel, run_level, symbol_values
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models

TORCHS = {"L": nn.LSTM, "G": nn.GRU}
OURS = {"L": lstm.LSTM, "G": lstm.GRU}
MIXER = {"L": "lstm", "G": "gru"}
SEQ, BATCH, HIDDEN = 5, 3, 8
NEEDS_C = pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
V100 = Cluster.of("v100-sxm-16gb", nodes=1, gpus_per_node=1)


def model(letter, layers=2, hidden=HIDDEN, seq=SEQ, **given):
    usual = {"heads": 1, "vocab": 11, "bias": True, "tied_embeddings": False}
    return Model(layers=layers, pattern=letter * layers, hidden=hidden, seq=seq, **usual | given)


def values(made, cluster=V100, **plan):
    """Return the symbols of a step of one device that takes its whole batch at once, kernels as they are timed."""
    placed = Plan(**{"global_batch": BATCH, "micro_batch": BATCH} | plan).on(made, cluster)
    profile = load_profile(cluster.profile)
    held = inputs.model_values(made) | inputs.cluster_values(cluster, profile) | symbol_values(RunLevel())
    return held | inputs.plan_values(made, placed, cluster)


def parameters(module):
    return sum(each.numel() for each in module.parameters())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("letter", TORCHS)
def test_parameters_are_torchs(letter, bias):
    """Table and head are all that comes on top: no norm, no positions."""
    made = model(letter, bias=bias)
    assert made.parameters == parameters(TORCHS[letter](HIDDEN, HIDDEN, 2, bias=bias)) + 2 * 11 * HIDDEN
    assert (made.positions, made.final_norms) == ("none", 0)


def test_the_language_model_is_the_published_one():
    """Two layers of 650, 35 steps, 10,000 words: 20 million parameters."""
    found, width = models["lstm-lm"], 650
    head = nn.Linear(width, 10_000)
    assert found.parameters == parameters(nn.LSTM(width, width, 2)) + parameters(head) + 10_000 * width
    assert round(found.parameters / 1e6) == 20


@pytest.mark.parametrize("letter", TORCHS)
@pytest.mark.parametrize("made", [TORCHS, OURS], ids=["torch", "ours"])
def test_flop_are_torchs(letter, made):
    """Forward, and three times it in training; in fp64, as what oneDNN does for torch in fp32 is not counted."""
    given = {} if made is TORCHS else {"implementation": "default"}
    module, one = made[letter](HIDDEN, HIDDEN, 2, **given), model(letter)
    kind = {"dtype": torch.float64, "requires_grad": True}
    x, state, cell = (torch.zeros(n, BATCH, HIDDEN, **kind) for n in (SEQ, 2, 2))
    with FlopCounterMode(display=False) as forward:
        y = module.double()(x, (state, cell) if letter == "L" else state)[0]
    with FlopCounterMode(display=False) as backward:
        y.sum().backward()
    head = 2 * 11 * HIDDEN * SEQ
    assert BATCH * (one.flop_per_sample() / 3 - head) == forward.get_total_flops()
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


class Launches(TorchDispatchMode):
    """Counts operations that write to memory, by the sizes of their results, and the numbers that they move."""

    VIEWS = ("view", "t", "transpose", "split", "detach", "unbind", "select", "expand", "alias", "as_strided", "slice")

    def __init__(self):
        super().__init__()
        self.found, self.moved = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.__name__.split(".")[0]
        if isinstance(out, torch.Tensor) and name not in self.VIEWS:
            kind = "product" if name in ("mm", "addmm") else tuple(out.shape)
            lists = [each for one in args for each in (one if isinstance(one, list | tuple) else [one])]
            self.found[kind] += 1
            self.moved[kind] += out.numel() + sum(each.numel() for each in lists if isinstance(each, torch.Tensor))
        return out


def launched(letter, seq):
    """Return what our default layer launches forward and backward."""
    module = OURS[letter](HIDDEN, HIDDEN, implementation="default")
    x = torch.zeros(seq, BATCH, HIDDEN, requires_grad=True)
    with Launches() as forward:
        y = module(x)[0]
    with Launches() as backward:
        torch.autograd.grad(y, (x, *module.parameters()), torch.ones_like(y))
    return forward, backward


@pytest.mark.parametrize("letter", OURS)
def test_default_launches_are_those_of_the_module(letter):
    """A further step: two products forward and four backward, and the point-wise kernels on [batch, .. hidden]."""
    (a, a_back), (b, b_back) = launched(letter, 6), launched(letter, 7)
    for direction, more, fewer, products in (("forward", b, a, 2), ("backward", b_back, a_back, 4)):
        held = BETWEEN[MIXER[letter], direction]
        counts, moved = (
            {k: getattr(more, n)[k] - getattr(fewer, n)[k] for k in more.found} for n in ("found", "moved")
        )
        between = [k for k in counts if isinstance(k, tuple) and k[0] == BATCH and len(k) == 2]
        assert counts["product"] == products
        assert sum(counts[k] for k in between) == held.launches
        assert sum(moved[k] for k in between) == held.moved * BATCH * HIDDEN


def kept(module, *given):
    """Return the bytes that a forward keeps for its backward, parameters left out, storages counted once."""
    own, storages = {each.untyped_storage().data_ptr() for each in module.parameters()}, {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = module(*given)[0]
    return sum(storages.values()), y


@pytest.mark.parametrize("kernel", ["default", pytest.param("fused", marks=NEEDS_C)])
@pytest.mark.parametrize("letter", OURS)
def test_saved_bytes_are_those_of_the_module(letter, kernel):
    """Of two layers; fused, the states of the last one are kept for what reads them."""
    x = torch.zeros(SEQ, BATCH, HIDDEN, requires_grad=True)
    state = torch.zeros(2, BATCH, HIDDEN)
    given = (x, (state, state.clone()) if letter == "L" else state)
    found, y = kept(OURS[letter](HIDDEN, HIDDEN, 2, implementation=kernel), *given)
    made = model(letter)
    (kind,) = Structure.of(made).kinds
    saved = Interpreted({"all": memory.saved(kind, 0, 2).all})
    one = saved(values(made, precision="fp32", recurrent_kernel=kernel))["all"]
    assert found == 2 * one + (4 * y.numel() if kernel == "fused" else 0)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("letter", OURS)
def test_tensors_of_a_replay_are_the_saved_bytes(letter, recompute):
    made = model(letter, dropout=0.5)
    structure, at = Structure.of(made), values(made, recompute=recompute)
    sizes = tensors.tensor_model(structure)(at)
    found = tensors.layer_tensors(structure, 0, sizes, recompute)
    assert sum(found.kept) == round(sizes["kept_0"]) and sum(found.rebuilt) == round(sizes["rebuilt_0"])
    assert sum(found.gradients) == pytest.approx(sizes["gradient_0"], abs=4)
    if recompute == "none":
        inputs_, gates, cells, mask = found.kept
        assert gates == 4 * inputs_ == 4 * cells
        assert mask == SEQ * BATCH * HIDDEN


def compute_seconds(made, at):
    """Return the compute seconds of one layer, forward and backward."""
    (kind,) = Structure.of(made).kinds
    return float(Interpreted({"all": total(block(kind, 0), "seconds", "compute")})(at)["all"])


def floor_share(made, kernel, batch):
    """Return the share of a layer's compute that is launch floors, and their seconds."""
    at = values(made, global_batch=batch, micro_batch=batch, precision="fp16", recurrent_kernel=kernel)
    whole = compute_seconds(made, at)
    floors = whole - compute_seconds(made, at | {name: 0.0 for name in at if name.endswith("_t0")})
    return floors / whole, floors


@pytest.mark.parametrize("letter", OURS)
def test_launch_floors_by_hand(letter):
    """5 steps: by default 2 products forward and 2 each to inputs and weights of every step, and all kernels between;
    cuDNN's way 1 + 5 forward and to inputs, 2 to weights, 5 + 5 kernels and one sum."""
    made, t0 = model(letter), {k: v for k, v in load_profile(V100.profile).values.items() if k.endswith("_t0")}
    gemm = [t0[f"gemm_{d}_t0"] for d in ("forward", "dgrad", "wgrad")]
    small = t0["elementwise_any_t0"]
    between = sum(BETWEEN[MIXER[letter], d].launches for d in ("forward", "backward"))
    by_default = SEQ * (2 * sum(gemm) + (between + 4) * small)
    fused = (1 + SEQ) * (gemm[0] + gemm[1]) + 2 * gemm[2] + (2 * SEQ + 1) * small
    assert floor_share(made, "default", BATCH)[1] == pytest.approx(by_default)
    assert floor_share(made, "cudnn", BATCH)[1] == pytest.approx(fused)


def test_the_default_layer_is_bound_by_launches():
    """The published language model at its batch of 20 in 16 bit: ten times the seconds of the fused one's launches."""
    made = models["lstm-lm"]
    (default, long), (fused, short) = (floor_share(made, kernel, 20) for kernel in ("default", "fused"))
    assert default > 0.5 > fused
    assert long > 10 * short


@pytest.mark.parametrize("batch", [4, 64])
def test_fused_layers_take_the_faster_layout(batch):
    """By hand: where samples lie in columns, each product has the operands transposed of another one in rows."""
    steps, wide, width, n = 35, 4 * 650, 650, 35 * batch
    at = values(models["lstm-lm"], global_batch=batch, micro_batch=batch, precision="fp16")

    def total_of(*products):
        parts = [t * kernels.product_seconds(*each, plain=True, smallest_tile=64) for t, *each in products]
        return float(Interpreted({"all": sum(parts)})(at)["all"])

    both = ((1, n), (steps, batch))
    rows = [p for t, m in both for p in ((t, "forward", m, wide, width), (t, "dgrad", m, width, wide))]
    columns = [p for t, m in both for p in ((t, "dgrad", wide, m, width), (t, "wgrad", width, m, wide))]
    rows, columns = (
        total_of(*each, (2, kernel, wide, width, n)) for each, kernel in ((rows, "wgrad"), (columns, "forward"))
    )
    found = {}
    for kernel in ("cudnn", "fused"):
        done = simulate(models["lstm-lm"], V100, Plan(global_batch=batch, micro_batch=batch, recurrent_kernel=kernel))
        products = ("recurrent in", "recurrent state")
        found[kernel] = sum(op.seconds for op in done.operations if op.name.startswith(products))
    slower = run_level().parameters.gemm_slowdown
    assert found == pytest.approx({"cudnn": slower * rows, "fused": slower * min(rows, columns)})


def test_small_tiles_only_help_where_large_ones_leave_units_idle():
    def rate(profile, m, n, k, tile):
        seconds = kernels.product_seconds("forward", m, n, k, plain=True, smallest_tile=tile)
        return 2 * m * n * k / float(Interpreted({"all": seconds})(values(model("L"), profile))["all"])

    few, many = (32, 2048, 512), (8192, 8192, 512)
    assert rate(V100, *few, 64) > 3 * rate(V100, *few, None)
    assert rate(V100, *many, 64) == pytest.approx(rate(V100, *many, None), rel=0.05)
    # A tile takes its time, however few of its rows are needed.
    assert rate(V100, 64, 64, 4096, 64) == pytest.approx(2 * rate(V100, 32, 64, 4096, 64), rel=0.02)
    core = Cluster.of("cpu", nodes=1, gpus_per_node=1)  # its tiles are smaller
    assert rate(core, *few, 64) == rate(core, *few, None)


def step(kernel, batch=32, engine="path", **given):
    usual = {"micro_batch": batch, "precision": "fp16", "recurrent_kernel": kernel}
    return simulate(models["lstm-lm"], V100, Plan(global_batch=batch, **usual | given), engine)


@pytest.mark.parametrize("kernel", ["default", "fused", "cudnn"])
def test_both_engines_agree(kernel):
    path, events = (step(kernel, batch=64, micro_batch=16, engine=engine) for engine in ("path", "events"))
    assert events.step_time_s == pytest.approx(path.step_time_s, rel=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 2}, r"plan\.tp: got 2; allowed: "),
        ({"cp": 2}, r"plan\.cp: got 2; allowed: 1: recurrent layers are not split"),
        ({"recompute": "selective"}, r"plan\.recompute: got 'selective'; allowed: none or full: recurrent"),
        ({"tempo": True}, r"plan\.tempo: got True; allowed: false: this model has no LayerNorm"),
    ],
)
def test_what_would_split_the_steps_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        Plan(global_batch=8, **given).on(models["lstm-lm"], Cluster.of("h100-sxm-80gb", nodes=1, gpus_per_node=2))
