"""Messages and bytes that each process of a plan should send in a step, from the dimensions alone.

Tensor parallelism as Megatron-LM does it (arXiv 1909.08053, section 3; sequence parallelism arXiv 2205.05198, section
4.2), data parallelism and ZeRO-1 after arXiv 1910.02054, section 7; of a collective the bytes that a ring sends.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, product

from calibration.execute.traffic_names import EXCHANGED, PARTS, REDUCED, SUMMED, Counted
from sim.costs.inputs import GRADIENT_BYTES
from sim.costs.memory import parameter_symbols
from sim.schedules import Schedule, Shape, build
from sim.specs import Model, PlacedPlan, Plan
from sim.specs.catalog import precision

LOSS_BYTES = 4
"""The statistics of the loss are in fp32 (arXiv 1909.08053, section 3)."""


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
    """Return the parameters of a pipeline rank's process: all, the `table`, and those that tensor-parallel ranks
    hold whole (`repeated`)."""
    plan, p = placed.plan, parameter_symbols(model)
    stages = [s for s, r in enumerate(plan.rank_of) if r == rank]
    layers = sum(plan.split(model)[s] for s in stages)
    first, last = 0 in stages, placed.stages - 1 in stages
    tables = p["embedding_split"] * first + p["head_split"] * (last and not (first and model.tied_embeddings))
    ends = p["embedding_repeated"] * first + p["head_repeated"] * last
    repeated = layers * p["repeated_0"] + ends
    table = p["embedding_split"] / plan.tp if (first or last) else 0.0
    return {"all": (layers * p["split_0"] + tables) / plan.tp + repeated, "table": table, "repeated": repeated}


def expected(model: Model, placed: PlacedPlan) -> list[Counted]:
    """Return what every process sends in a step; those of a pipeline rank send alike."""
    of_rank = [_of_rank(model, placed, rank) for rank in range(placed.plan.pp)]
    size = {"tp": placed.plan.tp, "dp": placed.dp, "pp": placed.plan.pp}
    axes = [axis for axis in reversed(placed.plan.rank_order.split("-")) if axis in size]
    at = axes.index("pp")
    return [of_rank[where[at]] for where in product(*(range(size[axis]) for axis in axes))]


def _of_rank(model: Model, placed: PlacedPlan, rank: int) -> Counted:
    plan = placed.plan
    ledger = Ledger({"tp": plan.tp, "dp": placed.dp, "ends": 2}, defaultdict(lambda: (0, 0.0)))
    element = precision(plan.precision).activation_bytes.value
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
        ledger.add("tp", REDUCED, gradient * own["repeated"])
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
    element, gradient = precision(plan.precision).activation_bytes.value, GRADIENT_BYTES[plan.gradient_dtype]
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
    n = plan.split(model)[stage] * m
    again = plan.recompute != "none"
    if not plan.sequence_parallel:
        ledger.add("tp", REDUCED, hidden, (4 + again) * n + m * (first + last))
    else:
        # Forward in and out of two halves, backward out, in (and what went in once more).
        ledger.add("tp", PARTS, hidden, (2 + 2 + 2 + 2 * again) * n + m * (first + 2 * last))
        ledger.add("tp", EXCHANGED, hidden, (2 + 2 + again) * n + m * (first + last))
    ledger.add("tp", REDUCED, LOSS_BYTES * plan.micro_batch * model.seq, 3 * m * last)


GROUP = "2bw"
"""The order that updates once for all microbatches of a global batch; PipeDream updates after each."""
DELAYED_STEPS = 4
"""Global batches of an order without flush whose passes are compared."""


def microbatch_order(plan: Plan, microbatches: int) -> Schedule:
    """Return the order of a plan without flush, with its own updates, for so many microbatches."""
    group = plan.global_batch // plan.micro_batch if plan.schedule == GROUP else 0
    return build(plan.schedule, Shape(plan.pp, microbatches, group=group))
