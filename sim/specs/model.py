"""The network to train: dimensions, exact parameter counts, FLOP per token."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sim.specs.arguments import checked
from sim.specs.fields import DERIVED, InputError, real, spec, whole
from sim.specs.hf import read_config

ASSUMED_VOCAB = 51_200
ASSUMED_SEQ = 2_048


@spec
class Model:
    """A dense decoder-only transformer (GPT or Llama family).

    What is left out takes the field's usual default and is listed in `assumptions`.

    Raises:
        InputError: a value is out of range or the dimensions contradict each other.
    """

    name: Annotated[str, Field(min_length=1, max_length=100, description="text of 1 to 100 characters")] = "custom"
    layers: Annotated[int, whole(1, 4_096)]
    hidden: Annotated[int, whole(1, 1_048_576)]
    heads: Annotated[int, whole(1, 4_096)]
    head_dim: Annotated[int, whole(1, 16_384)] = DERIVED
    kv_heads: Annotated[int, whole(1, 4_096)] = DERIVED
    ffn: Annotated[int, whole(1, 4_194_304)] = DERIVED
    gated_mlp: bool = False
    vocab: Annotated[int, whole(1, 10_000_000)] = DERIVED
    seq: Annotated[int, whole(1, 10_000_000)] = DERIVED
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    dropout: Annotated[float, real(0.0, 0.99)] = 0.0
    attention: Literal["eager", "flash"] = "flash"
    tied_embeddings: bool = DERIVED
    bias: bool = DERIVED
    positions: Literal["learned", "rope"] = DERIVED
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if getattr(self, "head_dim") is None and self.hidden % self.heads:  # noqa: B009 - declared int, None when left out
            raise InputError("heads", self.heads, f"a divisor of hidden = {self.hidden}, or give head_dim")
        assumed = [self._default(name, value, why) for name, value, why in self._usual() if getattr(self, name) is None]
        object.__setattr__(self, "assumptions", tuple(assumed))
        if self.heads % self.kv_heads:
            raise InputError("kv_heads", self.kv_heads, f"a divisor of heads = {self.heads}")

    def _usual(self) -> list[tuple[str, object, str]]:
        modern = self.norm == "rmsnorm"
        gated_ffn = -(-self.hidden * 8 // 3 // 256) * 256  # Llama: 2/3 of 4 h, rounded up to 256
        return [
            ("head_dim", self.hidden // self.heads, "hidden / heads"),
            ("kv_heads", self.heads, "one key-value head per head"),
            ("ffn", gated_ffn if self.gated_mlp else 4 * self.hidden, "the family's usual width"),
            ("vocab", ASSUMED_VOCAB, "GPT-2 vocabulary, padded"),
            ("seq", ASSUMED_SEQ, "sequence length"),
            ("tied_embeddings", not modern, "tied for GPT, untied for Llama"),
            ("bias", not modern, "biases with LayerNorm, none with RMSNorm"),
            ("positions", "rope" if modern else "learned", "learned for GPT, rotary for Llama"),
        ]

    def _default(self, name: str, value: object, why: str) -> str:
        object.__setattr__(self, name, value)
        return f"model.{name} = {value} ({why})"

    @classmethod
    @checked
    def from_hf(cls, path: str | Path, seq: int | None = None) -> "Model":
        """Return the model that a Hugging Face `config.json` describes; `seq` replaces its context length.

        Raises:
            InputError: unknown `model_type`, or a key is missing or out of range.
        """
        arguments, notes = read_config(path, seq)
        made = cls(**arguments)
        object.__setattr__(made, "assumptions", notes + made.assumptions)
        return made

    @property
    def query_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key (and of the value) projection."""
        return self.kv_heads * self.head_dim

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalisation layer."""
        return self.hidden * (2 if self.norm == "layernorm" else 1)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer block."""
        h, q, kv, f = self.hidden, self.query_width, self.kv_width, self.ffn
        up = 2 * f if self.gated_mlp else f
        weights = h * (q + 2 * kv) + q * h + h * up + f * h
        biases = (q + 2 * kv) + h + up + h if self.bias else 0
        return weights + biases + 2 * self.norm_parameters

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token table (and of the learned positions)."""
        return self.vocab * self.hidden + (self.seq * self.hidden if self.positions == "learned" else 0)

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection that are not shared with the embedding."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, exactly."""
        return (
            self.layers * self.layer_parameters
            + self.embedding_parameters
            + self.head_parameters
            + self.norm_parameters
        )

    def flop_per_token(self, convention: Literal["megatron", "palm"] = "megatron") -> float:
        """Return model FLOP of forward and backward per token.

        "megatron": three times the matrix products of the forward pass, core attention halved by the causal
        mask (Megatron-LM `num_floating_point_operations`). "palm": 6 N + 12 L H Q T without a causal
        discount (Chowdhery et al. 2022, appendix B).
        """
        attention = 4 * self.layers * self.query_width * self.seq
        if convention == "palm":
            return 6.0 * self.parameters + 3.0 * attention
        h, f = self.hidden, self.ffn
        products = h * (self.query_width * 2 + 2 * self.kv_width) + h * f * (3 if self.gated_mlp else 2)
        return 3.0 * (2 * (self.layers * products + self.vocab * h) + attention / 2)
