"""Readers of Hugging Face configs: every family's exact count, its fields, its layers, its refusals.

`configs/*.json` hold real dimensions, the count and where it comes from.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs import InputError, Model
from sim.specs.hf import READERS
from sim.specs.hf.beyond import BEYOND

CONFIGS = {file.stem: json.loads(file.read_text()) for file in sorted((Path(__file__).parent / "configs").glob("*"))}


DEFAULTS = json.loads((Path(__file__).parent / "defaults.json").read_text())["cases"]


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    file = tmp_path_factory.mktemp("hf") / "config.json"

    def reader(name, **changes):
        config = {k: v for k, v in (CONFIGS[name]["config"] | changes).items() if v != "left out"}
        file.write_text(json.dumps(config))
        return Model.from_hf(file)

    return reader


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_exact(read, name):
    assert read(name).parameters == CONFIGS[name]["parameters"]


@pytest.mark.parametrize("case", DEFAULTS, ids=[f"{case['config']}-{case['without']}" for case in DEFAULTS])
def test_a_key_left_out_has_the_library_s_default(read, case):
    model = read(case["config"], **case["changed"], **{case["without"]: "left out"})
    assert replace(model, mtp_layers=0).parameters == case["parameters"]


def test_every_reader_has_a_real_config():
    assert {c["config"]["model_type"] for c in CONFIGS.values()} - {"gemma3"} == set(READERS)


@pytest.mark.parametrize(
    ("name", "billions", "embedding"),
    [
        ("mixtral-8x7b", 12.9, True),  # arXiv 2401.04088: 13 B
        ("qwen3-235b-a22b", 22.2, True),  # its name: 22 B
        ("deepseek-v2", 21.4, True),  # arXiv 2405.04434: 21 B
        ("gpt-oss-20b", 3.61, False),  # arXiv 2508.10925, Table 1: 3.61 B, embedding not counted
        ("gpt-oss-120b", 5.13, False),  # the same: 5.13 B
        ("nemotron-3-nano", 3.6, True),  # arXiv 2512.20848: 3.6 B with embeddings
    ],
)
def test_active_parameters(read, name, billions, embedding):
    model = read(name)
    left_out = 0 if embedding else model.embedding_parameters
    assert (model.active_parameters - left_out) / 1e9 == pytest.approx(billions, abs=0.05)


FIELDS = {
    "llama2-13b": {"norm": "rmsnorm", "gated_mlp": True, "bias": False, "positions": "rope", "kv_heads": 40},
    "mistral-7b": {"window": 4096, "pattern": "W" * 32, "kv_heads": 8},
    "mixtral-8x7b": {"experts": 8, "experts_per_token": 2, "moe_ffn": 14336, "pattern": "X" * 32},
    "qwen2.5-7b": {"qkv_bias": True, "bias": False, "mlp_bias": False, "window": 0, "pattern": "T" * 28},
    "qwen1.5-moe-a2.7b": {"shared_ffn": 5632, "shared_gate": True, "qkv_bias": True, "moe_ffn": 1408},
    "qwen3-8b": {"qk_norm": True, "qkv_bias": False, "head_dim": 128},
    "qwen3-30b-a3b": {"experts": 128, "experts_per_token": 8, "qk_norm": True, "head_dim": 128, "shared_ffn": 0},
    "deepseek-v2": {"pattern": "T" + "X" * 59, "shared_ffn": 3072, "q_lora_rank": 1536, "head_dim": 128},
    "deepseek-v2-lite": {"q_lora_rank": 0, "kv_lora_rank": 512, "rope_head_dim": 64, "v_head_dim": 128},
    "deepseek-v3": {"pattern": "TTT" + "X" * 58, "experts": 256, "shared_ffn": 2048, "router_bias": False},
    "kimi-k2": {"pattern": "T" + "X" * 60, "experts": 384, "heads": 64, "mtp_layers": 0},
    "gpt2-xl": {"tied_embeddings": True, "positions": "learned", "max_positions": 1024, "dropout": 0.1},
    "gpt-neox-20b": {"parallel_block": True, "block_norms": 2, "positions": "rope", "tied_embeddings": False},
    "falcon-7b": {"kv_heads": 1, "block_norms": 1, "parallel_block": True, "ffn": 18176, "norm_bias": True},
    "falcon-40b": {"kv_heads": 8, "block_norms": 2, "bias": False},
    "gemma-2b": {"head_dim": 256, "kv_heads": 1, "tied_embeddings": True},
    "gemma2-9b": {"pattern": "WT" * 21, "block_norms": 4, "window": 4096},
    "gemma3-1b": {"pattern": ("WWWWWT" * 5)[:26], "qk_norm": True, "window": 512},
    "gemma3-4b": {"heads": 8, "head_dim": 256, "vocab": 262_208, "kv_heads": 4},
    "bert-base": {"family": "encoder", "pattern": "N" * 12, "type_vocab": 2, "head_bias": True, "embedding_norm": True},
    "t5-11b": {"family": "encoder-decoder", "pattern": "N" * 24 + "C" * 24, "head_dim": 128, "activation": "relu"},
    "t5-v1.1-base": {"positions": "relative", "gated_mlp": True, "activation": "gelu", "tied_embeddings": False},
    "vit-h": {"family": "vit", "seq": 257, "classes": 1000, "vocab": 1000, "patch": 14},
    "phi-2": {"parallel_block": True, "block_norms": 1, "head_bias": True, "dropout": 0.1},
    "phi-3-mini": {"window": 2047, "pattern": "W" * 32},
    "gpt-oss-20b": {"pattern": "YX" * 12, "sinks": True, "router_bias": True, "mlp_bias": True, "window": 128},
    "opt-6.7b": {"activation": "relu", "max_positions": 2050, "seq": 2048, "tied_embeddings": True},
    "bloom-176b": {"embedding_norm": True, "positions": "none", "bias": True},
    "mpt-7b": {"norm": "layernorm", "norm_bias": False, "bias": False, "positions": "none"},
    "nemotron4-15b": {"gated_mlp": False, "norm": "layernorm", "norm_bias": True, "bias": False},
    "nemotron-h-8b": {"layers": 52, "ssm_heads": 128, "experts": 0, "ssm_chunk": 128, "positions": "none"},
    "bamba-9b": {"layers": 64, "pattern": "M-" * 9 + "*-" + ("M-" * 8 + "*-") * 2 + "M-" * 4, "positions": "rope"},
    "granite-4.0-h-small": {"moe_ffn": 768, "shared_ffn": 1536, "ssm_chunk": 256, "positions": "none"},
    "nemotron-3-nano": {"experts": 128, "shared_ffn": 3712, "moe_latent": 0, "ssm_heads": 64},
    "nemotron-3-super": {"moe_latent": 1024, "experts_per_token": 22},
    "granite-3.3-8b": {"kv_heads": 8, "tied_embeddings": True, "window": 0},
    "seed-oss-36b": {"qkv_bias": True, "bias": False, "head_dim": 128, "dropout": 0.1},
    "glm4-9b": {"qkv_bias": True, "bias": False, "block_norms": 2},
    "glm4-32b-0414": {"qkv_bias": False, "block_norms": 4, "kv_heads": 2},
    "exaone4-1.2b": {"pattern": "T" * 30, "block_norms": 2, "qk_norm": True},
    "exaone4-32b": {"pattern": "WWWT" * 16, "window": 4096},
    "olmo2-32b": {"qk_norm": True, "whole_qk_norm": True, "block_norms": 2, "kv_heads": 8},
    "olmo3-7b": {"pattern": "WWWT" * 8, "whole_qk_norm": True, "window": 4096},
    "olmoe-1b-7b": {"pattern": "X" * 16, "experts": 64, "experts_per_token": 8, "moe_ffn": 1024, "shared_ffn": 0},
    "minimax-m2": {"experts": 256, "moe_ffn": 1536, "whole_qk_norm": True, "head_dim": 128},
    "hunyuan-7b": {"qk_norm": True, "whole_qk_norm": False, "tied_embeddings": True},
    "hunyuan-a13b": {"experts_per_token": 8, "shared_ffn": 3072, "moe_ffn": 3072},
    "ministral3-8b": {"window": 0, "kv_heads": 8, "head_dim": 128},
    "qwen2-vl-7b": {"qkv_bias": True, "bias": False, "tied_embeddings": False, "window": 0},
    "phi-3.5-moe": {"norm": "layernorm", "norm_bias": True, "gated_mlp": True, "mlp_bias": False, "head_bias": True},
    "llama4-scout": {"pattern": "X" * 48, "experts_per_token": 1, "shared_ffn": 8192, "qk_norm": False},
    "llama4-maverick": {"pattern": "TX" * 24, "ffn": 16384, "moe_ffn": 8192, "experts": 128},
    "ernie4.5-21b-a3b": {"pattern": "T" + "X" * 27, "shared_ffn": 3072, "experts_per_token": 6, "router_bias": True},
    "glm4.5": {"pattern": "TTT" + "X" * 89, "qk_norm": True, "qkv_bias": True, "bias": False, "kv_heads": 8},
    "glm4.7-flash": {"pattern": "T" + "X" * 46, "kv_lora_rank": 512, "head_dim": 192, "v_head_dim": 256},
    "dots-llm1": {"pattern": "T" + "X" * 61, "shared_ffn": 2816, "qk_norm": True, "window": 0},
    "minicpm3-4b": {"pattern": "T" * 62, "v_head_dim": 64, "rope_head_dim": 32, "tied_embeddings": True},
    "starcoder2-15b": {"pattern": "W" * 40, "gated_mlp": False, "bias": True, "kv_heads": 4, "activation": "gelu"},
    "starcoder-15b": {"kv_heads": 1, "positions": "learned", "bias": True, "ffn": 24576, "max_positions": 8192},
    "gpt-j-6b": {"parallel_block": True, "block_norms": 1, "head_bias": True, "bias": False, "positions": "rope"},
    "cwm-32b": {"pattern": "TWWW" * 16, "window": 8192},
    "glm4.1v-9b": {"block_norms": 4, "qkv_bias": True, "bias": False},
    "glm4.5v": {"pattern": "T" + "X" * 45, "qkv_bias": True, "bias": False, "mtp_layers": 0},
    "stablelm2-1.6b": {"norm": "layernorm", "gated_mlp": True, "qkv_bias": True, "mlp_bias": False},
    "command-r": {"parallel_block": True, "block_norms": 1, "norm_bias": False, "tied_embeddings": True},
    "command-r7b": {"pattern": "WWWT" * 8, "window": 4096},
    "mamba-codestral-7b": {"pattern": "M" * 64, "ssm_heads": 128, "ssm_groups": 8, "positions": "none"},
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields(read, name):
    model = read(name)
    assert {key: getattr(model, key) for key in FIELDS[name]} == FIELDS[name]


@pytest.mark.parametrize(
    ("name", "changes", "pattern"),
    [
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 20}, "T" * 20 + "W" * 8),
        ("qwen2.5-7b", {"layer_types": ["sliding_attention"] * 28, "use_sliding_window": True}, "W" * 28),
        ("qwen1.5-moe-a2.7b", {"mlp_only_layers": [0, 23]}, "T" + "X" * 22 + "T"),
        ("qwen1.5-moe-a2.7b", {"decoder_sparse_step": 4}, "TTTX" * 6),
        ("mixtral-8x7b", {"sliding_window": 4096}, "Y" * 32),
        ("mistral-7b", {"sliding_window": None}, "T" * 32),
        ("gemma3-1b", {"sliding_window_pattern": 2}, "WT" * 13),
        ("deepseek-v3", {"first_k_dense_replace": 0}, "X" * 61),
        ("glm4.7-flash", {"mlp_layer_types": ["sparse"] * 2, "num_hidden_layers": 2}, "XX"),
        ("dots-llm1", {"sliding_window": 4096, "max_window_layers": 60}, "T" + "X" * 59 + "YY"),
        ("llama4-scout", {"moe_layers": [1, 47]}, "TX" + "T" * 45 + "X"),
        ("ernie4.5-21b-a3b", {"moe_layer_interval": 2, "moe_layer_end_index": 25}, "TX" * 13 + "TT"),
        ("smollm3-3b", {"layer_types": None, "use_sliding_window": True, "sliding_window": 8192}, "TTTW" * 9),
        ("exaone4-32b", {"layer_types": None, "sliding_window_pattern": 2}, "WT" * 32),
        ("olmo3-7b", {"layer_types": "left out"}, "WWWT" * 8),
        (
            "granite-4.0-h-small",  # as later versions of the library save it
            {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
            "ME*E",
        ),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M*-", "num_hidden_layers": 3}, "M*-"),
        ("bamba-9b", {"num_hidden_layers": 2, "attn_layer_indices": None}, "M-M-"),
        (
            "granite-4.0-h-small",
            {"num_local_experts": 0, "num_hidden_layers": 2, "layer_types": ["attention", "mamba"]},
            "*-M-",
        ),
        (
            "nemotron-h-8b",
            {"layers_block_type": ["mamba", "moe", "full_attention", "mlp"], "num_hidden_layers": "left out"},
            "ME*-",
        ),
    ],
)
def test_patterns(read, name, changes, pattern):
    assert read(name, **changes).pattern == pattern


def test_prediction_module(read):
    """DeepSeek-V3's README_WEIGHTS.md: 11.5 B of its own beside the embedding and the head it shares."""
    main, trained = read("deepseek-v3"), read("deepseek-v3", num_nextn_predict_layers=1)
    assert trained.mtp_layers == read("deepseek-v3", num_nextn_predict_layers="left out").mtp_layers == 1
    assert (trained.parameters - main.parameters) / 1e9 == pytest.approx(11.5, abs=0.15)


@pytest.mark.parametrize(
    ("name", "changes", "path"),
    [
        ("mistral-7b", {"hidden_size": "left out"}, "hidden_size"),
        ("gpt2-xl", {"n_head": "left out"}, "n_head"),
        ("t5-base", {"num_layers": "left out"}, "num_layers"),
        ("deepseek-v2", {"num_experts_per_tok": "left out"}, "num_experts_per_tok"),
        ("mpt-7b", {"d_model": "left out"}, "d_model"),
        ("nemotron-3-nano", {"hybrid_override_pattern": "left out"}, "hybrid_override_pattern"),
        ("bamba-9b", {"attn_layer_indices": [32]}, "attn_layer_indices"),
        ("bamba-9b", {"mamba_d_head": 32}, "mamba_d_head"),
        ("bamba-9b", {"hidden_act": "gelu"}, "hidden_act"),
        ("granite-4.0-h-small", {"layer_types": "left out"}, "layer_types"),
        ("granite-4.0-h-small", {"position_embedding_type": "alibi"}, "position_embedding_type"),
        ("nemotron-3-nano", {"num_hidden_layers": 51}, "num_hidden_layers"),
        ("nemotron-3-nano", {"hybrid_override_pattern": "MZ"}, "hybrid_override_pattern"),
        ("nemotron-3-nano", {"layers_block_type": ["mamba", 3]}, "layers_block_type"),
        ("nemotron-h-8b", {"num_nextn_predict_layers": 1}, "mtp_hybrid_override_pattern"),
        ("nemotron-h-8b", {"use_conv_bias": False}, "use_conv_bias"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "layer_types"),
        ("gpt-oss-20b", {"layer_types": ["sliding_attention"] * 24, "sliding_window": None}, "window"),
        ("gpt-oss-20b", {"num_experts_per_tok": 33}, "num_experts_per_tok"),
        ("qwen3-8b", {"num_key_value_heads": 5}, "num_key_value_heads"),
        ("qwen3-30b-a3b", {"mlp_only_layers": 3}, "mlp_only_layers"),
        ("llama2-13b", {"num_attention_heads": 33, "num_key_value_heads": 33}, "num_attention_heads"),
        ("llama2-13b", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ("llama2-13b", {"num_hidden_layers": 10**12}, "num_hidden_layers"),
        ("llama2-13b", {"intermediate_size": "wide"}, "intermediate_size"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek-v3", {"n_shared_experts": "one"}, "n_shared_experts"),
        ("deepseek-v3", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("opt-6.7b", {"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ("opt-6.7b", {"do_layer_norm_before": False}, "do_layer_norm_before"),
        ("mpt-7b", {"no_bias": False}, "no_bias"),
        ("mpt-7b", {"attn_config": 3}, "attn_config"),
        ("bert-base", {"is_decoder": True}, "is_decoder"),
        ("t5-base", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets"),
        ("t5-base", {"feed_forward_proj": 1}, "feed_forward_proj"),
        ("vit-b", {"image_size": 225}, "patch_size"),
        ("gemma3-4b", {"text_config": []}, "text_config"),
        ("gemma3-4b", {"text_config": {"model_type": "qwen2", "num_hidden_layers": 2}}, "text_config.hidden_size"),
        ("gemma3-1b", {"model_type": ["gemma"]}, "model_type"),
        ("gemma3-1b", {"model_type": "left out"}, "model_type"),
        ("smollm3-3b", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("exaone4-32b", {"layer_types": None}, "sliding_window_pattern"),
        ("hunyuan-a13b", {"moe_topk": [8] * 31 + [4]}, "moe_topk"),
        ("hunyuan-a13b", {"moe_intermediate_size": 1024}, "moe_intermediate_size"),
        ("llama4-scout", {"moe_layers": [48]}, "moe_layers"),
        ("glm4.7-flash", {"mlp_layer_types": ["linear"] * 47}, "mlp_layer_types"),
        ("stablelm2-1.6b", {"qk_layernorm": True}, "qk_layernorm"),
        ("command-r", {"use_qk_norm": True}, "use_qk_norm"),
        ("ernie4.5-0.3b", {"use_bias": True}, "use_bias"),
        ("olmoe-1b-7b", {"clip_qkv": 8.0}, "clip_qkv"),
        ("mamba-codestral-7b", {"head_dim": 32}, "head_dim"),
        ("minicpm3-4b", {"num_attention_heads": 0}, "num_attention_heads"),
    ],
)
def test_refusals(read, name, changes, path):
    with pytest.raises(InputError) as caught:
        read(name, **changes)
    assert caught.value.path == path


def test_the_code_a_config_points_to_is_left_alone(read):
    assert read("kimi-k2", auto_map={"AutoModel": "evil.Model"}) == read("kimi-k2")


def test_the_text_part_is_said(read):
    assert any("text part" in note for note in read("gemma3-4b").assumptions)


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        ("qwen2.5-vl-3b", "qwen2_5_vl", "text_config"),
        ("qwen2.5-vl-3b", "qwen2_5_vl", None),  # as published: the text's keys beside the vision part
        ("qwen3-vl-30b-a3b", "qwen3_vl_moe", "text_config"),
        ("llama4-scout", "llama4", "text_config"),
        ("ministral3-8b", "mistral3", "text_config"),
        ("qwen2.5-7b", "internvl_chat", "llm_config"),
        ("deepseek-v2", "deepseek_vl_v2", "language_config"),
    ],
)
def test_the_text_part_is_the_language_model(tmp_path, name, kind, key):
    text = CONFIGS[name]["config"]
    if key is None:
        text = {k: v for k, v in text.items() if k != "model_type"}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(({key: text} if key else text) | {"model_type": kind, "vision_config": {}}))
    model = Model.from_hf(file)
    assert model.parameters == CONFIGS[name]["parameters"]
    assert any("text part" in note for note in model.assumptions)


@pytest.mark.parametrize(
    ("kind", "text", "parameters"),
    [
        ("llava", {"model_type": "llama", "vocab_size": 32_064}, 6_738_939_904),
        ("llava_next", {"model_type": "mistral", "vocab_size": 32_064, "intermediate_size": 14_336}, 7_242_256_384),
    ],
)
def test_what_a_text_part_leaves_to_the_library_is_said(tmp_path, kind, text, parameters):
    """The text parts of LLaVA 1.5 and 1.6 as published; counted by transformers 5.24."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": kind, "text_config": text, "vision_config": {}}))
    model = Model.from_hf(file)
    assert model.parameters == parameters
    said = [note.split(",")[0] for note in model.assumptions if "config is silent" in note]
    assert "model: hidden_size = 4096" in said
    assert len(said) == 5 - len(text) + 1


@pytest.mark.parametrize(
    ("kind", "whole", "part", "tied"),
    [
        ("paligemma", True, False, True),
        ("paligemma", False, True, False),
        ("paligemma", False, None, False),
        ("paligemma", None, None, True),
        ("llava", True, False, True),
        ("llava", False, True, True),
        ("llava", False, None, False),
        ("llama4", True, False, False),
        ("llama4", False, True, True),
    ],
)
def test_whose_word_it_is_that_the_head_is_tied(tmp_path, kind, whole, part, tied):
    """As transformers 5.24 ties the heads of these three, each with the two values that differ."""
    key = "tie_word_embeddings"
    text = CONFIGS["gemma-2b"]["config"] | ({} if part is None else {key: part})
    parts = {"model_type": kind, "text_config": text} | ({} if whole is None else {key: whole})
    file = tmp_path / "config.json"
    file.write_text(json.dumps(parts))
    assert Model.from_hf(file).tied_embeddings is tied


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("smollm3-3b", "9 of 36 have none"),
        ("command-r7b", "8 of 32 have none"),
        ("exaone4-32b", "16 of 64 have none"),
        ("llama4-scout", "chunks of 8192 tokens"),
        ("llama4-scout", "norms of queries and keys"),
        ("minimax-m2", "the config's 3 are left out"),
    ],
)
def test_what_a_reader_leaves_out_is_said(read, name, note):
    assert sum(note in text for text in read(name).assumptions) == 1


def test_a_model_whose_layers_all_rotate_says_nothing_of_it(read):
    assert not any("positions" in text for text in read("exaone4-1.2b").assumptions)
    assert not any("norms" in text for text in read("llama4-maverick").assumptions)


@pytest.mark.parametrize("kind", BEYOND)
def test_a_known_kind_is_refused_for_what_it_has(read, kind):
    with pytest.raises(InputError, match=re.escape(BEYOND[kind])) as caught:
        read("llama2-13b", model_type=kind)
    assert (caught.value.path, kind in READERS) == ("model_type", False)


def test_experts_under_the_library_s_name(read):
    renamed = read("qwen3-vl-30b-a3b", num_experts="left out", num_local_experts=128)
    assert renamed.parameters == CONFIGS["qwen3-vl-30b-a3b"]["parameters"]


@pytest.mark.parametrize("name", ["olmo2-7b", "qwen3-vl-8b", "granite-3.3-8b", "glm4.5-air"])
def test_keys_that_change_no_shape_change_nothing(read, name):
    beside = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "torch_dtype": "bfloat16", "architectures": None}
    assert read(name, **beside) == read(name)


KEYS = sorted({key for entry in CONFIGS.values() for key in entry["config"]} | {"layer_types", "layers_block_type"})
JUNK = st.sampled_from([None, True, -1, 0, 3, 10**15, 1.5, "x", [], [1], ["a"] * 3, {}])


@given(name=st.sampled_from(sorted(CONFIGS)), changes=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=3))
def test_anything_else_is_a_model_or_a_refusal(read, name, changes):
    try:
        assert read(name, **changes).parameters > 0
    except InputError as error:
        assert error.path
