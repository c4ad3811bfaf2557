"""What decides which operations a model has, as against how large they are."""

from dataclasses import dataclass
from typing import Literal

from sim.specs.blocks import Block, Mixer, Mlp
from sim.specs.model import Model
from sim.specs.traced import Pair, Part

STATISTICS = {"layernorm": 2, "rmsnorm": 1}
"""fp32 numbers per row that a norm keeps: mean and deviation, or the deviation."""


@dataclass(frozen=True)
class BlockKind:
    """The operations of one kind of layer."""

    mixer: Mixer
    mlp: Mlp
    eager: bool
    gated: bool
    dropout: bool
    rope: bool
    cross: bool
    shared: bool
    latent: bool
    parallel: bool
    norms: int
    latent_queries: bool
    qk_norm: bool
    whole_qk_norm: bool
    root_mean_square: bool
    joins: bool
    relu: bool
    clamped: bool
    adapted: str

    @property
    def stores_scores(self) -> bool:
        """Whether it has a matrix of attention scores and keeps it."""
        return self.eager and self.mixer in ("attention", "mla")

    @classmethod
    def of(cls, block: Block) -> "BlockKind | TracedKind":
        """Return the kind of `block`."""
        if block.traced:
            return TracedKind(block.traced)
        model = block.model
        return cls(
            mixer=block.mixer,
            mlp=block.mlp,
            eager=model.attention == "eager",
            gated=model.gated_mlp,
            dropout=model.dropout > 0,
            rope=model.positions == "rope",
            cross=block.cross,
            shared=block.mlp == "moe" and model.shared_ffn > 0,
            latent=block.mlp == "moe" and model.moe_latent > 0,
            parallel=model.parallel_block,
            norms=block.norms,
            qk_norm=block.mixer == "attention" and model.qk_norm,
            whole_qk_norm=block.mixer == "attention" and model.qk_norm and model.whole_qk_norm,
            latent_queries=block.mixer == "mla" and model.q_lora_rank > 0,
            root_mean_square=model.norm == "rmsnorm",
            joins=block.letter == "P",
            relu=model.activation == "relu",
            adapted=model.adapters_on if model.adapter_rank else "",
            clamped=block.mlp == "moe" and model.gated_mlp and model.activation_limit > 0,
        )


@dataclass(frozen=True)
class TracedKind:
    """The operations of one kind of layer, or of an end, as a layer table states them."""

    part: Part
    mlp: Mlp = "none"


Kind = BlockKind | TracedKind


@dataclass(frozen=True)
class Structure:
    """A model's kinds of layers and its two ends; the key under which compiled cost models are kept.

    A traced network's `ends` are parts of its table, and `boundary` is the size of its pipeline messages. `final_norm`:
    the head begins with a norm; `embedding_norm`: the embedding ends in one; `encodes`: both ends are those of an
    encoder too; `frozen`: adapters in the layers alone are trained.
    """

    kinds: tuple[Kind, ...]
    dropout: bool
    tied: bool
    statistics: int
    head: Literal["tokens", "masked", "classes", "traced"]
    ends: tuple[TracedKind, TracedKind] | None = None
    boundary: Pair | None = None
    final_norm: bool = True
    embedding_norm: bool = False
    encodes: bool = False
    frozen: bool = False

    @classmethod
    def of(cls, model: Model) -> "Structure":
        """Return the structure of `model`."""
        network = model.network
        head: Literal["tokens", "masked", "classes"] = "tokens"
        if model.family in ("encoder", "vit"):
            head = "masked" if model.family == "encoder" else "classes"
        return cls(
            kinds=tuple(BlockKind.of(block) for block in model.blocks),
            dropout=model.dropout > 0,
            tied=model.tied_embeddings,
            statistics=STATISTICS[model.norm],
            head="traced" if network else head,
            ends=(TracedKind(network.first), TracedKind(network.last)) if network else None,
            boundary=network.boundary if network else None,
            final_norm=not model.recurrent,
            embedding_norm=model.embedding_norm and not network and model.family != "vit",
            encodes=model.family == "encoder-decoder",
            frozen=model.adapter_rank > 0,
        )
