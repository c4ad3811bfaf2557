"""Limits of PyTorch's pipeline runtime and of torchtitan's two versions: release 0.3.0 and its main branch.

Of the release paths below `torchtitan/` of its wheel; of the main branch those of commit 63b182b525d1 of 2026.
"""

from typing import Any, Literal

import numpy as np

from sim.plans.limit import Asked, Limit, among
from sim.schedules import SCHEDULES
from sim.specs.pipelines import ASYNCHRONOUS, TWO_COPIES

SPLITTING = tuple(name for name, kind in SCHEDULES.items() if kind.splits)
"""Schedules that run the gradients of inputs (I) and of weights (W) as passes of their own."""

# _PipelineScheduleRuntime (torch 2.13, distributed/pipelining/schedules.py) runs any order of one direction from a CSV
# file; it holds one version of the weights.
ONE_COPY = Limit(
    "schedule",
    "one copy and one version of the model in torch's pipeline runtime",
    lambda a: np.isin(a.schedule, TWO_COPIES + ASYNCHRONOUS),
    lambda a: "one copy and one version of the model (PyTorch's runtime has one direction)",
)

# stage_backward_input and stage_backward_weight (distributed/pipelining/_backward.py) walk the graph apart: each makes
# what a checkpoint left out again, and so up to three times.
WHOLE_BACKWARD = Limit(
    "recompute",
    "torch recomputes in I and in W again",
    lambda a: np.isin(a.schedule, SPLITTING) & (np.asarray(a.recompute) != "none"),
    lambda a: "none where I and W are apart (each would recompute in PyTorch's runtime)",
)

# CPUOffloadPolicy (torch 2.13, distributed/fsdp/_fully_shard/_fsdp_api.py) "offloads parameters, gradients, and
# optimizer states", all of them; activations go by torch.autograd.graph.save_on_cpu, layer by layer.
OFFLOADED_TOGETHER = Limit(
    "offload",
    "FSDP offloads weights, gradients and optimizer together or not",
    lambda a: among(any(a.states)) & ~((np.asarray(a.zero) >= 2) & (len(a.states) == 3 and min(a.states) == 1)),
    lambda a: "nothing, or weights, gradients and optimizer all at 1 with zero 2 or 3 (FSDP's CPUOffloadPolicy)",
)


def _in_copy(a: Asked) -> Any:
    return np.asarray(a.tp) * np.where(np.asarray(a.zero) == 0, a.cp, a.shard)


def _no_mtp(knob: Literal["pp", "cp"]) -> Limit:
    return Limit(
        knob,
        f"torchtitan predicts several tokens without {knob}",
        lambda a: among(a.mtp) & (np.asarray(getattr(a, knob)) > 1),
        lambda a: "1 with multi-token prediction (torchtitan)",
    )


def graphed(pp: Any, ep: Any) -> Any:
    """Return whether torchtitan can capture the passes of a step in a CUDA graph, as it does by default.

    Its Trainer.Config._validate_cuda_graphs: what a graph captures knows no pipeline, and nothing that asks the host
    how many tokens each expert has, as all but two dispatchers of experts do.
    """
    return among((np.asarray(pp) == 1) & (np.asarray(ep) == 1))


TORCHTITAN = (
    Limit(
        "model",
        "torchtitan counts batches in tokens",
        lambda a: among(not a.reads_tokens),
        lambda a: "a network that reads tokens (torchtitan counts batches in tokens)",
    ),
    # models/common/decoder.py: every network but the image generator flux is a Decoder.
    Limit(
        "model",
        "torchtitan's networks are decoders",
        lambda a: among(a.family != "decoder"),
        lambda a: "a decoder (torchtitan has no encoders, encoder-decoders and vision transformers)",
    ),
    Limit(
        "model",
        "torchtitan has no Mamba layers",
        lambda a: among(a.mamba),
        lambda a: "a network without Mamba layers (torchtitan has none)",
    ),
    # models/deepseek_v3/mtp.py: "MTP does not support pipeline parallelism yet", nor context parallelism.
    _no_mtp("pp"),
    _no_mtp("cp"),
    # models/common/decoder.py, Decoder.Config.update_from_config: "Weight tying is not supported with Pipeline
    # Parallel."
    Limit(
        "pp",
        "torchtitan ties no embeddings over pipeline stages",
        lambda a: among(a.tied) & among(a.pp > 1),
        lambda a: "1, or model.tied_embeddings: false (torchtitan ties no embeddings over pipeline stages)",
    ),
    Limit(
        "tp",
        "torchtitan repeats no key-value heads",
        lambda a: a.kv_heads % np.asarray(a.tp) > 0,
        lambda a: f"a divisor of model.kv_heads = {a.kv_heads} (torchtitan)",
    ),
    # trainer.py: "Training sequence length must be divisible by" tp, with its sequence parallelism, times 2 cp.
    Limit(
        "cp",
        "torchtitan's context-parallel ranks take two equal parts of a sequence each",
        lambda a: (np.asarray(a.cp) > 1) & (a.seq % (2 * np.asarray(a.cp) * a.tp) > 0),
        lambda a: f"1, or so many that 2 x cp x tp divide the {a.seq} tokens of a sequence (torchtitan)",
    ),
    # distributed/parallel_dims.py: FSDP shards over dp_shard x cp, whatever dp_shard is.
    Limit(
        "zero",
        "torchtitan shards gradients with the optimizer (no ZeRO-1), and over context-parallel ranks",
        lambda a: (np.asarray(a.zero) == 1) | ((np.asarray(a.zero) == 0) & (np.asarray(a.cp) > 1)),
        lambda a: "0 (with cp 1), 2 or 3 (torchtitan shards by FSDP: gradients with the optimizer)",
    ),
    Limit(
        "fsdp_shard",
        "torchtitan's FSDP copies hold whole context-parallel groups",
        lambda a: (np.asarray(a.zero) > 0) & (a.shard % a.cp > 0),
        lambda a: f"a multiple of cp = {a.cp} (torchtitan shards over both)",
    ),
    Limit(
        "ep",
        "torchtitan's experts spread inside a copy",
        lambda a: _in_copy(a) % np.asarray(a.ep) > 0,
        lambda a: f"a divisor of {_in_copy(a)}, the ranks of one copy of the weights (torchtitan)",
    ),
    # models/common/moe_sharding.py, _routed_experts_sharding_configs: without ep the experts are split tp ways.
    Limit(
        "ep",
        "torchtitan splits the experts over tensor-parallel ranks without ep",
        lambda a: among(a.experts) & among(a.tp > 1) & (np.asarray(a.ep) == 1),
        lambda a: "more than 1 with tp > 1 (torchtitan's experts are whole only where they are spread)",
    ),
    Limit(
        "precision",
        "torchtitan trains in bf16",
        lambda a: np.asarray(a.precision) != "bf16",
        lambda a: "bf16 (torchtitan's low precision is a converter of its own)",
    ),
    # config/configs.py: mixed_precision_reduce is float32; the main branch's bfloat16 is of the messages, not the sums.
    Limit(
        "gradient_dtype",
        "torchtitan adds up gradients in fp32",
        lambda a: among(a.gradient_dtype != "fp32"),
        lambda a: "fp32 (torchtitan's gradients are added up in fp32)",
    ),
    Limit(
        "overlap_dp",
        "torchtitan reduces gradients beside the backward pass",
        lambda a: among(not a.overlap_dp) & (np.asarray(a.dp) * a.cp > 1),
        lambda a: "true with several data-parallel ranks (FSDP and DDP reduce beside the backward pass)",
    ),
    Limit(
        "offload",
        "torchtitan offloads everything or nothing",
        lambda a: among(a.offload.used),
        lambda a: "left out (torchtitan offloads all that FSDP shards, or nothing)",
    ),
    Limit(
        "etp",
        "torchtitan does not split experts",
        lambda a: np.asarray(a.etp) != 1,
        lambda a: "1 (torchtitan's mesh of experts is dp_shard x cp x tp / ep by ep)",
    ),
    # `_generate_llm_fqn_per_model_part`: the weights of embedding and head may be a whole stage's.
    Limit(
        "stage_layers",
        "torchtitan's stages have modules",
        lambda a: among(a.hollow),
        lambda a: (
            "one layer or more on every stage but the first and the last (torchtitan's module_fqns_per_model_part)"
        ),
    ),
    ONE_COPY,
    WHOLE_BACKWARD,
    Limit(
        "optimizer_barrier",
        "torchtitan clips before any rank updates",
        lambda a: among(a.pp > 1) & ~among(a.barrier),
        lambda a: "true (torchtitan clips by the global norm before any rank updates)",
    ),
    Limit(
        "sequence_parallel",
        "torchtitan uses sequence parallelism with tp > 1",
        lambda a: among(a.tp > 1) & ~among(a.sequence_parallel),
        lambda a: "true with tp > 1 (torchtitan always uses it)",
    ),
    Limit(
        "cuda_graphs",
        "torchtitan's graphs have no pipeline and no experts on several ranks",
        lambda a: among(a.cuda_graphs) & ~graphed(a.pp, a.ep),
        lambda a: "false with pp > 1 or ep > 1 (torchtitan)",
    ),
)
"""What neither version runs, by `config/configs.py` (ParallelismConfig, TrainingConfig) and
`distributed/pipeline_parallel.py`: any order of one direction runs from `pipeline_parallel_schedule_csv`."""

TORCHTITAN_MAIN = (
    # config/validation.py, validate_context_parallel: the network's attention must be built for it.
    Limit(
        "cp",
        "torchtitan's main branch wants attention layers of their own for cp",
        lambda a: np.asarray(a.cp) > 1,
        lambda a: "1 (torchtitan's main branch: cp asks for a network of CPInnerAttention; 0.3.0 takes the degree)",
    ),
    # config/validation.py, validate_model_training_config.
    Limit(
        "ep",
        "torchtitan's main branch spreads experts over tensor-parallel ranks at least",
        lambda a: among(a.experts) & (np.asarray(a.ep) < np.asarray(a.tp)),
        lambda a: f"at least tp = {a.tp} (torchtitan's main branch)",
    ),
)
"""What the main branch refuses besides."""
