"""Encoders and encoder-decoders: BERT and RoBERTa with their masked-token head, T5, ViT with its classifier."""

from typing import Any

from sim.specs.fields import InputError
from sim.specs.hf.keys import MOST_LAYERS, Config, Reader, activation, flag, layer_count, need, number, only


def _bert(config: Config) -> dict[str, Any]:
    only(config, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    longest = config.get("max_position_embeddings", 512)
    return {
        "family": "encoder",
        "layers": layer_count(config),
        "hidden": need(config, "hidden_size"),
        "heads": need(config, "num_attention_heads"),
        "ffn": need(config, "intermediate_size"),
        "vocab": config.get("vocab_size", 30_522),
        "seq": longest,
        "max_positions": longest,
        "type_vocab": config.get("type_vocab_size", 2),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "tied_embeddings": flag(config, "tie_word_embeddings", True),
        "head_bias": True,
        "activation": activation(config, "hidden_act"),
    }


def _roberta(config: Config) -> dict[str, Any]:
    """Read RoBERTa: BERT, of whose positions those up to the padding's (the second) stand for nothing."""
    only(config, pad_token_id=1)
    longest = number(config, "max_position_embeddings", 512, least=3)
    return _bert({"vocab_size": 50_265, **config}) | {"seq": longest - 2}


def _xlm_roberta(config: Config) -> dict[str, Any]:
    return _roberta({"vocab_size": 30_522, "max_position_embeddings": 512} | dict(config))


def _t5(config: Config) -> dict[str, Any]:
    """Read T5, whose `tie_word_embeddings` false means a head of its own (T5 1.1)."""
    only(config, relative_attention_num_buckets=32, is_encoder_decoder=True)
    gate = config.get("feed_forward_proj", "relu")
    if not isinstance(gate, str):
        raise InputError("feed_forward_proj", gate, "an activation, or gated-activation")
    encoder = layer_count(config, "num_layers")
    return {
        "family": "encoder-decoder",
        "layers": encoder + (number(config, "num_decoder_layers", encoder, MOST_LAYERS) or encoder),
        "encoder_layers": encoder,
        "hidden": need(config, "d_model"),
        "heads": need(config, "num_heads"),
        "head_dim": config.get("d_kv", 64),
        "ffn": need(config, "d_ff"),
        "gated_mlp": gate.startswith("gated-"),
        "activation": activation(config, "feed_forward_proj", "relu"),
        "vocab": config.get("vocab_size", 32_128),
        "seq": config.get("n_positions", 512),
        "dropout": config.get("dropout_rate", 0.1),
        "norm": "rmsnorm",
        "tied_embeddings": flag(config, "tie_word_embeddings", True),
        "positions": "relative",
    }


def _vit(config: Config) -> dict[str, Any]:
    """Read ViT with its classifier: as many classes as `num_labels` or `id2label` says, else the library's two."""
    labels = config.get("id2label")
    classes = len(labels) if isinstance(labels, dict) else 2
    return {
        "family": "vit",
        "layers": layer_count(config),
        "hidden": need(config, "hidden_size"),
        "heads": need(config, "num_attention_heads"),
        "ffn": need(config, "intermediate_size"),
        "image_size": config.get("image_size", 224),
        "patch": config.get("patch_size", 16),
        "channels": config.get("num_channels", 3),
        "classes": number(config, "num_labels", classes),
        "dropout": config.get("hidden_dropout_prob", 0.0),
        "qkv_bias": flag(config, "qkv_bias", True),
        "activation": activation(config, "hidden_act"),
    }


READERS: dict[str, Reader] = {"bert": _bert, "roberta": _roberta, "xlm-roberta": _xlm_roberta, "t5": _t5, "vit": _vit}
