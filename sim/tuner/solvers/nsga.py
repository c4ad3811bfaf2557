"""NSGA-II (Deb et al., IEEE Transactions on Evolutionary Computation 6(2), 2002) on the two terms of the objective.

Its objectives are the slowest stage, max t, and the rest, fill and surplus: for any number of microbatches the best
choice is on the front of these two. A genome holds two numbers in [0, 1) per stage (see `Graph.decode`), so that every
genome is a legal choice.
"""

import numpy as np
from numpy.typing import NDArray

from sim.tuner.solvers.chain import USUAL, Chain, Choice, Effort, Floats, Ints, Solution, value
from sim.tuner.solvers.graph import Graph, on_graph, unproven

Bools = NDArray[np.bool_]
CHOICES, POPULATION = 5_000, 64
WIDTH = 0.1
"""Standard deviation of a small mutation; as many mutations draw a number anew."""


def nsga(chain: Chain, effort: Effort = USUAL) -> Solution:
    """Return the best choice by value that the evolution has met; steps are choices evaluated."""
    most = CHOICES if effort.steps is None else effort.steps
    return on_graph(chain, effort, lambda graph: _Evolution(chain, effort, graph).run(most))


class _Evolution:
    """A population of genomes [choice, stage, 2], its two objectives (s), and the best choice met."""

    def __init__(self, chain: Chain, effort: Effort, graph: Graph) -> None:
        self.chain, self.effort, self.graph = chain, effort, graph
        self.rng = np.random.default_rng(effort.seed)
        self.best: Choice | None = None
        self.least, self.evaluated = np.inf, 0

    def run(self, most: int) -> Solution:
        genomes = self.rng.random((min(POPULATION, most), self.chain.stages, 2))
        terms = self._terms(genomes)
        while 0 < len(genomes) <= most - self.evaluated and not self.effort.stop():
            children = self._children(genomes, *_standing(terms))
            genomes, terms = np.concatenate([genomes, children]), np.concatenate([terms, self._terms(children)])
            rank, crowding = _standing(terms)
            keep = np.lexsort((-crowding, rank))[:POPULATION]
            genomes, terms = genomes[keep], terms[keep]
        return unproven(self.chain, self.effort, self.best, self.evaluated)

    def _terms(self, genomes: Floats) -> Floats:
        terms = np.zeros((len(genomes), 2))
        for i, genome in enumerate(genomes):
            choice = self.graph.decode(genome)
            reached, slowest = value(self.chain, choice), choice.t.max()
            terms[i] = slowest, reached - (self.chain.microbatches - self.chain.fill) * slowest
            if reached < self.least:
                self.least, self.best = reached, choice
        self.evaluated += len(genomes)
        return terms

    def _children(self, genomes: Floats, rank: Ints, crowding: Floats) -> Floats:
        """Return as many: parents by binary tournament, genes of either, about two of them mutated."""
        number, rng = len(genomes), self.rng
        pairs = rng.integers(0, number, (2, number, 2))
        standing = np.empty(number, dtype=np.int64)
        standing[np.lexsort((-crowding, rank))] = np.arange(number)
        one, other = (genomes[np.where(standing[a] < standing[b], a, b)] for a, b in (p.T for p in pairs))
        children = np.where(rng.random(genomes.shape[:2])[:, :, None] < 0.5, one, other)
        near = np.mod(children + rng.normal(0, WIDTH, children.shape), 1)
        mutated = np.where(rng.random(children.shape) < 0.5, near, rng.random(children.shape))
        children = np.where(rng.random(children.shape) < 1 / self.chain.stages, mutated, children)
        below_one: Floats = np.minimum(children, np.nextafter(1.0, 0.0))  # mod can round up to 1
        return below_one


def _standing(terms: Floats) -> tuple[Ints, Floats]:
    """Return the rank of each front, 0 the best, and the crowding distance within it (section III of the paper)."""
    one, other = terms[:, None], terms[None]
    dominated: Bools = np.all(one <= other, axis=2) & np.any(one < other, axis=2)
    rank, crowding = np.full(len(terms), -1), np.zeros(len(terms))
    for front in range(len(terms)):
        open_ = rank < 0
        if not open_.any():
            break
        members = np.flatnonzero(open_ & ~dominated[open_].any(axis=0))
        rank[members] = front
        for column in terms[members].T:
            order = np.argsort(column, kind="stable")
            span = (column[order[-1]] - column[order[0]]) or 1.0
            crowding[members[order[1:-1]]] += (column[order[2:]] - column[order[:-2]]) / span
            crowding[members[order[[0, -1]]]] = np.inf
    return rank, crowding
