"""One limit of a target, and the numbers of a plan or of arrays of plans that limits look at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.specs import Model, Offload, PlacedPlan, Plan
from sim.specs.blocks import RECURRENT

NOTHING = Offload()


@dataclass(frozen=True)
class Asked:
    """What a plan asks of a target; the searched ones each a scalar, or all of them arrays that broadcast.

    schedule and recompute are names; group: microbatches of a group of the interleaved order; shard: ranks of one copy
    of what ZeRO shards; partial: these are not all data-parallel ranks; uneven: stages of different lengths; hollow:
    one of them, not the first or the last, without any; barrier: no rank updates before all have reduced; degrees,
    techniques: stages differ in tp, dp or micro-batch, or in anything; some_layers: not all layers of a stage
    recompute; recurrent, mamba, experts: the network has such layers; mtp: modules by which it predicts further tokens;
    biased: experts have biases; tied: embedding and head are one; kv_heads: that attention splits; eager: it stores its
    scores; masked: it has a sliding window or sinks; ssm_groups, ssm_columns: groups of Mamba's states, and columns of
    its projection in; alike: both stacks of an encoder-decoder are as long; seq: tokens of a sample.
    """

    tp: Any
    pp: Any
    cp: Any
    ep: Any
    dp: Any
    microbatches: Any
    group: Any
    shard: Any
    schedule: Any
    recompute: Any
    zero: Any
    sequence_parallel: Any
    etp: int = 1
    partial: Any = False
    precision: Any = "bf16"
    gradient_dtype: str = "fp32"
    rank_order: str = "tp-cp-dp-pp"
    offload: Offload = NOTHING
    uneven: bool = False
    hollow: bool = False
    barrier: Any = True
    degrees: bool = False
    techniques: bool = False
    some_layers: bool = False
    overlap_dp: bool = True
    reads_tokens: bool = True
    family: str = "decoder"
    experts: bool = False
    biased: bool = False
    tied: bool = False
    kv_heads: int = 1
    eager: bool = False
    masked: bool = False
    ssm_groups: int = 1
    ssm_columns: int = 0
    alike: bool = True
    seq: int = 0
    mtp: int = 0
    recurrent: bool = False
    mamba: bool = False
    product_kernel: str = "library"
    recurrent_kernel: str = "cudnn"
    tempo: Any = False
    ep_overlap: bool = False
    cuda_graphs: bool = False
    layer_graphs: bool = False
    recompute_experts: bool = False

    @classmethod
    def of(cls, model: Model, placed: PlacedPlan) -> "Asked":
        """Return what one plan asks."""
        plan, layers = placed.plan, placed.plan.stage_layers or placed.plan.split_stages
        return cls(
            tp=plan.tp,
            pp=plan.pp,
            cp=plan.cp,
            ep=plan.ep,
            dp=placed.dp,
            microbatches=placed.microbatches,
            group=plan.microbatch_group_size,
            shard=placed.shard,
            schedule=plan.schedule,
            recompute=plan.recompute,
            zero=plan.zero,
            sequence_parallel=plan.sequence_parallel,
            etp=plan.etp,
            partial=plan.fsdp_shard is not None,
            precision=str(plan.precision),
            gradient_dtype=plan.gradient_dtype,
            overlap_dp=plan.overlap_dp,
            rank_order=plan.rank_order,
            offload=plan.offload,
            uneven=len(set(layers)) > 1,
            hollow=0 in (layers or ())[1:-1],
            barrier=bool(plan.optimizer_barrier),
            degrees=len({(s.tp, s.dp, s.micro_batch) for s in plan.stages}) > 1,
            techniques=len({replace(s, layers=0) for s in plan.stages}) > 1,
            some_layers=bool(plan.recompute_layers) or any(s.recompute_layers for s in plan.stages),
            **unsearched(model, plan),
        )

    @classmethod
    def least(cls, model: Model, plan: Plan) -> "Asked":
        """Return what any plan asks that takes what is not searched from `plan`."""
        return cls(
            tp=1,
            pp=1,
            cp=1,
            ep=1,
            dp=1,
            microbatches=1,
            group=1,
            shard=1,
            schedule="none",
            recompute="none",
            zero=0,
            sequence_parallel=False,
            **unsearched(model, plan),
        )

    def share(self, name: str) -> float:
        """Return the share of `name` that host memory keeps."""
        return float(getattr(self.offload, name, 0.0))

    @property
    def expert_dp(self) -> Any:
        """The ranks that hold the same part of an expert; without experts, those that hold the same part of a layer."""
        ranks = np.asarray(self.dp) * self.cp
        return ranks * self.tp // (np.asarray(self.ep) * self.etp) if self.experts else ranks

    @property
    def states(self) -> tuple[float, ...]:
        """The shares of weights, gradients and optimizer that host memory keeps, as far as a plan has them."""
        return tuple(self.share(f.name) for f in fields(self.offload) if f.name != "activations")


def unsearched(model: Model, plan: Plan) -> dict[str, Any]:
    """Return what a plan asks that a search leaves alone: by its network, and whose kernels run."""
    return {
        "reads_tokens": not model.table or bool(model.table.seq),
        "family": model.family,
        "experts": model.experts > 0,
        "biased": model.experts > 0 and model.mlp_bias,
        "tied": model.tied_embeddings,
        "eager": model.attention == "eager",
        "masked": model.sinks or bool(set(model.pattern) & set("WY")),
        "ssm_groups": model.ssm_groups,
        "ssm_columns": 2 * model.ssm_width + 2 * model.ssm_groups * model.ssm_state + model.ssm_heads,
        "alike": model.layers == 2 * model.encoder_layers,
        "seq": model.seq,
        "kv_heads": model.heads if model.kv_lora_rank else model.kv_heads,
        "mtp": model.mtp_layers,
        "recurrent": bool(set(model.pattern) & set(RECURRENT)),
        "mamba": "M" in model.pattern,
        "product_kernel": plan.product_kernel,
        "recurrent_kernel": plan.recurrent_kernel,
        "tempo": plan.tempo,
        "ep_overlap": plan.ep_overlap,
        "cuda_graphs": plan.cuda_graphs,
        "layer_graphs": plan.layer_graphs,
        "recompute_experts": plan.recompute_experts,
    }


def shorter_ends(layers: Sequence[int]) -> tuple[int, int, int] | None:
    """Return the layers of every chunk, and how many fewer the first and the last have; None where others differ."""
    most = max(layers)
    return None if any(n < most for n in layers[1:-1]) else (most, most - layers[0], most - layers[-1])


def among(condition: Any) -> NDArray[np.bool_]:
    """Return a truth value, or an array of them, as an array: `~` and `&` mean the same of either."""
    return np.asarray(condition, dtype=bool)


@dataclass(frozen=True)
class Limit:
    """What a target cannot run: the knob to change, a short reason, the predicate and the text of what is allowed."""

    knob: str
    reason: str
    broken: Callable[[Asked], Any]
    allowed: Callable[[Asked], str]
