"""What a host spends on issuing kernels: Python, dispatcher and autograd, beside the kernels or in turn with them."""

from collections.abc import Sequence

from sim.costs.algebra import Expr, maximum, minimum, symbol
from sim.costs.layers import traced
from sim.costs.layers.ops import Op, native
from sim.costs.layers.structure import BlockKind, Kind, Structure, TracedKind
from sim.costs.layers.tempo import tempo
from sim.specs import table
from sim.specs.blocks import GATES
from sim.specs.model import Model
from sim.specs.plan import Plan

MEGATRON_ISSUE = {"forward": 4.8, "backward": 1.6, "ends": 2.3}
"""Times that Megatron-Core's Python takes longer to issue a layer's passes, and embedding, head and loss, than plain
PyTorch's: Megatron-Core 0.16.1 without fusions beside `SmallGpt`, torch 2.11, the host of an H200, 2026-11-29
(`calibration.issue_ratios --device cuda`: 4.81, 1.61 and 2.28; one core of an AMD EPYC, torch 2.13: 4.50 - 4.62, 1.67 -
1.78 and 2.06 - 2.13; Megatron-Core 0.8.0 a tenth less forward).

Megatron-LM's layers from before it (`core_modules` false) count as plain ones: of 1,120 profiles of A100 nodes by
vTrain (arXiv 2312.12391, whose authors found measured steps within 8.4 % of theirs) small models then come out as much
too long as large ones, 19 %, and as Megatron-Core's 109 %."""

EXPERTS_ISSUE = {"forward": 1.7, "backward": 1.5}
"""Times that a layer of Megatron-Core with experts takes longer to issue than one with a dense MLP: router, permuting,
all-to-all and one expert for all that are grouped (`calibration.issue_ratios --network megatron-experts` beside
`megatron`: 1.63 - 1.79 and 1.48 - 1.51, one core of an AMD EPYC, torch 2.13, Megatron-Core 0.16.1, 2026-11-30;
no GPU's host was measured). Of experts in plain layers nothing is known."""

EXPERT_PRODUCT_ISSUE = 33e-6 / 1.28e-3
"""What Transformer Engine takes to issue a product of one more local expert, over a plain layer's `issue_s`: cuBLAS has
them one by one, and eight of 128 rows by 2,048 x 2,048 took 0.267 ms on a Blackwell device, 0.069 ms as one kernel
(TransformerEngine pull request 3134, June 2026); over `issue_s` of an H200's host."""
EXPERT_PRODUCTS = {"forward": 2, "backward": 4}
FUSED_EXPERT_ISSUE = {"forward": 1.2e-3 / 64 / 1.28e-3, "backward": 2.1e-3 / 64 / 1.28e-3}
"""The same of all products of an expert where they are one kernel each for all experts (the plan's `fused_experts`): 64
experts of width 128 on a GB200, 1.2 ms forward and 2.1 ms backward (TransformerEngine issue 2897, April 2026); what of
it does not grow with the experts is counted as if it did."""

COMPILED_ISSUE = {"forward": 1.6, "backward": 1.1, "ends": 1.0}
"""The same of plain layers that are compiled one by one: their wrappers (`calibration.issue_ratios --device cuda
--network compiled`: 1.65, 1.12 and 1.05; on a CPU 1.25 and 0.8)."""


issued = symbol("issued")
"""0 where a CUDA graph replays the kernels of the passes (the plan's `cuda_graphs`), else 1."""


def host_seconds(kind: Kind, ops: Sequence[Op], share: Expr) -> dict[str, tuple[Expr, Expr]]:
    """Return by pass what issuing takes beside the kernels of a device, and by itself on a host processor.

    share: of the layers, those that recompute. A layer table tells what operations both passes have. Of other layers
    the forward ones are known: two gradients for each product make about twice as many backward, also of recurrent
    layers, which launch a step's kernels again and again. Whole layers are repeated in the backward pass; a checkpoint
    of operations (PyTorch's selective one) looks at each of them in Python, the first time and again.
    """
    issue = symbol("issue_s") / 3
    if isinstance(kind, TracedKind):
        forward, backward = traced.issued(kind, "forward"), traced.issued(kind, *traced.BACKWARD)
    elif kind.mixer in GATES:
        forward = _launched(ops)
        backward = 2 * forward[0], 2 * forward[1]
    else:
        launches = _launched(ops)[0]
        longer = {way: _longer(way, kind) for way in ("forward", "backward")}
        apart = {way: _expert_products(way, kind) for way in longer}
        forward = launches, longer["forward"] * issue + apart["forward"]
        backward = 2 * launches, longer["backward"] * 2 * issue + apart["backward"]
    whole = share * symbol("full")
    passes = {"forward": forward, "backward": (backward[0] + whole * forward[0], backward[1])}
    more, experts = {"forward": 0, "backward": whole * forward[1]}, 0
    if isinstance(kind, BlockKind) and kind.mixer not in GATES:
        looked_at = share * native * symbol("selective") * symbol("selective_issue_s") / 2
        own = tempo * symbol("tempo_issue_s") / 3
        repeated = (_longer("forward", kind) - 1) * issue + _expert_products("forward", kind)
        experts = share * (1 - native) * symbol("selective") * symbol("experts_again") * _of_experts(kind, issue)
        more = {
            "forward": looked_at + own,
            "backward": looked_at + 2 * own + whole * (symbol("full_issue_s") + repeated) + experts,
        }
    found = {
        name: (maximum(symbol("host_s_per_launch") * n, own + more[name]), own + more[name])
        for name, (n, own) in passes.items()
    }
    if isinstance(kind, BlockKind) and kind.mixer not in GATES:
        left = _beside_graphs(kind, issue)
        left["backward"] += experts
        graphs = symbol("layer_graphs")
        found = {
            name: tuple((1 - graphs) * each + graphs * left[name] for each in both) for name, both in found.items()
        }
    return {name: (issued * beside, issued * own) for name, (beside, own) in found.items()}


def halves(waiting: Expr, share: Expr) -> dict[str, Expr]:
    """Return what a backward waits for its host (s), whole and in its halves, each by the kernels that it launches.

    Two gradients for each product, and before the first of them what is repeated: `share`, as in `host_seconds`.
    """
    weight = waiting / (2 + share * symbol("full"))
    return {"backward_host": waiting, "input_host": waiting - weight, "weight_host": weight}


def runs_ahead(structure: Structure) -> bool:
    """Return whether a host issues the next layers while its device works: it reads the loads of experts (Megatron's
    `MoEAlltoAllTokenDispatcher`). That 1,024 launches are the most that it can be ahead is left out: beside a queue of
    so many, steps of 24 to 96 layers with 10 launches each forward were within 0.3 %, of 25 launches within 7 %."""
    return not any(isinstance(kind, BlockKind) and kind.mlp == "moe" for kind in structure.kinds)


def lead_of_backward(structure: Structure) -> Expr:
    """Return the share of forward passes before which a host has run ahead in a backward: all but the first of a step,
    none where messages between stages hold it up in every pass."""
    alone = 1 - minimum(1, symbol("pp") - 1)
    return int(runs_ahead(structure)) * (1 - symbol("on_host")) * alone * (1 - 1 / symbol("microbatches"))


def told(model: Model) -> str:
    """Return what is assumed of Megatron-Core's modules, as text."""
    times = ", ".join(f"{t:g} ({part})" for part, t in MEGATRON_ISSUE.items())
    text = f"Megatron-Core's modules take {times} times as long to issue as plain ones (0.16.1 on the host of an H200)"
    more = " and ".join(f"{t:g}" for t in EXPERTS_ISSUE.values())
    each = f"{100 * EXPERT_PRODUCT_ISSUE:.1f} % of a plain layer's more for every product of a further local expert"
    experts = f"; layers with experts {more} times as long as others (on a CPU), {each}"
    return text + experts if model.has_experts else text


def in_core(model: Model, plan: Plan) -> bool:
    """Return whether some layers are modules of Megatron-Core, as `MEGATRON_ISSUE` counts them."""
    kinds = Structure.of(model).kinds
    return plan.core_modules and any(isinstance(kind, BlockKind) and kind.mixer not in GATES for kind in kinds)


def head_issue(structure: Structure, ops: Sequence[Op]) -> Expr:
    """Return the seconds in which a host issues embedding and head, forward and backward; `ops` are the head's."""
    if structure.ends:
        known = sum(traced.issued(end, *table.PHASES)[1] for end in structure.ends)
    else:
        known = _longer("ends") * symbol("ends_issue_s")
    return issued * maximum(symbol("host_s_per_launch") * sum(op.launches for op in ops), known)


def _longer(part: str, kind: BlockKind | None = None) -> Expr:
    """Return 1, or with Megatron-Core's modules `MEGATRON_ISSUE` (and `EXPERTS_ISSUE` where a layer's `kind` has
    them), with compiled layers `COMPILED_ISSUE`."""
    core, compiled = symbol("core"), symbol("compiled")
    modules = MEGATRON_ISSUE[part] * (EXPERTS_ISSUE[part] if kind and kind.mlp == "moe" else 1)
    return 1 + core * (modules - 1) + (1 - core) * compiled * (COMPILED_ISSUE[part] - 1)


def _expert_products(way: str, kind: BlockKind) -> Expr:
    """Return the seconds in which a host issues the products of all local experts but one, with Megatron-Core's."""
    if kind.mlp != "moe":
        return 0
    fused = symbol("fused_experts")
    each = (1 - fused) * EXPERT_PRODUCTS[way] * EXPERT_PRODUCT_ISSUE + fused * FUSED_EXPERT_ISSUE[way]
    return symbol("core") * symbol("issue_s") * each * maximum(0, symbol("experts") / symbol("ep") - 1)


def _of_experts(kind: BlockKind, issue: Expr) -> Expr:
    """Return what of a layer's forward pass is its experts': all but half a dense layer's, whose other half is the MLP.

    issue: seconds of a plain layer's forward pass.
    """
    if kind.mlp != "moe":
        return 0
    return (_longer("forward", kind) - _longer("forward") / 2) * issue + _expert_products("forward", kind)


def _beside_graphs(kind: BlockKind, issue: Expr) -> dict[str, Expr]:
    """Return by pass what a host still issues where graphs replay all of a layer but what experts add to it.

    issue: seconds of a plain layer's forward pass.
    """
    if kind.mlp != "moe":
        return {"forward": 0, "backward": 0}
    return {
        way: (_longer(way, kind) - _longer(way)) * times * issue + _expert_products(way, kind)
        for way, times in (("forward", 1), ("backward", 2))
    }


def _launched(ops: Sequence[Op]) -> tuple[Expr, Expr]:
    """Return how many kernels a forward pass launches, and the seconds in which a host processor issues them."""
    held = [op for op in ops if op.kind == "compute" and op.phase == "forward"]
    issue = {True: traced.ISSUE["elementwise"], False: traced.OTHER_ISSUE}
    return sum(op.launches for op in held), sum(op.launches * issue[op.flop == 0] for op in held)
