"""Kinds of layers that a network stacks: their exact parameters and products, one letter each.

`T` transformer block, `W` the same with sliding-window attention, `X` and `Y` the two with a mixture of experts
instead of the MLP, `N` encoder block (attends both ways), `C` decoder block with cross-attention, `P` module of
multi-token prediction; layers of one sub-layer only: `M` Mamba-2, `*` attention, `-` MLP, `E` experts; and recurrent
layers, without norm and residual: `L` LSTM, `G` GRU.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sim.specs import adapters
from sim.specs.traced import Part

if TYPE_CHECKING:
    from sim.specs.model import Model

Mixer = Literal["attention", "mla", "mamba", "lstm", "gru", "none"]
Mlp = Literal["dense", "moe", "none"]
LETTERS = "TWXYNCPM*-ELG"
RECURRENT: dict[str, Literal["lstm", "gru"]] = {"L": "lstm", "G": "gru"}
GATES = {"lstm": 4, "gru": 3}
"""Gates of recurrent mixers: rows of their weights over the hidden width."""


def block_letter(local: bool, moe: bool) -> str:
    """Return the letter of a transformer block with (`local`) a sliding window and (`moe`) experts."""
    return "TWXY"[local + 2 * moe]


@dataclass(frozen=True)
class Block:
    """One layer of `model`: what it is made of, its parameters by how they are split, its products per token."""

    model: "Model"
    letter: str

    @property
    def mixer(self) -> Mixer:
        """What mixes the tokens."""
        if self.letter in RECURRENT:
            return RECURRENT[self.letter]
        if self.letter == "M":
            return "mamba"
        if self.letter in "-E":
            return "none"
        return "mla" if self.model.kv_lora_rank else "attention"

    @property
    def mlp(self) -> Mlp:
        """What follows it."""
        if self.letter in "M*LG":
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
        return self.reach - self.reach**2 / (2 * self.seq)

    @property
    def reach(self) -> int:
        """Keys that a query looks at at most."""
        window = self.model.window if self.letter in "WY" else 0
        return min(window, self.seq) if window else self.seq

    @property
    def norms(self) -> int:
        """Normalisations of the hidden width."""
        if self.letter in RECURRENT:
            return 0
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
    def traced(self) -> Part | None:
        """The layer's part of a traced network."""
        return self.model.network.kinds[self.letter] if self.model.network else None

    @property
    def mixer_split(self) -> int:
        """Weights of the token mixer that tensor parallelism splits."""
        m, h = self.model, self.model.hidden
        sinks = m.heads if m.sinks else 0
        if self.mixer == "mamba":
            inner, states = m.ssm_width, 2 * m.ssm_groups * m.ssm_state
            convolution = (inner + states) * (m.ssm_conv + 1)
            return h * (2 * inner + states + m.ssm_heads) + convolution + 3 * m.ssm_heads + inner + inner * h
        if self.mixer == "mla":
            query = (m.q_lora_rank or h) * self.qk_width
            return query + m.kv_lora_rank * m.heads * (m.head_dim + m.v_head_dim) + self.v_width * h + sinks
        if self.mixer == "none" or self.letter in RECURRENT:
            return 0
        biases = m.query_width + 2 * m.kv_width if m.qkv_bias else 0
        one = h * (m.query_width + 2 * m.kv_width) + m.query_width * h + biases + sinks
        return one * (2 if self.cross else 1)

    @property
    def key_value_rows(self) -> int:
        """Weights of keys and values for every column of a key's or a value's heads."""
        if self.mixer != "attention" or self.traced:
            return 0
        return 2 * (self.model.hidden + (1 if self.model.qkv_bias else 0)) * (2 if self.cross else 1)

    @property
    def mixer_repeated(self) -> int:
        """Weights of the token mixer that every tensor-parallel rank holds."""
        m, h = self.model, self.model.hidden
        if self.mixer == "mla":
            query = h * m.q_lora_rank + m.norm_size(m.q_lora_rank)
            down = h * (m.kv_lora_rank + m.rope_head_dim) + m.norm_size(m.kv_lora_rank)
            return query + down + (h if m.bias else 0)
        if self.letter in RECURRENT:
            # Inputs as wide as the state, and two vectors of biases (torch.nn.LSTM's, cuDNN's).
            return GATES[self.mixer] * h * (2 * h + (2 if m.bias else 0))
        if self.mixer != "attention":
            return 0
        normed = m.query_width + m.kv_width if m.whole_qk_norm else 2 * m.head_dim
        one = (h if m.bias else 0) + (m.norm_size(normed) if m.qk_norm else 0)
        return one * (2 if self.cross else 1)

    def _mlp_weights(self, columns: int, width: int) -> int:
        up = (2 if self.model.gated_mlp else 1) * width
        return columns * (up + width) + (up if self.model.mlp_bias else 0)

    @property
    def split_parameters(self) -> int:
        """All parameters that tensor parallelism splits."""
        if self.traced:
            return 0
        joined = 2 * self.model.hidden**2 if self.letter == "P" else 0
        mlp = self._mlp_weights(self.model.hidden, self.ffn) if self.ffn else 0
        return self.mixer_split + joined + mlp + self.adapter_parameters

    @property
    def adapter_parameters(self) -> int:
        """Parameters of the adapters: those that are trained where there are any."""
        return self.model.adapter_rank * sum(adapters.columns(self).values())

    @property
    def repeated_parameters(self) -> int:
        """All parameters that every tensor-parallel rank holds: norms, output biases, router, down-projections."""
        if self.traced:
            return self.traced.parameters
        norms = self.norms + (1 if self.final_norm else 0)
        return self.mixer_repeated + self._mlp_repeated + norms * self.model.norm_parameters

    @property
    def _mlp_repeated(self) -> int:
        m, h = self.model, self.model.hidden
        output = h if m.mlp_bias and self.ffn else 0
        if self.mlp != "moe":
            return output
        latent = 2 * h * m.moe_latent + (m.moe_latent + h if m.moe_latent and m.mlp_bias else 0)
        router = h * m.experts + (m.experts if m.router_bias else 0) + (h if m.shared_gate else 0)
        return output + router + latent

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
        columns = m.moe_latent or m.hidden
        return m.experts * (self._mlp_weights(columns, m.moe_ffn) + (columns if m.mlp_bias else 0))

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.split_parameters + self.repeated_parameters + self.expert_parameters

    @property
    def encoding_parameters(self) -> int:
        """Parameters that an encoder's tokens pass, and no decoder's: its layers, cross-attention's keys and values."""
        if self._encodes:
            return self.parameters
        return self.key_value_rows // 2 * self.model.kv_width if self.cross else 0

    @property
    def tensors(self) -> int:
        """Parameters that an optimizer steps one by one, as PyTorch's modules hold them; 0 where that is not known: of
        experts, latent attention and state spaces. A GPT's queries, keys and values are one."""
        m = self.model
        if self.traced:
            return self.traced.tensors
        if self.letter in RECURRENT:
            return 4 if m.bias else 2
        if m.adapter_rank:
            return 2 * sum(columns > 0 for columns in adapters.columns(self).values())
        if self.mlp == "moe" or self.mixer in ("mla", "mamba"):
            return 0
        joined = 1 if m.positions == "learned" and m.kv_heads == m.heads else 3
        attention = (joined * (2 if m.qkv_bias else 1) + (2 if m.bias else 1)) * (2 if self.cross else 1)
        mlp = (3 if m.gated_mlp else 2) * (2 if m.mlp_bias else 1)
        norms = self.norms + (2 if m.qk_norm and self.mixer == "attention" else 0)
        return (
            norms * (2 if m.norm_bias else 1)
            + (attention if self.mixer == "attention" else 0)
            + (mlp if self.mlp == "dense" else 0)
        )

    @property
    def active_products(self) -> float:
        """Multiply-adds of all weight products per token of a sample, routed experts by what a token visits."""
        m, h = self.model, self.model.hidden
        cross = h * 2 * m.query_width + h * 2 * m.kv_width * m.encoder_seq / m.seq if self.cross else 0
        return float(self._mixer_products + self._mlp_products + cross + (2 * h * h if self.letter == "P" else 0))

    @property
    def _mixer_products(self) -> int:
        m, h = self.model, self.model.hidden
        if self.mixer == "mla":
            sinks = m.heads if m.sinks else 0  # learned scores, no products
            return h * (m.q_lora_rank + m.kv_lora_rank + m.rope_head_dim) + self.mixer_split - sinks
        if self.mixer == "mamba":
            inner, states = m.ssm_width, 2 * m.ssm_groups * m.ssm_state
            return h * (2 * inner + states + m.ssm_heads) + inner * h + (inner + states) * m.ssm_conv
        if self.letter in RECURRENT:
            return GATES[self.mixer] * h * 2 * h
        return h * (2 * m.query_width + 2 * m.kv_width) if self.mixer == "attention" else 0

    @property
    def _mlp_products(self) -> int:
        m, h, products = self.model, self.model.hidden, 3 if self.model.gated_mlp else 2
        dense = products * h * self.ffn
        if self.mlp != "moe":
            return dense
        experts = m.experts_per_token * products * (m.moe_latent or h) * m.moe_ffn + 2 * h * m.moe_latent
        return dense + experts + h * m.experts + (h if m.shared_gate else 0)

    def core_flop(self, convention: Literal["megatron", "palm"] = "megatron") -> float:
        """Return forward FLOP per token of what mixes tokens: core attention, or the state-space recurrence."""
        m = self.model
        if self.mixer == "mamba":
            # Dual form (arXiv 2405.21060, section 6) per token: scores and their product with the inputs within a chunk
            # (the causal half of them), then the states that leave and enter it.
            counted = 2.0 if convention == "palm" else 1.0
            within = counted * m.scan_chunk * (m.ssm_groups * m.ssm_state + m.ssm_width)
            return within + 4.0 * m.ssm_state * m.ssm_width
        if self.mixer == "none" or self.letter in RECURRENT:
            return 0.0
        cross = m.encoder_seq if self.cross else 0
        return 2.0 * (self.keys(convention) + cross) * (self.qk_width + self.v_width)
