"""What Megatron-LM asserts of degrees, experts and techniques as it starts (megatron-core 0.16.1).

`arguments` is Megatron-LM's `megatron/training/arguments.py`, `validate_args`.
"""

from typing import Any

import numpy as np

from sim.plans.limit import Asked, Limit, among


def _copies(a: Asked) -> Any:
    """Return the copies of what ZeRO shards: Megatron-LM's num_distributed_optimizer_instances."""
    return np.where(np.asarray(a.zero) > 0, a.dp * np.asarray(a.cp) // a.shard, 1)


def _repeats_whole(a: Asked) -> Any:
    """Return whether recompute repeats whole layers, or all that experts do."""
    kind = np.asarray(a.recompute)
    return (kind == "full") | ((kind == "selective") & among(a.recompute_experts and a.experts))


def _groups(a: Asked) -> Any:
    """Return the groups of Mamba's states on a tensor-parallel rank, of which there is one at least."""
    return np.maximum(a.ssm_groups // np.asarray(a.tp), 1)


ASSERTED = (
    # arguments: "seq-length should be a multiple of 2 * context-parallel-size if context-parallel-size > 1".
    Limit(
        "cp",
        "Megatron-LM's context-parallel ranks take two equal parts of a sequence each",
        lambda a: (np.asarray(a.cp) > 1) & (a.seq % (2 * np.asarray(a.cp)) > 0),
        lambda a: f"1, or half a divisor of the {a.seq} tokens of a sequence (Megatron-LM)",
    ),
    # TransformerEngine 2.9 to 2.11, as megatron-core asks for, below pytorch/attention/dot_product_attention/: utils.py
    # leaves the unfused kernels out with context parallelism; context_parallel.py takes windows with all-gathers or
    # exchanges of heads alone (`cp_comm_type`), sinks with the latter; a plan's is p2p.
    Limit(
        "cp",
        "Megatron-LM's ring takes no stored scores, windows and sinks",
        lambda a: (np.asarray(a.cp) > 1) & (a.eager or a.masked),
        lambda a: "1 with attention that stores its scores, or has sliding windows or sinks (Megatron-LM's ring)",
    ),
    # core/ssm/mamba_mixer.py gives every tensor-parallel rank as many groups, and fp8 columns in sixteens; of context-
    # parallel ranks several share a group, or have several each (core/ssm/mamba_context_parallel.py).
    Limit(
        "tp",
        "Megatron-LM splits no group of Mamba's states",
        lambda a: among(a.mamba) & (a.ssm_groups % np.asarray(a.tp) > 0),
        lambda a: f"a divisor of model.ssm_groups = {a.ssm_groups} (Megatron-LM's Mamba)",
    ),
    Limit(
        "cp",
        "Megatron-LM's context-parallel ranks share groups of Mamba's states, or have several each",
        lambda a: among(a.mamba) & (np.maximum(_groups(a), a.cp) % np.minimum(_groups(a), a.cp) > 0),
        lambda a: f"a divisor or a multiple of model.ssm_groups / tp = {_groups(a)} (Megatron-LM's Mamba)",
    ),
    Limit(
        "precision",
        "Megatron-LM's Mamba takes 8 bits in columns of 16",
        lambda a: among(a.mamba and a.ssm_columns % 16 > 0) & np.isin(a.precision, ("fp8", "mxfp8")),
        lambda a: f"another one: the {a.ssm_columns} columns into a Mamba layer are no multiple of 16 (Megatron-LM)",
    ),
    # core/transformer/transformer_block.py offloads, core/ssm/mamba_block.py does not.
    Limit(
        "offload",
        "Megatron-LM's Mamba offloads no layers",
        lambda a: among(a.mamba and a.share("activations") > 0),
        lambda a: "a share of the optimizer alone (Megatron-LM's Mamba)",
    ),
    # Megatron-LM's pretrain_t5.py stops with pp > 1, and its num_layers is of either stack.
    Limit(
        "pp",
        "Megatron-LM's T5 has no pipeline",
        lambda a: among(a.family == "encoder-decoder") & (np.asarray(a.pp) > 1),
        lambda a: "1 with an encoder-decoder (Megatron-LM's T5)",
    ),
    Limit(
        "recompute_layers",
        "Megatron-LM's T5 counts the layers that recompute in either stack",
        lambda a: among(a.family == "encoder-decoder" and a.some_layers),
        lambda a: "left out with an encoder-decoder (Megatron-LM's T5)",
    ),
    Limit(
        "model",
        "Megatron-LM's T5 has as many layers in either stack",
        lambda a: among(a.family == "encoder-decoder" and not a.alike),
        lambda a: "an encoder-decoder with as many layers in either stack (Megatron-LM's T5)",
    ),
    # arguments: "Currently GroupedGEMM for MoE only supports bf16 dtype", "Expert parallelism is not supported with
    # fp16 training"; 8- and 4-bit recipes run beside bf16.
    Limit(
        "precision",
        "Megatron-LM's grouped products of experts take bf16",
        lambda a: among(a.experts) & np.isin(a.precision, ("fp16", "fp32")),
        lambda a: "bf16, or 8 or 4 bits, with experts (Megatron-LM's grouped products)",
    ),
    # core/transformer/transformer_config.py: "Bias in Moe is only supported when ETP==1".
    Limit(
        "etp",
        "Megatron-LM splits no experts with biases",
        lambda a: among(a.biased) & (np.asarray(a.etp) > 1),
        lambda a: "1 with experts that have biases (Megatron-LM)",
    ),
    # core/transformer/transformer_config.py: "MTP layernum only supports 1", and that with pp > 1; of networks only
    # core/models/gpt/gpt_model.py, GPTModel, has a plan of its layers (build_schedule_plan).
    Limit(
        "ep_overlap",
        "Megatron-LM hides exchanges of experts in GPTModel, of one MTP module at most, in a pipeline",
        lambda a: (np.asarray(a.ep) > 1) & a.ep_overlap & (a.mamba | (a.mtp > 1) | ((a.mtp == 1) & (a.pp == 1))),
        lambda a: "false with Mamba's layers, several MTP modules, or one and pp = 1 (Megatron-LM)",
    ),
    # There: "CUDA graphs not supported with CPU offloading". core/transformer/moe/token_dispatcher.py tells a host how
    # many tokens every expert has, unless all have as many places (moe_pad_expert_input_to_capacity), which a plan does
    # not say.
    Limit(
        "cuda_graphs",
        "Megatron-LM's graphs of whole steps have no experts and offload no layers",
        lambda a: among(a.cuda_graphs and (a.experts or a.share("activations") > 0)),
        lambda a: "false with experts, or with layers offloaded (Megatron-LM 0.16.1)",
    ),
    # core/transformer/transformer_config.py: "full recompute is only supported with full iteration CUDA graph", "moe
    # recompute is not supported with moe_router CUDA graph"; offloading as with graphs of whole steps.
    Limit(
        "layer_graphs",
        "Megatron-LM's graphs of layers cover nothing that recompute repeats whole, and offload no layers",
        lambda a: among(a.layer_graphs) & (_repeats_whole(a) | among(a.share("activations") > 0)),
        lambda a: "false with recompute full, or of experts, or with layers offloaded (Megatron-LM 0.16.1)",
    ),
    # core/parallel_state.py, initialize_model_parallel: "When not using pp-last rank ordering, the data parallel size
    # of the attention and moe layers must be the same"; a network without experts counts cp among the latter's.
    Limit(
        "rank_order",
        "Megatron-LM's pp goes last where experts and all else have different data-parallel ranks",
        lambda a: among(a.rank_order == "tp-cp-pp-dp") & (np.asarray(a.pp) > 1) & (a.expert_dp != np.asarray(a.dp)),
        lambda a: f"tp-cp-dp-pp with {a.expert_dp} data-parallel ranks of experts and {a.dp} of all else (Megatron-LM)",
    ),
    # There: "Expert data parallel size should be divisible by partial DistOpt shard factor".
    Limit(
        "fsdp_shard",
        "Megatron-LM's copies of the optimizer divide the experts' data-parallel ranks",
        lambda a: a.expert_dp % _copies(a) > 0,
        lambda a: f"so many that copies divide the {a.expert_dp} data-parallel ranks of experts (Megatron-LM)",
    ),
    # core/distributed/fsdp/mcore_fsdp_adapter.py, _init_dist_index: with instances no mesh of the experts is made.
    Limit(
        "fsdp_shard",
        "Megatron-FSDP's copies spread no experts",
        lambda a: (np.asarray(a.zero) > 1) & (_copies(a) > 1) & (np.asarray(a.ep) > 1),
        lambda a: "left out with zero 2 or 3 and ep > 1 (Megatron-FSDP has one copy of spread experts)",
    ),
    # core/transformer/transformer_config.py: "Delayed scaling does not support moe_act and layernorm recompute".
    Limit(
        "recompute",
        "Megatron-LM's delayed scaling has no recompute of norms and experts' activations",
        lambda a: (np.asarray(a.recompute) == "selective") & (np.asarray(a.precision) == "fp8") & ~among(a.eager),
        lambda a: "none or full with precision fp8 and fused attention (Megatron-LM's delayed scaling)",
    ),
    # arguments: "The optimizer cpu offload must be used in conjunction with `--use-precision-aware-optimizer`";
    # core/optimizer/optimizer_config.py: "only supported with distributed optimizer".
    Limit(
        "offload",
        "Megatron-LM offloads a distributed optimizer alone",
        lambda a: among(a.share("optimizer") > 0) & (np.asarray(a.zero) == 0),
        lambda a: "nothing of the optimizer with zero 0 (Megatron-LM's use_precision_aware_optimizer)",
    ),
    # core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py: "Gradient reduce-scatter must be overlapped when using
    # sharding optimizer and gradients".
    Limit(
        "overlap_dp",
        "Megatron-FSDP's collectives always run beside compute",
        lambda a: (np.asarray(a.zero) > 1) & ~among(a.overlap_dp),
        lambda a: "true with zero 2 or 3 (Megatron-FSDP)",
    ),
)
