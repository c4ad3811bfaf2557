"""Tempo: a network's GELUs, LayerNorms and attention cores replaced by such as keep fewer bytes (arXiv 2210.10246).

Bytes saved less per layer of a transformer, with e bytes an element: 4 s b h (e - 1) by the GELU, 2 s b h e by its two
LayerNorms (and their means), a s^2 b e by the attention core if it has dropout.
"""

from torch import nn

from calibration.layers.attention import AttentionCore, RecomputedCore
from calibration.layers.gelu import OutputGelu
from calibration.layers.hooks import hooked
from calibration.layers.norm import LEAST_GAMMA, OutputLayerNorm

KINDS = (nn.GELU, nn.LayerNorm, AttentionCore)


def with_tempo(network: nn.Module, least_gamma: float = LEAST_GAMMA, kinds: tuple[type[nn.Module], ...] = KINDS) -> int:
    """Put layers that keep fewer bytes in the place of a network's own of these kinds, and return how many.

    Parameters and their names stay. Exact `nn.GELU`, `nn.LayerNorm` over one dimension and `AttentionCore` are
    replaced; what is derived from these or has hooks, and GELU by tanh, is left as it is.
    """
    found = [
        (module, name, made)
        for module in network.modules()
        for name, child in module._modules.items()  # named_children() passes over a layer that is used twice
        if child is not None and type(child) in kinds and (made := _replaced(child, least_gamma)) is not None
    ]
    for module, name, made in found:
        setattr(module, name, made)
    return len(found)


def _replaced(layer: nn.Module, least_gamma: float) -> nn.Module | None:
    made: nn.Module | None = None
    if hooked(layer):
        return None
    if type(layer) is nn.GELU and layer.approximate == "none":
        made = OutputGelu()
    if type(layer) is nn.LayerNorm and len(layer.normalized_shape) == 1:
        made = OutputLayerNorm.of(layer, least_gamma)
    if type(layer) is AttentionCore:
        made = RecomputedCore(layer.p)
    return None if made is None else made.train(layer.training)
