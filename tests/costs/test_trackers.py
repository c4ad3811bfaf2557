"""A step's memory against torch's own trackers of small real networks, by category and to the byte.

What differs is counted in bytes with its reason: tensors that a real loop has beside the formulas' (token numbers,
Adam's step counters), bias gradients of the running product, and what unfused CPU kernels save beyond fused ones.
"""

import pytest
import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from sim.engine.step import simulate
from sim.specs import Cluster, Model, Plan
from tests import reference_modules as ref
from tests.costs.hosts import write
from tests.full import full
from tests.traced import WithLoss

HIDDEN, HEADS, SEQ, BATCH = 64, 4, 64, 2
ROWS = SEQ * BATCH
NUMBERS = 2 * 8 * ROWS + 2 * 4
"""Bytes of token numbers and targets (64 bit), of the loss and of its number of targets."""
POSITIONS = 8 * SEQ
BARE = {
    "context_bytes": 0, "communicator_bytes": 0, "workspace_bytes": 0, "reserved_over_allocated": 1,
    "reserved_sigma_log": 0, "allocated_sigma_log": 0, "source": "tensors alone",
}  # fmt: skip


@pytest.fixture
def cluster(tmp_path):
    """Return a function that makes a cluster of `gpus` devices whose only memory are tensors."""

    def make(gpus, dtype="float32"):
        device = "cpu" if dtype == "float32" else "t4"
        return Cluster.of(device, gpus_per_node=gpus, profile=write(tmp_path / "own", memory=BARE, dtype=dtype))

    return make


def gpt(vocab, eager=False, layers=2):
    given = {"attention": "eager" if eager else "flash", "tied_embeddings": False}
    model = Model(layers=layers, hidden=HIDDEN, heads=HEADS, vocab=vocab, seq=SEQ, **given)
    return model, ref.GPT(layers, HIDDEN, HEADS, vocab, SEQ, eager=eager, tied=False)


def llama(vocab):
    ffn = 160
    model = Model(
        layers=2, hidden=HIDDEN, heads=HEADS, kv_heads=2, ffn=ffn, vocab=vocab, seq=SEQ, gated_mlp=True,
        norm="rmsnorm", tied_embeddings=False, positions="rope", bias=False,
    )  # fmt: skip
    return model, ref.Llama(2, HIDDEN, HEADS, 2, ffn, vocab)


def tracked(tracker, network, optimizer, vocab, transposed=False, microbatches=2):
    """Return torch's peak of two steps by category; the first one makes the optimizer's states."""
    with tracker:
        for _ in range(2):
            for _ in range(microbatches):
                inputs = torch.randint(0, vocab, (BATCH, SEQ))
                targets = torch.randint(0, vocab, (SEQ, BATCH) if transposed else (BATCH, SEQ))
                network(inputs, targets).backward()
                tracker.reset_mod_stats()
            optimizer.step()
            optimizer.zero_grad()
    (found,) = tracker.get_tracker_snapshot("peak").values()
    return {getattr(kind, "value", kind): size for kind, size in found.items()}


def adam(network):
    """Return torch's optimizer, and the bytes of its step counters: an fp32 number a parameter tensor."""
    return torch.optim.Adam(network.parameters(), foreach=False), 4 * len(list(network.parameters()))


def both(cluster, model, network, microbatches=2):
    """Return our composition at the peak of a step, torch's, and the bytes of Adam's counters."""
    network = WithLoss(network)
    optimizer, counters = adam(network)
    tracker = MemTracker()
    tracker.track_external(network, optimizer)
    theirs = tracked(tracker, network, optimizer, model.vocab, model.attention == "eager", microbatches)
    step = simulate(model, cluster(1), Plan(global_batch=microbatches * BATCH, micro_batch=BATCH))
    return step.fullest.composition(), theirs, counters


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
def test_every_category_of_a_step_that_peaks_at_the_loss(cluster, eager):
    model, network = gpt(vocab=512, eager=eager)
    ours, theirs, counters = both(cluster, model, network)
    assert theirs["Parameter"] == ours["parameters"] == 4 * model.parameters
    assert theirs["Gradient"] == ours["gradients"] == 4 * model.parameters
    assert theirs["Optstate"] - counters == ours["optimizer"] == 8 * model.parameters
    assert theirs["Activation"] - NUMBERS - POSITIONS == ours["activations"]
    assert theirs["Temp"] == ours["temporaries"] == 8 * ROWS * model.vocab
    assert theirs["Total"] - counters - NUMBERS - POSITIONS == sum(ours.values())


@pytest.mark.parametrize("eager", [full(False), True])
def test_a_step_that_peaks_in_the_last_layers_last_product(cluster, eager):
    """The loss has let go of what it kept: only sums can be compared. Beside: the product's bias gradient."""
    model, network = gpt(vocab=16, eager=eager)
    ours, theirs, counters = both(cluster, model, network)
    assert theirs["Gradient"] == ours["gradients"]
    moving = theirs["Activation"] + theirs["Temp"] - NUMBERS - POSITIONS - 4 * HIDDEN
    assert moving == ours["activations"] + ours["temporaries"]
    assert theirs["Total"] - counters - NUMBERS - POSITIONS - 4 * HIDDEN == sum(ours.values())


def test_the_first_microbatch_of_torchs_loop_has_no_gradients_yet(cluster):
    """`zero_grad` lets go of them: a step of one microbatch peaks without, where ours keeps room for them."""
    model, network = gpt(vocab=512)
    ours, theirs, counters = both(cluster, model, network, microbatches=1)
    assert theirs["Gradient"] == 0
    assert theirs["Total"] - counters - NUMBERS - POSITIONS == sum(ours.values()) - 4 * model.parameters


def test_a_gated_network_beside_what_unfused_kernels_save(cluster):
    """RMSNorm on a CPU keeps its normalised rows too, SwiGLU the SiLU beside what it multiplies."""
    model, network = llama(vocab=512)
    ours, theirs, counters = both(cluster, model, network)
    assert (theirs["Parameter"], theirs["Gradient"]) == (ours["parameters"], ours["gradients"])
    assert theirs["Optstate"] - counters == ours["optimizer"]
    assert theirs["Temp"] == ours["temporaries"]
    normalised, silu = (2 * model.layers + 1) * 4 * ROWS * HIDDEN, model.layers * 4 * ROWS * model.ffn
    angles = 2 * 4 * SEQ * model.head_dim
    assert theirs["Activation"] - NUMBERS - angles - normalised - silu == ours["activations"]


@pytest.fixture
def four_ranks():
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (4,))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("dtype", "e", "vocab"),
    [("float32", 4, 512), ("bfloat16", 2, 16), full("float32", 4, 16), full("bfloat16", 2, 512)],
)
def test_fully_sharded_steps(cluster, four_ranks, dtype, e, vocab):
    """Shards, activations and states are equal; of the buffers torch's peak holds those of one moment.

    Ours adds up the most of each kind: two blocks' weights and the root group's, and the head's gradient. Torch peaks
    at the loss (512: the root and the last block are gathered), or in the last block (16: the one before, too).
    """
    model, network = gpt(vocab, layers=3)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    given = {"mesh": four_ranks, "mp_policy": policy if e == 2 else MixedPrecisionPolicy()}
    blocks, network = network.blocks, WithLoss(network)
    for part in (*blocks, network):
        fully_shard(part, **given)
    optimizer, counters = adam(network)
    theirs = tracked(FSDPMemTracker(network, optimizer), network, optimizer, vocab)
    plan = Plan(global_batch=4 * 2 * BATCH, micro_batch=BATCH, zero=3, framework="torch")
    step = simulate(model, cluster(4, dtype), plan)
    ours = step.fullest.composition()
    assert theirs["Sharded Param"] == ours["parameters"] == model.parameters
    assert theirs["Sharded Grad"] == ours["gradients"] == model.parameters
    assert theirs["OptState"] - counters == ours["optimizer"] == 2 * model.parameters
    # In bf16 the CPU keeps the norms' statistics in 16 bit, where CUDA keeps fp32; in the last block the final norm's
    # are gone.
    statistics = (4 - e) * 2 * ROWS * (2 * model.layers + (1 if vocab == 512 else 0))
    activations = theirs["Activation"] - NUMBERS - POSITIONS + statistics
    layer, head = next(iter(model.blocks)).parameters, model.vocab * HIDDEN + model.norm_parameters
    root = model.parameters - model.layers * layer
    gathered = theirs["Unsharded Param"] + theirs["All Gather"]
    if vocab == 512:
        assert (activations, theirs["Temp"]) == (ours["activations"], ours["temporaries"])
        assert gathered == e * (root + layer)
    else:
        assert activations == ours["activations"] - float(step.costs["saved_head_bytes"])
        # Gradients of the last product's output, input, weight and bias, and the root group's that wait: e bytes each.
        product = ROWS * 5 * HIDDEN + 4 * HIDDEN**2 + HIDDEN
        assert theirs["Temp"] == e * (product + head)
        assert gathered == e * (root + 2 * layer)
    assert ours["communication"] == e * (root + 2 * layer) + e * head
    assert theirs["Total"] < sum(ours.values())
