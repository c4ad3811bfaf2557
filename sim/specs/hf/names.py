"""What a config.json calls the fields of `Model`, so that errors speak of the file's own keys."""

from collections.abc import Mapping
from typing import Any

from sim.specs.fields import InputError
from sim.specs.hf.parts import language_part

KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "head_dim": ("head_dim", "qk_nope_head_dim", "d_kv"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "ffn": ("intermediate_size", "intermediate_size_mlp", "n_inner", "ffn_hidden_size", "ffn_dim", "d_ff"),
    "vocab": ("vocab_size",),
    "seq": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len"),
    "dropout": (
        "attention_dropout", "resid_pdrop", "hidden_dropout", "hidden_dropout_prob", "dropout", "dropout_rate",
        "residual_dropout",
    ),
    "type_vocab": ("type_vocab_size",),
    "window": ("sliding_window",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_k", "moe_topk"),
    "moe_ffn": ("moe_intermediate_size", "intermediate_size"),
    "shared_ffn": (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size",
        "intermediate_size",
    ),
    "moe_latent": ("moe_latent_size",),
    "dense_layers": ("first_k_dense_replace",),
    "mtp_layers": ("num_nextn_predict_layers", "num_mtp_layers"),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "rope_head_dim": ("qk_rope_head_dim",),
    "v_head_dim": ("v_head_dim",),
    "ssm_state": ("ssm_state_size", "mamba_d_state", "state_size"),
    "ssm_heads": ("mamba_num_heads", "mamba_n_heads", "num_heads"),
    "ssm_head_dim": ("mamba_head_dim", "mamba_d_head", "head_dim"),
    "ssm_groups": ("n_groups", "mamba_n_groups"),
    "ssm_conv": ("conv_kernel", "mamba_d_conv"),
    "ssm_chunk": ("chunk_size", "mamba_chunk_size"),
    "patch": ("patch_size",),
    "channels": ("num_channels",),
    "classes": ("num_labels",),
}  # fmt: skip
"""The keys that the readers take a field from; a field of the key's own name needs no entry."""


def in_config(error: InputError, config: Mapping[str, Any]) -> InputError:
    """Return the error of a field of `Model` as one of the config's key that holds the refused value, where one does.

    A value that a reader worked out from several keys keeps the field's name.
    """
    key, part = language_part(config)
    inside = f"{key}." if key else ""
    for key in KEYS.get(error.path, ()):
        if key in part and type(part[key]) is type(error.value) and part[key] == error.value:
            read_as = f" (read as {error.path})" if key != error.path else ""
            return InputError(f"{inside}{key}", error.value, error.allowed + read_as)
    return error
