"""Where a graph of layers can be cut: its prefixes, what lies behind each cut and what crosses it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum  # exact in any order, so that ties are always broken alike

import numpy as np
from numpy.typing import NDArray

from sim.specs import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layer:
    """One layer of a measured profile: forward and backward of a minibatch (s), output and weights (bytes)."""

    name: str
    kind: str
    seconds: float
    activation_bytes: float
    parameter_bytes: float


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Sets of layers that a cut can leave behind, in an order in which a subset precedes its supersets.

    sets[0] is empty, the last holds every layer. seconds, parameter_bytes: of all layers of a set. output_bytes:
    activations that cross the cut behind it. inside[a, b]: set a is a proper part of set b.
    """

    sets: tuple[frozenset[str], ...]
    seconds: Floats
    parameter_bytes: Floats
    output_bytes: Floats
    inside: NDArray[np.bool_]


def prefixes(layers: Sequence[Layer], edges: Iterable[tuple[str, str]]) -> Prefixes:
    """Return the prefixes of a graph of layers (the antichain states of arXiv 1806.03377, section 3.1).

    Inputs cost nothing and belong to the first stage; tuple elements that nobody reads are left out. A cut grows from
    the first layer along the edges; further sources join with the first layer that needs them.

    Raises:
        InputError: an edge names an unknown layer, the graph has a cycle or several last layers, or is empty.
    """
    graph = _Graph(layers, list(edges))
    found = sorted(graph.grown(), key=lambda s: (len(s), sorted(s)))
    if not found or len(found[-1]) < len(graph.layers):
        raise InputError("edges", len(graph.parents), "a graph in which every layer leads to the last one")
    sets = (frozenset[str](), *found)
    held = [[graph.layers[name] for name in s] for s in sets]
    output = [fsum(graph.layers[n].activation_bytes for n in graph.cut(s)) for s in sets]
    return Prefixes(
        sets,
        np.array([fsum(x.seconds for x in of) for of in held]),
        np.array([fsum(x.parameter_bytes for x in of) for of in held]),
        np.array(output, dtype=float),
        np.array([[a < b for b in sets] for a in sets]),
    )


class _Graph:
    def __init__(self, layers: Sequence[Layer], edges: list[tuple[str, str]]) -> None:
        self.layers = {layer.name: layer for layer in layers}
        unknown = [name for edge in edges for name in edge if name not in self.layers]
        if unknown:
            raise InputError("edges", unknown[0], "names of layers")
        feeding = {source for source, _ in edges}
        for name, layer in list(self.layers.items()):
            unread = layer.kind == "__getitem__" and name not in feeding
            if layer.kind.startswith("Input") or unread:
                del self.layers[name]
        self.parents: dict[str, set[str]] = {name: set() for name in self.layers}
        self.children: dict[str, set[str]] = {name: set() for name in self.layers}
        for source, target in edges:
            if source in self.layers and target in self.layers:
                self.parents[target].add(source)
                self.children[source].add(target)
        self.ancestors = self._ancestors()

    def _ancestors(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        waiting = dict(self.parents)
        while waiting:
            ready = [name for name, parents in waiting.items() if parents <= found.keys()]
            if not ready:
                raise InputError("edges", min(waiting), "a graph without cycles")
            for name in ready:
                found[name] = frozenset(waiting.pop(name)).union(*(found[p] for p in self.parents[name]))
        return found

    def grown(self) -> set[frozenset[str]]:
        """Return every prefix that growing from the first source along the edges leads to."""
        start = [frozenset({name}) for name, parents in self.parents.items() if not parents][:1]
        found, open_ = set(start), list(start)
        while open_:
            at = open_.pop()
            for name in {child for member in at for child in self.children[member]} - at:
                larger = at | {name} | self.ancestors[name]
                if larger not in found:
                    found.add(larger)
                    open_.append(larger)
        return found

    def cut(self, prefix: frozenset[str]) -> set[str]:
        """Return the layers whose activations cross the cut behind a prefix."""
        return {name for name in prefix if self.children[name] - prefix}
