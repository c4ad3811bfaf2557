"""Kinds of layers that a network stacks: their exact parameters and products, one letter each.

`T` transformer block, `W` the same with sliding-window attention, `X` and `Y` the two with a mixture of experts
instead of the MLP, `N` encoder block (attends both ways), `C` decoder block with cross-attention, `P` module of
multi-token prediction; and layers of one sub-layer only: `M` Mamba-2, `*` attention, `-` MLP, `E` experts.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sim.specs.model import Model

Mixer = Literal["attention", "mla", "mamba", "none"]
Mlp = Literal["dense", "moe", "none"]
LETTERS = "TWXYNCPM*-E"
SSM_CHUNK = 256  # tokens of a chunk in the state-space dual form (Mamba-2, arXiv 2405.21060, section 6)


@dataclass(frozen=True)
class Block:
    """One layer of `model`: what it is made of, its parameters by how they are split, its products per token."""

    model: "Model"
    letter: str

    @property
    def mixer(self) -> Mixer:
        """What mixes the tokens."""
        if self.letter == "M":
            return "mamba"
        if self.letter in "-E":
            return "none"
        return "mla" if self.model.kv_lora_rank else "attention"

    @property
    def mlp(self) -> Mlp:
        """What follows it."""
        if self.letter in "M*":
            return "none"
        experts = self.letter in "XYE" or (self.letter == "P" and self.model.experts > 0)
        return "moe" if experts else "dense"

    @property
    def cross(self) -> bool:
        """Whether it also attends to the encoder's output."""
        return self.letter == "C"

    @property
    def seq(self) -> int:
        """Tokens of a sample in this layer."""
        return self.model.encoder_seq if self._encodes else self.model.seq

    @property
    def _encodes(self) -> bool:
        return self.letter == "N" and self.model.family == "encoder-decoder"

    def keys(self, convention: Literal["megatron", "palm"] = "megatron") -> float:
        """Return how many keys a query looks at on average; "palm" counts all of them, masked or not."""
        if self.letter == "N" or convention == "palm":
            return float(self.seq)
        window = self.model.window if self.letter in "WY" else 0
        if 0 < window < self.seq:
            return window - window**2 / (2 * self.seq)
        return self.seq / 2

    @property
    def norms(self) -> int:
        """Normalisations of the hidden width."""
        if self.letter in "M*-E":
            return 1
        return self.model.block_norms + (1 if self.cross else 0) + (2 if self.letter == "P" else 0)

    @property
    def qk_width(self) -> int:
        """Columns of the queries that the scores are made of, all heads."""
        m = self.model
        return m.heads * (m.head_dim + (m.rope_head_dim if m.kv_lora_rank else 0))

    @property
    def v_width(self) -> int:
        """Columns of the context, all heads."""
        m = self.model
        return m.heads * (m.v_head_dim if m.kv_lora_rank else m.head_dim)

    @property
    def ffn(self) -> int:
        """Width of the MLP that every token passes: the dense one, or the shared experts'."""
        return {"dense": self.model.ffn, "moe": self.model.shared_ffn, "none": 0}[self.mlp]

    @property
    def mixer_split(self) -> int:
        """Weights of the token mixer that tensor parallelism splits."""
        m, h = self.model, self.model.hidden
        if self.mixer == "mamba":
            inner, states = m.ssm_width, 2 * m.ssm_groups * m.ssm_state
            convolution = (inner + states) * (m.ssm_conv + 1)
            return h * (2 * inner + states + m.ssm_heads) + convolution + 3 * m.ssm_heads + inner + inner * h
        if self.mixer == "mla":
            query = (m.q_lora_rank or h) * self.qk_width
            return query + m.kv_lora_rank * m.heads * (m.head_dim + m.v_head_dim) + self.v_width * h
        if self.mixer == "none":
            return 0
        biases = m.query_width + 2 * m.kv_width if m.qkv_bias else 0
        one = h * (m.query_width + 2 * m.kv_width) + m.query_width * h + biases + (m.heads if m.sinks else 0)
        return one * (2 if self.cross else 1)

    @property
    def mixer_repeated(self) -> int:
        """Weights of the token mixer that every tensor-parallel rank holds."""
        m, h = self.model, self.model.hidden
        if self.mixer == "mla":
            query = (h + 1) * m.q_lora_rank if m.q_lora_rank else 0
            return query + h * (m.kv_lora_rank + m.rope_head_dim) + m.kv_lora_rank
        if self.mixer != "attention":
            return 0
        one = (h if m.bias else 0) + (2 * m.head_dim if m.qk_norm else 0)
        return one * (2 if self.cross else 1)

    def _mlp_weights(self, width: int) -> int:
        up = (2 if self.model.gated_mlp else 1) * width
        return self.model.hidden * (up + width) + (up if self.model.bias else 0)

    @property
    def split_parameters(self) -> int:
        """All parameters that tensor parallelism splits."""
        joined = 2 * self.model.hidden**2 if self.letter == "P" else 0
        return self.mixer_split + joined + (self._mlp_weights(self.ffn) if self.ffn else 0)

    @property
    def repeated_parameters(self) -> int:
        """All parameters that every tensor-parallel rank holds: norms, output biases, router, MLA's down-projection."""
        m, h = self.model, self.model.hidden
        router = h * m.experts + (m.experts if m.router_bias else 0) + (h if m.shared_gate else 0)
        mlp = {"dense": h if m.bias else 0, "moe": router, "none": 0}[self.mlp]
        return (
            self.mixer_repeated + mlp + self.norms * m.norm_parameters + (m.norm_parameters if self.final_norm else 0)
        )

    @property
    def final_norm(self) -> bool:
        """Whether it ends in a norm of its own (the prediction module does)."""
        return self.letter == "P"

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        m = self.model
        if self.mlp != "moe":
            return 0
        return m.experts * (self._mlp_weights(m.moe_ffn) + (m.hidden if m.bias else 0))

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.split_parameters + self.repeated_parameters + self.expert_parameters

    @property
    def active_products(self) -> float:
        """Multiply-adds of all weight products per token of a sample, routed experts by what a token visits."""
        m, h = self.model, self.model.hidden
        if self.mixer == "mla":
            down = h * (m.q_lora_rank + m.kv_lora_rank + m.rope_head_dim)
            mixer = down + self.mixer_split
        elif self.mixer == "mamba":
            inner, states = m.ssm_width, 2 * m.ssm_groups * m.ssm_state
            mixer = h * (2 * inner + states + m.ssm_heads) + inner * h + (inner + states) * m.ssm_conv
        else:
            mixer = h * (2 * m.query_width + 2 * m.kv_width) if self.mixer == "attention" else 0
        gates = 3 if m.gated_mlp else 2
        mlp = gates * h * self.ffn
        if self.mlp == "moe":
            mlp += h * m.experts + m.experts_per_token * gates * h * m.moe_ffn
        cross = h * 2 * m.query_width + h * 2 * m.kv_width * m.encoder_seq / m.seq if self.cross else 0
        return float(mixer + mlp + cross + (2 * h * h if self.letter == "P" else 0))

    def core_flop(self, convention: Literal["megatron", "palm"] = "megatron") -> float:
        """Return forward FLOP per token of what mixes tokens: core attention, or the state-space recurrence."""
        m = self.model
        if self.mixer == "mamba":
            # Dual form per head and token: scores and their product within a chunk (causal half), states in and out.
            within = SSM_CHUNK * (m.ssm_groups * m.ssm_state / m.ssm_heads + m.ssm_head_dim)
            return m.ssm_heads * (within + 4.0 * m.ssm_state * m.ssm_head_dim)
        if self.mixer == "none":
            return 0.0
        cross = m.encoder_seq if self.cross else 0
        return 2.0 * (self.keys(convention) + cross) * (self.qk_width + self.v_width)
