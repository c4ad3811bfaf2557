"""A layer table as a pipeline sees it: what runs in front of it, its kinds of layers in order, what runs behind it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sim.specs.fields import InputError
from sim.specs.table import Layer, LayerTable, Op, Phase, at

MAX_LAYERS, MAX_KINDS = 4_096, 128
FIRST_LETTER = 0x100
"""Letters of traced layers in a model's `pattern` begin behind those of `sim.specs.blocks`."""
NO_SIZE = (0, 0)
ORDER = {"first": 0, None: 1, "between": 1, "last": 2}
Pair = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """Kernels and bytes of one layer or end of the network; sizes are pairs [constant, per sample].

    `inflow` is the boundary of what runs before it: what full recompute keeps of it. `shared` parameters are held
    by an earlier part too; of its own `frozen` ones are not trained.
    `tensors` that are: 0 where nobody counted them.
    """

    parameters: int = 0
    shared: int = 0
    frozen: int = 0
    tensors: int = 0
    saved: Pair = NO_SIZE
    boundary: Pair = NO_SIZE
    temporary: Pair = NO_SIZE
    in_forward: Pair = NO_SIZE
    inflow: Pair = NO_SIZE
    forward: tuple[Op, ...] = ()
    backward_input: tuple[Op, ...] = ()
    backward_weight: tuple[Op, ...] = ()

    @classmethod
    def of(cls, layer: Layer) -> "Part":
        """Return one of the equal layers that `layer` counts."""
        return cls(
            parameters=layer.parameters,
            shared=sum(layer.shared.values()),
            frozen=layer.parameters - layer.trainable_parameters,
            tensors=layer.tensors,
            saved=layer.saved_bytes,
            boundary=layer.boundary_bytes,
            temporary=layer.temporary_bytes,
            in_forward=layer.forward_bytes or NO_SIZE,
            forward=tuple(layer.forward),
            backward_input=tuple(layer.backward_input),
            backward_weight=tuple(layer.backward_weight),
        )

    def then(self, other: "Part") -> "Part":
        """Return the two as one part, `other` behind this one."""
        return Part(
            parameters=self.parameters + other.parameters,
            shared=self.shared + other.shared,
            frozen=self.frozen + other.frozen,
            tensors=self.tensors + other.tensors,
            saved=added(self.saved, other.saved),
            boundary=other.boundary,
            temporary=largest((self.temporary, other.temporary)),
            in_forward=largest((self.in_forward, added(self.saved, other.in_forward))),
            inflow=self.inflow,
            forward=self.forward + other.forward,
            backward_input=self.backward_input + other.backward_input,
            backward_weight=self.backward_weight + other.backward_weight,
        )

    def gradient_bytes(self, batch: Any) -> Any:
        """Return the gradients of a kernel's input and output of the largest size, and the layer's own."""
        return 2 * at(self.temporary, batch) + at(self.boundary, batch)

    def copied_bytes(self, batch: Any) -> Any:
        """Return how much more than is kept a host processor has in forward, 0 without convolutions."""
        return 0 if self.in_forward == NO_SIZE else at(self.in_forward, batch) - at(self.saved, batch)

    def ops(self, phase: Phase) -> tuple[Op, ...]:
        """Return the kernels of a phase."""
        found: tuple[Op, ...] = getattr(self, phase)
        return found


def added(one: Pair, other: Pair) -> Pair:
    """Return the sum of two sizes."""
    return one[0] + other[0], one[1] + other[1]


def largest(sizes: Iterable[Pair]) -> Pair:
    """Return the size that is largest at large micro-batches."""
    return max(sizes, key=lambda size: size[::-1], default=NO_SIZE)


@dataclass(frozen=True)
class Network:
    """A table's ends and the parts between them: `pattern` names the kind of every pipeline layer by a letter."""

    first: Part
    last: Part
    pattern: str
    kinds: Mapping[str, Part]

    @classmethod
    def of(cls, table: LayerTable) -> "Network":
        """Return the parts of `table`; what runs between two layers belongs to the one in front.

        Raises:
            InputError: numbers are of 64 bits, a role is out of order, or the layers are none or too many.
        """
        if table.dtype == "float64":
            raise InputError("dtype", table.dtype, "bfloat16, float16 or float32 (trace with --dtype)")
        count = sum(layer.count for layer in table.layers if layer.role is None)
        if not 1 <= count <= MAX_LAYERS:
            raise InputError("layers", f"{count} pipeline layers", f"1 to {MAX_LAYERS} layers without a role")
        ends, stack = {"first": Part(), "last": Part()}, list[Part]()
        for n, layer in enumerate(table.layers):
            part = Part.of(layer)
            if (n and ORDER[layer.role] < ORDER[table.layers[n - 1].role]) or (layer.role == "between" and not stack):
                raise InputError(f"layers.{n}.role", layer.role, "first, then layers and what is between, then last")
            if layer.role is None:
                stack += [part] * layer.count
            elif layer.role == "between":
                stack[-1] = stack[-1].then(part)
            else:
                ends[layer.role] = ends[layer.role].then(part)
        letters: dict[Part, str] = {}
        pattern = "".join(_lettered(stack, ends["first"].boundary, letters))
        return cls(ends["first"], ends["last"], pattern, {letter: part for part, letter in letters.items()})

    @property
    def stack(self) -> Iterator[Part]:
        """Every pipeline layer in order."""
        return (self.kinds[letter] for letter in self.pattern)

    @property
    def parts(self) -> Iterator[Part]:
        """Everything in order."""
        yield self.first
        yield from self.stack
        yield self.last

    @cached_property
    def tied(self) -> bool:
        """Whether the last part uses parameters of the first."""
        return self.last.shared > 0 and self.first.parameters > 0

    @cached_property
    def shares(self) -> bool:
        """Whether parameters are shared otherwise: a pipeline would have to keep copies of them equal."""
        return any(part.shared for part in self.kinds.values()) or (self.last.shared > 0 and not self.tied)

    @cached_property
    def boundary(self) -> Pair:
        """The largest size that one pipeline layer hands to the next."""
        return largest(part.boundary for part in self.kinds.values())

    def notes(self) -> Iterator[str]:
        """Yield what a simulation of this network takes for granted."""
        if len({part.boundary for part in self.kinds.values()}) > 1:
            constant, each = self.boundary
            yield f"pipeline messages are all as large as the largest: {constant + each} bytes for one sample"
        frozen = sum(part.frozen for part in self.parts)
        if frozen:
            yield f"{frozen} frozen parameters have gradients and optimizer states like the others (an upper bound)"
        masked = sum(op.count for part in self.parts for op in part.forward if op.kind == "attention" and op.masked)
        if masked:
            yield f"{masked} of the attentions read a mask and compute all scores, also those that it hides"


def _lettered(stack: Iterable[Part], inflow: Pair, letters: dict[Part, str]) -> Iterator[str]:
    """Yield the letter of every part behind `inflow`, new ones into `letters`."""
    known: dict[tuple[int, Pair], str] = {}  # equal layers are mostly one object: hashing a part takes a while
    for part in stack:
        key = (id(part), inflow)
        if key not in known:
            placed = replace(part, inflow=inflow)
            known[key] = letters.setdefault(placed, chr(FIRST_LETTER + len(letters)))
            if len(letters) > MAX_KINDS:
                raise InputError("layers", f"more than {MAX_KINDS} different", f"at most {MAX_KINDS} different layers")
        inflow = part.boundary
        yield known[key]
