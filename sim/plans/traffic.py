"""Messages and bytes that each process of a plan sends in a step, from the dimensions alone.

Tensor parallelism as Megatron-LM does it (arXiv 1909.08053, section 3; sequence parallelism arXiv 2205.05198, section
4.2) or PyTorch (`torch.distributed.tensor.parallel`, by `plan.framework`), data parallelism and ZeRO-1 after arXiv
1910.02054, section 7, ZeRO-2 and 3 as PyTorch's FSDP2 (arXiv 2304.11277); of a collective the bytes that a ring sends.
`trainsim execute` holds what it counts at the collectives against this, a plan file states it. How many messages the
bytes are cut into is what PyTorch does.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from sim.costs.inputs import GRADIENT_BYTES
from sim.costs.memory import parameter_symbols
from sim.specs import Model, PlacedPlan, Plan
from sim.specs.catalog import precision

Counted = Mapping[str, tuple[int, float]]
"""Messages (calls) and bytes sent, by group and operation ("dp all_reduce") or link ("pp send 0>1")."""

REDUCED, PARTS, EXCHANGED, SUMMED = "all_reduce", "all_gather", "exchange", "reduce_scatter"
"""Operations; an exchange of parts stands for a reduce-scatter of as many bytes, which gloo does not have."""
LOSS_BYTES = 4
"""The statistics of the loss are in fp32 (arXiv 1909.08053, section 3)."""


def alike(plan: Plan) -> bool:
    """Return whether all stages have the same degrees, so that messages between them are of one size."""
    return len({(s.tp, s.dp, s.micro_batch, plan.at(n).sequence_parallel) for n, s in enumerate(plan.stages)}) <= 1


def covered(model: Model, placed: PlacedPlan) -> bool:
    """Return whether `traffic` knows a plan of equal stages: dense decoders, over tp, dp and pp."""
    plan = placed.plan
    split = plan.tp * plan.pp > 1
    return (
        set(model.pattern) == {"T"}
        and model.family == "decoder"
        and not (model.network or model.experts or model.mtp_layers or model.embedding_norm)
        and plan.cp == plan.ep == plan.etp == plan.copies == 1
        and not plan.fsdp_shard
        and not (plan.offload.weights or (split and plan.zero > 1))
        and (plan.sequence_parallel or plan.tp == 1 or not plan.scatter_gather)  # else receivers gather messages
        and precision(str(plan.precision)).operand_bytes == precision(str(plan.precision)).activation_bytes.value
    )


@dataclass
class Ledger:
    """What one process sends: calls and bytes by group and operation, or link."""

    sizes: dict[str, int]
    found: dict[str, tuple[int, float]]

    def add(self, axis: str, what: str, size: float, times: float = 1) -> None:
        """Count a collective over the whole of `size` bytes, `times` over."""
        n = self.sizes[axis]
        if n > 1 and times:
            self._sum(f"{axis} {what}", times, (2 if what == REDUCED else 1) * size * (n - 1) / n)

    def send(self, source: int, to: int, size: float, times: float) -> None:
        """Count `times` messages of `size` bytes over a link of the pipeline."""
        self._sum(f"pp send {source}>{to}", times, size)

    def _sum(self, key: str, times: float, size: float) -> None:
        calls, sent = self.found[key]
        self.found[key] = calls + round(times), sent + times * size


def parameters(model: Model, placed: PlacedPlan, rank: int) -> dict[str, float]:
    """Return the parameters of a pipeline rank's process: all, the `table`, and those that work on a part of the
    sequence (`partial`): what tensor-parallel ranks hold whole; biases of products split by rows PyTorch adds before
    their sum, Megatron-LM after it."""
    plan, p = placed.plan, parameter_symbols(model)
    stages = [s for s, r in enumerate(plan.rank_of) if r == rank]
    layers = sum(plan.split(model)[s] for s in stages)
    first, last = 0 in stages, placed.stages - 1 in stages
    tables = p["embedding_split"] * first + p["head_split"] * (last and not (first and model.tied_embeddings))
    ends = p["embedding_repeated"] * first + p["head_repeated"] * last
    repeated = layers * p["repeated_0"] + ends
    biases = layers * (model.bias + model.mlp_bias) * model.hidden if plan.framework == "torch" else 0
    table = p["embedding_split"] / plan.tp if (first or last) else 0.0
    return {"all": (layers * p["split_0"] + tables) / plan.tp + repeated, "table": table, "partial": repeated - biases}


def traffic(model: Model, placed: PlacedPlan) -> list[Counted]:
    """Return what a process of every pipeline rank sends in a step: all of a rank send alike.

    Empty where `covered` or `alike` says no.
    """
    ranks = range(placed.plan.pp)
    if not alike(placed.plan) or not all(covered(model, placed.at(rank)) for rank in ranks):
        return []
    return [_of_rank(model, placed.at(rank), rank) for rank in ranks]


def _of_rank(model: Model, placed: PlacedPlan, rank: int) -> Counted:
    plan = placed.plan
    ledger = Ledger({"tp": plan.tp, "dp": placed.dp, "ends": 2}, defaultdict(lambda: (0, 0.0)))
    element = precision(str(plan.precision)).activation_bytes.value
    hidden = element * plan.micro_batch * model.seq * model.hidden
    _pipeline(ledger, placed, rank, hidden / (plan.tp if plan.sequence_parallel else 1))
    held = [s for s, r in enumerate(plan.rank_of) if r == rank]
    for stage in held:
        _tensor(ledger, model, placed, stage, hidden)
    own = parameters(model, placed, rank)
    gradient = GRADIENT_BYTES[plan.gradient_dtype]
    ends = {plan.rank_of[0], plan.rank_of[-1]}
    if model.tied_embeddings and rank in ends and len(ends) > 1:
        ledger.add("ends", REDUCED, gradient * own["table"])
    if plan.sequence_parallel:
        ledger.add("tp", REDUCED, gradient * own["partial"])
    if plan.zero > 1:
        _sharded(ledger, model, placed, own["all"])
    elif plan.zero:
        padded = -(-own["all"] // placed.dp) * placed.dp
        ledger.add("dp", EXCHANGED, gradient * padded)
        ledger.add("dp", PARTS, element * padded)
    else:
        layers = sum(plan.split(model)[s] for s in held)
        parts = 2 + layers if plan.overlap_dp else 1  # a layer at a time, the tables, what is after the layers
        ledger.add("dp", REDUCED, gradient * own["all"] / parts, parts)
    return dict(ledger.found)


def _pipeline(ledger: Ledger, placed: PlacedPlan, rank: int, message: float) -> None:
    rank_of = placed.plan.rank_of
    for here, there in pairwise(rank_of):
        for source, to in ((here, there), (there, here)):
            if source == rank != to:
                ledger.send(source, to, message, placed.microbatches)


def _sharded(ledger: Ledger, model: Model, placed: PlacedPlan, parameters: float) -> None:
    """Count FSDP2's messages: every layer is a group, all else another, which is not given up between its passes.

    Weights are gathered for each pass of a layer (ZeRO-3) or once a step, gradients reduced for every microbatch.
    """
    plan, m, symbols = placed.plan, placed.microbatches, parameter_symbols(model)
    layer = symbols["split_0"] + symbols["repeated_0"]
    element, gradient = precision(str(plan.precision)).activation_bytes.value, GRADIENT_BYTES[plan.gradient_dtype]
    gathers = (2 * m, m) if plan.zero == 3 else (1, 1)
    for size, groups, times in (
        (layer, model.layers, gathers[0]),
        (parameters - model.layers * layer, 1, gathers[1]),
    ):
        ledger.add("dp", PARTS, element * size, groups * times)
        ledger.add("dp", SUMMED, gradient * size, groups * m)


def _tensor(ledger: Ledger, model: Model, placed: PlacedPlan, stage: int, hidden: float) -> None:
    """Count what a stage's halves of layers, embedding, head and loss exchange for all microbatches.

    Full recompute repeats a layer up to the last thing that it needs: all but the second half's sum.
    """
    plan, m = placed.plan, placed.microbatches
    first, last = stage == 0, stage == placed.stages - 1
    layers = plan.split(model)[stage]
    n, repeated = layers * m, min(plan.recompute_layers or layers, layers) * m
    again = plan.recompute == "full" or (plan.recompute == "selective" and plan.framework == "torch")
    if not plan.sequence_parallel:
        ledger.add("tp", REDUCED, hidden, 4 * n + again * repeated + m * (first + last))
    else:
        # Forward in and out of two halves, backward out and in; Megatron-LM gathers what went in once more.
        more = plan.framework == "megatron"
        ledger.add("tp", PARTS, hidden, (4 + 2 * more) * n + 2 * again * repeated + m * (first + (1 + more) * last))
        ledger.add("tp", SUMMED, hidden, 4 * n + again * repeated + m * (first + last))
    ledger.add("tp", REDUCED, LOSS_BYTES * plan.micro_batch * model.seq, 3 * m * last)
