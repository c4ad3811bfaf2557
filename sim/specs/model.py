"""The network to train: dimensions, exact parameter counts, FLOP per token."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from sim.specs import adapters
from sim.specs.arguments import checked
from sim.specs.blocks import LETTERS, RECURRENT, Block, block_letter
from sim.specs.fields import DERIVED, InputError, real, spec, whole
from sim.specs.files import load_mapping
from sim.specs.hf import read_config
from sim.specs.hf.names import in_config
from sim.specs.table import LayerTable
from sim.specs.traced import Network

ASSUMED_VOCAB = 51_200
ASSUMED_SEQ = 2_048
Convention = Literal["megatron", "palm"]
OF_EXPERTS = ("experts", "shared_ffn", "moe_latent", "capacity_factor", "imbalance", "activation_limit")
"""What experts have, of fields that a model without any has at their defaults."""


@spec
class Model:
    """A transformer or a hybrid of layers: decoder, encoder, encoder-decoder or vision.

    What is left out takes the field's usual default and is listed in `assumptions`. `layers` counts every layer of
    the stack (an encoder's first); `pattern` says what each one is (letters of `sim.specs.blocks`) and follows from
    the other keys where it is left out: `dense_layers` first ones without experts, then one of `moe_every` with
    them; one of `global_every` without the sliding `window`. `ffn` is the width of dense MLPs, `moe_ffn` of one
    routed expert, `shared_ffn` of all shared experts together; with `moe_latent` the routed experts work at that
    width, between two projections (LatentMoE, Nemotron 3). `imbalance`: rows of the busiest expert rank over the mean
    (of ep ranks at most ep); `capacity_factor`: rows an expert takes over the mean, the rest dropped (0: none is
    dropped). `activation` is that of MLPs without a gate: "relu" keeps its output alone for the backward pass (squared
    it keeps as much as "gelu"). `activation_limit`: what the halves of a gated expert's first product are clamped to
    (GPT OSS: 7; 0: nothing is). `bias` is the attention output's; `qkv_bias` and `mlp_bias` follow it. With
    `whole_qk_norm` the norms of `qk_norm` span all heads (OLMo 2, arXiv 2501.00656). MLA (DeepSeek-V2, arXiv
    2405.04434) needs kv_lora_rank, rope_head_dim and v_head_dim, with head_dim the part without rotation. With an
    `adapter_rank` low-rank adapters alone are trained and all else is frozen (LoRA, arXiv 2106.09685): on queries, keys
    and values, with "attention" also on its output, with "all" on the products of dense MLPs too. With a
    `table` (see `from_table`) the network is that one and the dimensions mean nothing.

    Raises:
        InputError: a value is out of range or the dimensions contradict each other.
    """

    name: Annotated[str, Field(min_length=1, max_length=100, description="text of 1 to 100 characters")] = "custom"
    family: Literal["decoder", "encoder", "encoder-decoder", "vit"] = "decoder"
    layers: Annotated[int, whole(1, 4_096)]
    pattern: Annotated[str, Field(min_length=1, max_length=4_096, description=f"one letter of {LETTERS} a layer")] = (
        DERIVED
    )
    hidden: Annotated[int, whole(1, 1_048_576)]
    heads: Annotated[int, whole(1, 4_096)]
    head_dim: Annotated[int, whole(1, 16_384)] = DERIVED
    kv_heads: Annotated[int, whole(1, 4_096)] = DERIVED
    ffn: Annotated[int, whole(1, 4_194_304)] = DERIVED
    gated_mlp: bool = False
    activation: Literal["gelu", "relu"] = "gelu"
    activation_limit: Annotated[float, real(0.0, 1e6)] = 0.0
    vocab: Annotated[int, whole(1, 10_000_000)] = DERIVED
    seq: Annotated[int, whole(1, 10_000_000)] = DERIVED
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_bias: bool = DERIVED
    embedding_norm: bool = DERIVED
    block_norms: Annotated[int, whole(1, 4)] = 2
    parallel_block: bool = False
    dropout: Annotated[float, real(0.0, 0.99)] = 0.0
    attention: Literal["eager", "flash"] = "flash"
    tied_embeddings: bool = DERIVED
    bias: bool = DERIVED
    qkv_bias: bool = DERIVED
    mlp_bias: bool = DERIVED
    head_bias: bool = False
    qk_norm: bool = False
    whole_qk_norm: bool = False
    sinks: bool = False
    positions: Literal["learned", "rope", "relative", "none"] = DERIVED
    max_positions: Annotated[int, whole(1, 10_000_000)] = DERIVED
    type_vocab: Annotated[int, whole(0, 1_000)] = 0
    window: Annotated[int, whole(0, 10_000_000)] = 0
    global_every: Annotated[int, whole(0, 4_096)] = 0
    experts: Annotated[int, whole(0, 65_536)] = 0
    experts_per_token: Annotated[int, whole(0, 1_024)] = DERIVED
    moe_ffn: Annotated[int, whole(1, 4_194_304)] = DERIVED
    shared_ffn: Annotated[int, whole(0, 4_194_304)] = 0
    moe_latent: Annotated[int, whole(0, 1_048_576)] = 0
    shared_gate: bool = False
    router_bias: bool = False
    dense_layers: Annotated[int, whole(0, 4_096)] = 0
    moe_every: Annotated[int, whole(1, 4_096)] = 1
    capacity_factor: Annotated[float, real(0.0, 100.0)] = 0.0
    imbalance: Annotated[float, real(1.0, 1_000.0)] = 1.0
    q_lora_rank: Annotated[int, whole(0, 1_048_576)] = 0
    kv_lora_rank: Annotated[int, whole(0, 1_048_576)] = 0
    rope_head_dim: Annotated[int, whole(0, 16_384)] = 0
    v_head_dim: Annotated[int, whole(1, 16_384)] = DERIVED
    ssm_state: Annotated[int, whole(1, 65_536)] = 128
    ssm_heads: Annotated[int, whole(1, 65_536)] = DERIVED
    ssm_head_dim: Annotated[int, whole(1, 16_384)] = 64
    ssm_groups: Annotated[int, whole(1, 4_096)] = 8
    ssm_conv: Annotated[int, whole(1, 64)] = 4
    ssm_chunk: Annotated[int, whole(1, 65_536)] = 256
    mtp_layers: Annotated[int, whole(0, 64)] = 0
    adapter_rank: Annotated[int, whole(0, 65_536)] = 0
    adapters_on: Literal["qkv", "attention", "all"] = "attention"
    encoder_layers: Annotated[int, whole(0, 4_096)] = 0
    encoder_seq: Annotated[int, whole(1, 10_000_000)] = DERIVED
    image_size: Annotated[int, whole(1, 65_536)] = 224
    patch: Annotated[int, whole(1, 4_096)] = 16
    channels: Annotated[int, whole(1, 1_024)] = 3
    classes: Annotated[int, whole(1, 10_000_000)] = 1_000
    table: LayerTable | None = field(default=None, hash=False, repr=False)
    assumptions: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.__dict__["head_dim"] is None and self.hidden % self.heads:
            raise InputError("heads", self.heads, f"a divisor of hidden = {self.hidden}, or give head_dim")
        assumed = []
        for name, value, why in self._usual():
            if self.__dict__[name] is None:
                object.__setattr__(self, name, value)
                assumed += [f"model.{name} = {value} ({why})"] if why else []
        assumed += self.network.notes() if self.network else []
        if self.table and not self.table.seq:
            assumed.append("a sample counts as one token: the traced network reads none")
        if self.qk_norm and self.whole_qk_norm:
            assumed.append("with tp, ranks exchange nothing for the row sums of the norms of queries and keys")
        assumed += [*adapters.notes(self), *self._unused()]
        object.__setattr__(self, "assumptions", tuple(assumed))
        self._check()

    def __getstate__(self) -> dict[str, object]:
        # Without what is cached: blocks are hashed by their model, which a reader of the state does not have yet.
        return {f.name: self.__dict__[f.name] for f in fields(self)}

    def _unused(self) -> list[str]:
        """Return what is stated of parts that no layer has."""
        absent = {} if self.has_experts else dict.fromkeys(OF_EXPERTS, "experts")
        absent |= {} if set(self.pattern) & set("WY") else {"window": "a window"}
        absent |= {} if self.qk_norm else {"whole_qk_norm": "norms of queries and keys"}
        absent |= {} if self.adapter_rank else {"adapters_on": "an adapter"}
        absent |= {} if self.kv_lora_rank else dict.fromkeys(("q_lora_rank", "rope_head_dim"), "latent attention")
        usual = {f.name: f.default for f in fields(self)}
        held = {name: getattr(self, name) for name in absent}
        stated = {name: value for name, value in held.items() if value != usual[name]}
        return [f"model.{name} = {value} is ignored: no layer has {absent[name]}" for name, value in stated.items()]

    def _check(self) -> None:
        letters = "".join(self.network.kinds) if self.network else LETTERS.replace("P", "")
        moe, pair, image = self.has_experts, self.family == "encoder-decoder", self.family == "vit"
        wrong = [
            ("kv_heads", self.heads % self.kv_heads > 0, f"a divisor of heads = {self.heads}"),
            (
                "encoder_layers",
                pair and not 0 < self.encoder_layers < self.layers,
                f"1 to {self.layers - 1}: layers = {self.layers} are those of both stacks",
            ),
            ("encoder_layers", self.encoder_layers > self.layers, f"at most layers = {self.layers}"),
            ("pattern", len(self.pattern) != self.layers, f"layers = {self.layers} letters"),
            ("pattern", bool(set(self.pattern) - set(letters)), f"letters of {letters}"),
            ("experts", moe and not self.experts, "1 or more, as the pattern has layers of experts"),
            (
                "experts_per_token",
                self.experts > 0 and not 1 <= self.experts_per_token <= self.experts,
                f"from 1 to experts = {self.experts}",
            ),
            ("rope_head_dim", self.kv_lora_rank > 0 and not self.rope_head_dim, "1 or more with kv_lora_rank"),
            ("window", bool(set(self.pattern) & set("WY")) and not self.window, "1 or more, as layers have a window"),
            ("patch", image and self.image_size % self.patch > 0, f"a divisor of image_size = {self.image_size}"),
            (
                "max_positions",
                self.positions == "learned" and self.max_positions < self.seq,
                f"seq = {self.seq} or more: every position is learned",
            ),
            (
                "seq",
                image and self.seq != self._patches + 1,
                f"{self._patches + 1}: class and patches of image_size = {self.image_size}",
            ),
            ("vocab", image and self.vocab != self.classes, f"left out, or classes = {self.classes}: images have none"),
            ("tied_embeddings", image and self.tied_embeddings, "false: images have no table to share with the head"),
            ("mtp_layers", self.mtp_layers > 0 and self.family != "decoder", "0: only decoders predict more tokens"),
            *adapters.wrong(self),
        ]
        for name, bad, allowed in wrong:
            if bad:
                raise InputError(name, getattr(self, name), allowed)

    def _usual(self) -> Iterator[tuple[str, object, str]]:
        """Yield each derived field's default and why; what was yielded is filled in before the next is asked for."""
        modern, image, decoder = self.norm == "rmsnorm", self.family == "vit", self.family == "decoder"
        gated_ffn = -(-self.hidden * 8 // 3 // 256) * 256  # Llama: 2/3 of 4 h, rounded up to 256
        yield "head_dim", self.hidden // self.heads, "hidden / heads"
        yield "kv_heads", self.heads, "one key-value head per head"
        yield "ffn", gated_ffn if self.gated_mlp else 4 * self.hidden, "the family's usual width"
        yield "vocab", self.classes if image else ASSUMED_VOCAB, "" if image else "GPT-2 vocabulary, padded"
        yield "seq", self._patches + 1 if image else ASSUMED_SEQ, "" if image else "sequence length"
        yield "tied_embeddings", not modern and not image, "tied for GPT, untied for Llama" if decoder else ""
        yield "bias", not modern, "biases with LayerNorm, none with RMSNorm"
        yield "qkv_bias", self.bias, ""
        yield "mlp_bias", self.bias, ""
        yield "norm_bias", not modern, ""
        yield "embedding_norm", self.family == "encoder", ""
        if self.recurrent:
            yield "positions", "none", ""
        yield "positions", "rope" if modern else "learned", "learned for GPT, rotary for Llama"
        yield "max_positions", self.seq, ""
        yield "experts_per_token", 2 if self.experts else 0, "top-2 routing" if self.experts else ""
        yield "moe_ffn", self.ffn, "as wide as ffn" if self.experts else ""
        yield "v_head_dim", self.head_dim, "as head_dim" if self.kv_lora_rank else ""
        yield "encoder_seq", self.seq, "as seq" if self.family == "encoder-decoder" else ""
        yield "pattern", self._pattern(), ""
        inner = "inner width 2 x hidden" if "M" in self.pattern else ""
        yield "ssm_heads", max(1, 2 * self.hidden // self.ssm_head_dim), inner

    def _pattern(self) -> str:
        if self.network:
            return self.network.pattern
        if self.family in ("encoder", "vit"):
            return "N" * self.layers
        if self.family == "encoder-decoder":
            return "N" * self.encoder_layers + "C" * (self.layers - self.encoder_layers)
        letters = []
        for i in range(self.layers):
            local = self.window > 0 and not (self.global_every and (i + 1) % self.global_every == 0)
            moe = self.experts > 0 and i >= self.dense_layers and (i - self.dense_layers + 1) % self.moe_every == 0
            letters.append(block_letter(local, moe))
        return "".join(letters)

    @classmethod
    @checked
    def from_hf(cls, path: str | Path, seq: int | None = None) -> "Model":
        """Return the model that a Hugging Face `config.json` describes; `seq` replaces its context length.

        Raises:
            InputError: unknown `model_type`, or a key is missing or out of range.
        """
        arguments, notes = read_config(path, seq)
        try:
            made = cls(**arguments)
        except InputError as error:
            raise in_config(error, load_mapping(Path(path))) from None
        return made.noted(notes)

    def noted(self, notes: Iterable[str]) -> "Model":
        """Return this model with `notes` of the file that it was read from in front of its assumptions."""
        made = replace(self)
        object.__setattr__(made, "assumptions", (*notes, *self.assumptions))
        return made

    @classmethod
    @checked
    def from_table(cls, table: str | Path | LayerTable) -> "Model":
        """Return the network of a layer table (or of the file that `trainsim trace` wrote).

        A sample of a network that reads no tokens counts as one token.

        Raises:
            InputError: no such file, a field is wrong, or the table is one of 64-bit numbers or without layers.
        """
        held = table if isinstance(table, LayerTable) else LayerTable.load(table)
        network = Network.of(held)
        return cls(
            name=held.name,
            layers=len(network.pattern),
            seq=held.seq or 1,
            tied_embeddings=network.tied,
            bias=False,
            positions="none",
            table=held,
            hidden=1,
            heads=1,
            head_dim=1,
            kv_heads=1,
            ffn=1,
            vocab=1,
        )

    @cached_property
    def network(self) -> Network | None:
        """The parts of a traced network."""
        return Network.of(self.table) if self.table else None

    @cached_property
    def blocks(self) -> dict[Block, int]:
        """The kinds of layers and how many there are of each, in order of appearance; prediction modules last."""
        found = {Block(self, letter): n for letter, n in Counter(self.pattern).items()}
        return found | ({Block(self, "P"): self.mtp_layers} if self.mtp_layers else {})

    @property
    def recurrent(self) -> bool:
        """Whether all layers are recurrent: such a model has neither positions nor a final norm by itself."""
        return bool(self.pattern) and set(self.pattern) <= set(RECURRENT)

    @property
    def whole_layers(self) -> bool:
        """Whether no rank has a part of a layer, nor selective recompute a part to repeat: traced, or any recurrent."""
        return self.table is not None or bool(set(self.pattern) & set(RECURRENT))

    @property
    def query_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key (and of the value) projection."""
        return self.kv_heads * self.head_dim

    @property
    def ssm_width(self) -> int:
        """Inner width of a Mamba-2 layer."""
        return self.ssm_heads * self.ssm_head_dim

    @property
    def scan_chunk(self) -> int:
        """Tokens that a Mamba-2 layer scans at once: a sequence shorter than a chunk is one."""
        return min(self.ssm_chunk, self.seq)

    @property
    def has_experts(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return bool(set(self.pattern) & set("XYE"))

    @property
    def _patches(self) -> int:
        return (self.image_size // self.patch) ** 2

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalisation layer."""
        return self.norm_size(self.hidden)

    def norm_size(self, width: int) -> int:
        """Return the parameters of a normalisation of `width` columns."""
        return width * (2 if self.norm_bias else 1)

    @property
    def position_parameters(self) -> int:
        """Parameters that know the position: learned tables, or T5's relative biases (32 buckets a head and stack)."""
        stacks = 2 if self.family == "encoder-decoder" else 1
        return {
            "learned": self.max_positions * self.hidden,
            "relative": 32 * self.heads * stacks,
        }.get(self.positions, 0)

    @property
    def embedding_parameters(self) -> int:
        """Parameters in front of the first layer."""
        if self.network:
            return self.network.first.parameters
        if self.family == "vit":
            return self.channels * self.patch**2 * self.hidden + 2 * self.hidden + self.position_parameters
        norm = self.norm_parameters if self.embedding_norm else 0
        return self.vocab * self.hidden + self.type_vocab * self.hidden + norm + self.position_parameters

    @property
    def head_parameters(self) -> int:
        """Parameters behind the final norm that are not shared with the embedding."""
        if self.network:
            return self.network.last.parameters
        if self.family == "vit":
            return self.classes * (self.hidden + 1)
        transform = self.hidden * (self.hidden + 1) + self.norm_parameters if self.family == "encoder" else 0
        bias = self.vocab if self.head_bias else 0
        return transform + bias + (0 if self.tied_embeddings else self.vocab * self.hidden)

    @property
    def final_norms(self) -> int:
        """Normalisations behind the last layer of each stack (BERT, which normalises after a sub-layer, has none, nor
        has a stack of recurrent layers)."""
        return 0 if self.table or self.recurrent else {"encoder": 0, "encoder-decoder": 2}.get(self.family, 1)

    @property
    def end_tensors(self) -> tuple[int, int]:
        """Parameters in front of the first layer and behind the last that an optimizer steps one by one."""
        if self.network:
            return self.network.first.tensors, self.network.last.tensors
        if self.adapter_rank:
            return 0, 0
        norm, positions = (2 if self.norm_bias else 1), int(self.position_parameters > 0)
        if self.family == "vit":
            return 3 + positions, self.final_norms * norm + 2
        front = 1 + int(self.type_vocab > 0) + (norm if self.embedding_norm else 0) + positions
        transform = 2 + norm if self.family == "encoder" else 0
        return front, transform + self.final_norms * norm + int(self.head_bias) + int(not self.tied_embeddings)

    @property
    def parameters(self) -> int:
        """All parameters, exactly."""
        stack = sum(n * block.parameters for block, n in self.blocks.items())
        ends = self.embedding_parameters + self.head_parameters
        return stack + ends + self.final_norms * self.norm_parameters

    @property
    def trained_parameters(self) -> int:
        """Those that an optimizer updates: all, or the adapters'."""
        own = sum(n * block.adapter_parameters for block, n in self.blocks.items())
        return own if self.adapter_rank else self.parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes: all but the experts it is not routed to."""
        idle = sum(
            n * block.expert_parameters // self.experts * (self.experts - self.experts_per_token)
            for block, n in self.blocks.items()
            if self.experts
        )
        return self.parameters - idle

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of one sample, of both stacks where there are two."""
        return self.seq + (self.encoder_seq if self.family == "encoder-decoder" else 0)

    def flop_per_sample(self, convention: Convention = "megatron") -> float:
        """Return model FLOP of forward and backward per sample.

        "megatron": three times the matrix products of the forward pass, core attention halved by the causal
        mask (Megatron-LM `num_floating_point_operations`). "palm": 6 N + 12 L H Q T without a causal
        discount (Chowdhery et al. 2022, appendix B). A traced network's are the products that it really has,
        with causal fused attention halved or whole. Frozen weights have no weight gradients: two times their products.
        """
        if self.table:
            return float(self.table.model_flop(halved=convention == "megatron"))
        core = sum(n * b.seq * b.core_flop(convention) for b, n in self.blocks.items())
        times, own = (2.0, self.trained_parameters * self.seq) if self.adapter_rank else (3.0, 0)
        if convention == "palm":
            encoded = sum(n * b.encoding_parameters for b, n in self.blocks.items())
            passed = self.active_parameters * self.seq + encoded * (self.encoder_seq - self.seq)
            return 3.0 * core + 2.0 * (times * passed + own)
        products = sum(n * b.seq * b.active_products for b, n in self.blocks.items())
        if self.family == "vit":
            patch = self.channels * self.patch**2 * self.hidden * (self.seq - 1)
            return 3.0 * (2 * (products + patch + self.classes * self.hidden) + core)
        logits = self.vocab * self.hidden * (1 + self.mtp_layers)
        transform = self.hidden**2 if self.family == "encoder" else 0
        return 2.0 * times * (products + (logits + transform) * self.seq) + 3.0 * core + 6.0 * own

    def flop_per_token(self, convention: Convention = "megatron") -> float:
        """Return model FLOP of forward and backward per token of a sample (see `flop_per_sample`)."""
        return self.flop_per_sample(convention) / self.tokens_per_sample
