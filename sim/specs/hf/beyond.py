"""What keeps known kinds of `config.json` from being a `Model`, for their refusal to say."""

DELTA = "gated DeltaNet layers"
STATES = "Mamba-1 layers"
SELECTED = "sparse attention to keys that an indexer selects"
PER_LAYER = "embeddings of every layer"

BEYOND: dict[str, str] = {
    "apertus": "activations with weights of their own (xIELU)",
    "afmoe": "attention that a projection of the input gates",
    "bailing_hybrid": "linear-attention layers",
    "bitnet": "norms inside attention and MLP",
    "deepseek_v32": SELECTED,
    "deepseek_v4": "compressed attention and hyper-connections",
    "falcon_h1": "attention and Mamba-2 side by side in one layer",
    "falcon_mamba": STATES,
    "gemma3n_text": PER_LAYER,
    "gemma4_text": f"heads of two sizes, and {PER_LAYER}",
    "glm_moe_dsa": SELECTED,
    "jamba": STATES,
    "kimi_linear": "Kimi Delta Attention layers",
    "lfm2": "short convolutions in place of attention",
    "lfm2_moe": "short convolutions in place of attention",
    "longcat_flash": "two attentions in one layer, and experts that compute nothing",
    "mamba": STATES,
    "mimo_v2_flash": "key-value heads whose number differs between layers",
    "minimax": "lightning-attention layers",
    "mllama_text_model": "layers that attend to an image",
    "nanochat": "norms without weights",
    "olmo": "norms without weights",
    "olmo_hybrid": DELTA,
    "qwen3_5_moe_text": DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA,
    "recurrent_gemma": "gated linear recurrences (RG-LRU)",
    "rwkv": "RWKV layers",
    "xlstm": "mLSTM and sLSTM layers",
    "zamba": STATES,
    "zamba2": "transformer block shared by several layers",
}
"""By `model_type` of a decoder: what it has that `Model` cannot express."""
