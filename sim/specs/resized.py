"""A model of other dimensions: what followed from the old ones follows from the new ones."""

from collections.abc import Mapping
from dataclasses import replace

from sim.specs.fields import DERIVED, InputError
from sim.specs.model import Model


def resized(model: Model, dimensions: Mapping[str, int]) -> Model:
    """Return a model of other dimensions; what followed from the old ones follows from the new ones.

    Raises:
        InputError: a dimension is out of range, they contradict each other, or the network was traced.
    """
    if model.table and dimensions:
        name, value = next(iter(dimensions.items()))
        raise InputError(name, value, "left alone: nothing of a traced network can be changed")
    short = model.positions == "learned" and dimensions.get("seq", 0) > model.max_positions
    follows = [*following(model), *(["max_positions"] if short else [])]
    made: Model = replace(model, **dict.fromkeys(follows, DERIVED) | halves(model, dimensions) | dict(dimensions))
    return made


def following(model: Model) -> dict[str, set[str]]:
    """Return the fields that are what follows from other dimensions of the model, stated or not, and from which."""
    layers = {"family", "layers", "encoder_layers", "window", "global_every", "experts", "dense_layers", "moe_every"}
    follows = {
        "pattern": (model.pattern == model._pattern(), layers),
        "head_dim": (model.head_dim * model.heads == model.hidden, {"hidden", "heads"}),
        "kv_heads": (model.kv_heads == model.heads, {"heads"}),
        "v_head_dim": (not model.kv_lora_rank, {"hidden", "heads", "head_dim"}),
        "max_positions": (model.positions == "learned" and model.max_positions == model.seq, {"seq"}),
        "vocab": (model.family == "vit", {"classes"}),
        "experts_per_token": (not model.experts, {"experts"}),
        "moe_ffn": (not model.experts, {"experts", "ffn"}),
    }
    return {name: of for name, (does, of) in follows.items() if does}


def halves(model: Model, changes: Mapping[str, object]) -> dict[str, int]:
    """Return the encoder's share of other `layers`, which are of both stacks, where the model's stacks are alike."""
    layers = changes.get("layers")
    alike = model.family == "encoder-decoder" and model.layers == 2 * model.encoder_layers
    if not alike or not isinstance(layers, int) or {"encoder_layers", "family"} & changes.keys():
        return {}
    return {"encoder_layers": layers // 2}
