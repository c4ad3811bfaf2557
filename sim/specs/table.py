"""A layer table: any network as a list of layers with their kernels, written by `trainsim trace`.

Every size is a pair [constant, per sample]: at micro-batch b it is constant + per_sample * b, exactly, for the
traced batches (and all larger ones if the network's sizes are affine in the batch, which the tracer checks).
Sizes are those of one device that holds whole layers: no tensor or sequence parallelism.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sim.specs.fields import InputError, read, spec, whole
from sim.specs.files import MAX_BYTES, load_mapping, write_atomically

KIND, VERSION = "trainsim-layer-table", 1
LARGEST = 10**18

Amount = Annotated[int, whole(0, LARGEST)]
Size = Annotated[
    tuple[Amount, Amount],
    Field(description=f"[constant, per sample], two whole numbers from 0 to {LARGEST:g}"),
]
Phase = Literal["forward", "backward_input", "backward_weight"]
Role = Literal["first", "between", "last"]
PHASES: tuple[Phase, ...] = ("forward", "backward_input", "backward_weight")
PRODUCTS = ("gemm", "convolution")
ATTENTION = ("batch", "heads", "kv_heads", "head_dim", "value_dim", "query_len", "key_len")
SIZES = {
    "gemm": ("m", "n", "k", "batch"),
    "convolution": ("m", "n", "k", "batch"),
    "attention": ATTENTION,
    "norm": ("bytes", "columns"),
    "softmax": ("bytes", "columns"),
    "elementwise": ("bytes",),
    "embedding": ("bytes",),
}
"""Kind of kernel -> the sizes it states."""


def at(size: tuple[int, int], batch: Any) -> Any:
    """Return a size at micro-batch `batch` (a number or a symbolic expression)."""
    return size[0] + size[1] * batch if size[1] else size[0]


@spec
class Op:
    """One kernel, launched `count` times: a product (m, k) x (k, n), fused attention, or memory traffic in bytes.

    A convolution states the sizes of its implicit product (`batch`: its groups) and may state the `channels` of its
    images (of a group; not of a transposed one). `causal` and `masked` say how attention is masked.

    Raises:
        InputError: a size that its kind needs is missing, or one is given that it does not have.
    """

    kind: Literal["gemm", "convolution", "attention", "norm", "softmax", "elementwise", "embedding"]
    count: Annotated[int, whole(1, 10_000_000)] = 1
    m: Size | None = None
    n: Size | None = None
    k: Size | None = None
    batch: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    head_dim: Size | None = None
    value_dim: Size | None = None
    query_len: Size | None = None
    key_len: Size | None = None
    bytes: Size | None = None
    columns: Size | None = None
    channels: Annotated[int, whole(1, 10_000_000)] | None = None
    causal: bool = False
    masked: bool = False

    def __post_init__(self) -> None:
        for name in dict.fromkeys(n for names in SIZES.values() for n in names):
            value, wanted = getattr(self, name), name in SIZES[self.kind]
            if (value is not None) != wanted:
                allowed = "[constant, per sample]" if wanted else "left out"
                raise InputError(name, value, f"{allowed} for kind {self.kind}")
        if self.channels is not None and self.kind != "convolution":
            raise InputError("channels", self.channels, f"left out for kind {self.kind}")

    def flop(self, batch: Any, phase: Phase = "forward") -> Any:
        """Return the FLOP of one launch as torch's FlopCounterMode counts them (a causal mask saves nothing).

        Fused attention takes two products forward and five backward, which computes the scores again
        (arXiv 2205.14135, section 3.1).
        """
        x = {name: at(getattr(self, name), batch) for name in SIZES[self.kind]}
        if self.kind in PRODUCTS:
            return 2 * x["batch"] * x["m"] * x["n"] * x["k"]
        if self.kind != "attention":
            return 0
        dims = (1, 1) if phase == "forward" else (3, 2)
        scores = x["batch"] * x["heads"] * x["query_len"] * x["key_len"]
        return 2 * scores * (dims[0] * x["head_dim"] + dims[1] * x["value_dim"])

    def model_flop(self, phase: Phase, halved: bool) -> int:
        """Return the FLOP of one sample's launch that count for model FLOP utilisation.

        Fused attention's backward pass counts as twice its forward pass; `halved` leaves out what a causal mask hides.
        """
        if self.kind != "attention":
            return int(self.flop(1, phase))
        return int(self.flop(1) * (1 if phase == "forward" else 2)) // (2 if halved and self.causal else 1)

    def inputs(self, batch: Any, phase: Phase = "forward") -> dict[str, Any]:
        """Return the inputs of this kernel's form (sim.costs.kernels.FORMS) for one launch.

        Attention: `flop` (halved by a causal mask, as the forms count), `seq` (keys), `rows` (queries of all heads).
        """
        if self.kind != "attention":
            return {name: at(getattr(self, name), batch) for name in SIZES[self.kind]}
        queries = at(self.query_len, batch) if self.query_len else 0
        rows = at(self.batch or (0, 0), batch) * at(self.heads or (0, 0), batch) * queries
        flop = self.flop(batch, phase) / 2 if self.causal else self.flop(batch, phase)
        return {"flop": flop, "seq": at(self.key_len or (0, 0), batch), "rows": rows}


@spec
class Layer:
    """`count` equal layers in a row; all sizes are of one of them.

    `parameters` counts what no earlier layer holds; `shared` names the parameters that an earlier one does.
    `saved_bytes` is kept from forward to backward (parameters, buffers and the network's input data apart),
    `boundary_bytes` goes to layers further on, `temporary_bytes` is the largest tensor that is neither,
    `tensors` are the parameters that are trained, one by one, of what no earlier layer holds (0: not known),
    `forward_bytes` the most that a host processor has in forward of what is kept and of what a convolution copies for a
    layout of its own (left out without convolutions). `role` is left
    out for a layer of the pipeline; else the part runs in front of them all, between two of them or behind them.

    Raises:
        InputError: a part with a role is counted more than once, or more parameters are trained than there are.
    """

    name: Annotated[str, Field(min_length=1, max_length=400, description="text of 1 to 400 characters")]
    count: Annotated[int, whole(1, 100_000)] = 1
    role: Role | None = None
    parameters: Amount
    trainable_parameters: Amount
    tensors: Annotated[int, whole(0, 1_000_000)] = 0
    shared: dict[str, Amount] = field(default_factory=dict)
    saved_bytes: Size
    boundary_bytes: Size
    temporary_bytes: Size
    forward_bytes: Size | None = None
    forward: list[Op] = field(default_factory=list)
    backward_input: list[Op] = field(default_factory=list)
    backward_weight: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.role and self.count > 1:
            raise InputError("count", self.count, f"1 with role {self.role}")
        if self.trainable_parameters > self.parameters:
            raise InputError(
                "trainable_parameters", self.trainable_parameters, f"at most parameters = {self.parameters}"
            )

    def ops(self, phase: Phase) -> list[Op]:
        """Return the kernels of a phase."""
        found: list[Op] = getattr(self, phase)
        return found

    def flop(self, phase: Phase, batch: Any) -> Any:
        """Return the FLOP of a phase of one layer."""
        return sum(op.count * op.flop(batch, phase) for op in self.ops(phase))


@spec
class LayerTable:
    """A network's layers in the order in which they run; the first and the last are embedding and head, say.

    `dtype` is that of weights and activations; `seq` tokens per sample if the network reads tokens;
    `batches` are the micro-batch sizes at which it was traced.
    """

    schema_version: Annotated[int, whole(VERSION, VERSION)] = VERSION
    kind: Literal["trainsim-layer-table"] = "trainsim-layer-table"
    name: Annotated[str, Field(min_length=1, max_length=100, description="text of 1 to 100 characters")]
    dtype: Literal["bfloat16", "float16", "float32", "float64"]
    seq: Annotated[int, whole(1, 10_000_000)] | None = None
    batches: Annotated[
        list[Annotated[int, whole(1, 10_000)]],
        Field(min_length=3, max_length=100, description="3 to 100 micro-batch sizes"),
    ]
    layers: Annotated[list[Layer], Field(min_length=1, max_length=10_000, description="a list of 1 to 10000 layers")]

    @classmethod
    def load(cls, path: str | Path) -> "LayerTable":
        """Return the table in a JSON or YAML file.

        Raises:
            InputError: no such file, or a field is missing, unknown or out of range.
        """
        return read(cls, load_mapping(Path(path)))

    def save(self, path: str | Path) -> None:
        """Write the table as JSON, whole or not at all; what is empty or has its default is left out.

        Raises:
            InputError: the table is larger than `load` accepts.
        """
        text = json.dumps(self.data(), separators=(",", ":")) + "\n"
        if len(text) > MAX_BYTES[".json"]:
            raise InputError(
                "layers", len(text), f"a table of at most {MAX_BYTES['.json']} bytes (fewer distinct layers)"
            )
        write_atomically(Path(path), text)

    def data(self) -> dict[str, Any]:
        """Return the table as plain data; what is empty or has its default is left out."""
        made: dict[str, Any] = _plain(asdict(self))
        return made

    def each(self) -> Iterator[Layer]:
        """Yield every layer, equal ones as often as they occur."""
        for layer in self.layers:
            for _ in range(layer.count):
                yield layer

    @property
    def parameters(self) -> int:
        """All parameters, shared ones once."""
        return sum(layer.count * layer.parameters for layer in self.layers)

    def flop(self, batch: Any, phase: Phase | None = None) -> Any:
        """Return the FLOP of a phase (None: of all) at micro-batch `batch`."""
        phases = PHASES if phase is None else (phase,)
        return sum(layer.count * layer.flop(p, batch) for layer in self.layers for p in phases)

    def model_flop(self, halved: bool) -> int:
        """Return the model FLOP of forward and backward per sample; `halved`: without what causal masks hide."""
        launches = (
            (layer.count * op.count, op, phase) for layer in self.layers for phase in PHASES for op in layer.ops(phase)
        )
        return sum(count * op.model_flop(phase, halved) for count, op, phase in launches)

    def saved_bytes(self, batch: Any) -> Any:
        """Return the bytes kept from forward to backward at micro-batch `batch`."""
        return sum(layer.count * at(layer.saved_bytes, batch) for layer in self.layers)


def _plain(value: Any) -> Any:
    """Return nested data without None, False and empty collections, which are all defaults here."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v not in (None, False, {}, []) or (v == 0 and v is not False)}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
