"""Chains for the tests of solvers: seeded small spaces with their raw points, larger ones like the tuner's."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from sim.tuner.solvers.chain import Cell, Chain, frontier


@dataclass(frozen=True)
class Small:
    """A chain and, by cell, the points before dominated ones were dropped [point, (t, x, d, o)]."""

    chain: Chain
    raw: dict[Cell, np.ndarray]


def small(seed: int, whole: bool = False) -> Small:
    """Return a random space that can be enumerated; `whole`: times are whole numbers.

    A third has x = t and o = 0, a third o = 0. A quarter of the spaces has two device types, half offer cells that
    depend on the place, and a few have no solution (the others offer the cells of one drawn before).
    """
    rng = np.random.default_rng(seed)
    stages, types = int(rng.integers(1, 6)), 2 if seed % 4 == 0 else 1

    def size():
        return int(rng.integers(seed % 5 > 0, 4)), *map(int, rng.integers(0, 2 + (types == 1), types))

    drawn = [size() for _ in range(stages)]
    layers, *devices = (sum(column) for column in zip(*drawn, strict=True))
    raw: dict[Cell, np.ndarray] = {}

    def cell(length, *uses):
        count = int(rng.integers(1, 9))
        points = rng.uniform(1, 10, (count, 2)) * [length + 0.5, 3] * rng.uniform(1, 2) - [0, rng.integers(0, 4)]
        points = np.insert(points, 1, points[:, 0] * rng.uniform(0.5, 1.2, count) ** (seed % 3 > 0), axis=1)
        points = np.column_stack([points, rng.choice(10.0 * rng.random(3), count) * (seed % 3 > 1)])
        points = np.round(points, 0 if whole else 3)
        t, x, d, o = points.T
        keep = frontier(t, d, x, o) if seed % 3 else frontier(t, d)
        made = Cell(length, uses, t[keep], d[keep], *((x[keep], o[keep]) if seed % 3 else ()))
        raw[made] = points
        return made

    def offered(stage):
        more = {size() for _ in range(rng.integers(3, 12))}
        return [cell(*size) for size in sorted(more | ({drawn[stage]} if seed % 10 != 3 else set()))]

    offers = [[offered(stage) for _ in range(1 + seed % 2)] for stage in range(stages)]

    def cells(stage, left, used):
        return offers[stage][(left + sum(used)) % len(offers[stage])]

    fill = (1.0, 1.0, 0.5, 0.0)[seed // 4 % 4]
    return Small(Chain(stages, layers, tuple(devices), int(rng.choice([1, 2, 8, 64])), cells, fill), raw)


def table(
    stages: int, layers: int, lengths: int, points: int, seed: int = 0, microbatches: int = 0, barrier: bool = False
) -> Chain:
    """Return a chain of the tuner's kind: the frontier of a stage follows from its index and length.

    Lengths are the `lengths` nearest to the mean. Trading memory for time slows a stable microbatch by up to a third
    and saves up to three of them outside; earlier stages, with more microbatches in flight, pay more. With a `barrier`
    there is an optimizer behind it, as long as the shares on the host (eighths) and the layers make it, and the way
    through a stage is shorter than its pace by up to a tenth.
    """
    rng = np.random.default_rng(seed)
    mean = layers // stages
    nearest = sorted(sorted(range(1, 2 * mean + lengths), key=lambda n: (abs(n - mean), n))[:lengths])

    @cache
    def cell(stage, length):
        base = length + (0.3 if stage == 0 else 0.8 if stage == stages - 1 else 0.0) + rng.uniform(0, 0.05)
        t = base * (1 + np.sort(rng.uniform(0, 0.35, points)) * (1 + (stages - stage) / stages))
        d = base * np.sort(rng.uniform(0, 3, points))[::-1]
        if not barrier:
            return Cell(length, (1,), t * 1e-2, d * 1e-2)
        o = length * (1 + rng.integers(0, 9, points) / 4)
        return Cell(length, (1,), t * 1e-2, d * 1e-2, t * rng.uniform(0.9, 1.0, points) * 1e-2, o * 1e-2)

    @cache
    def cells(stage):
        return tuple(cell(stage, length) for length in nearest)

    return Chain(stages, layers, (stages,), microbatches or 4 * stages, lambda stage, left, used: cells(stage))


def scaled(chain: Chain, by: float) -> Chain:
    """Return the chain with all times multiplied."""

    @cache
    def other(cell):
        return replace(cell, **{name: getattr(cell, name) * by for name in "txdo"})

    return replace(chain, cells=lambda *place: tuple(other(cell) for cell in chain.cells(*place)))


def brute(small: Small) -> float:
    """Return the least value over every raw choice, infinite where there is none; by the definition alone."""
    return min(best_by_cells(small).values(), default=float("inf"))


def best_by_cells(small: Small) -> dict[tuple[Cell, ...], float]:
    """Return the least value over the raw points of every way to divide layers and devices."""
    chain, found = small.chain, {}

    def visit(stage, left, used, later):
        if stage < 0:
            if left == 0 and used == chain.devices:
                found[later] = float(_least(chain, [small.raw[cell] for cell in later]))
            return
        for cell in chain.cells(stage, left, used):
            taken = tuple(a + b for a, b in zip(used, cell.uses, strict=True))
            if cell.layers <= left and all(a <= b for a, b in zip(taken, chain.devices, strict=True)):
                visit(stage - 1, left - cell.layers, taken, (cell, *later))

    visit(chain.stages - 1, chain.layers, (0,) * len(chain.devices), ())
    return found


def _least(chain, stages):
    """Return the least value over the product of the stages' points."""
    grids = np.ix_(*(np.arange(len(points)) for points in stages))
    surplus, before, slowest, last = 0.0, 0.0, 0.0, 0.0
    for points, grid in zip(stages, grids, strict=True):
        t, x, d, o = (points[grid, column] for column in range(4))
        surplus = np.maximum(surplus, d - before)
        before, slowest, last = before + chain.fill * x, np.maximum(slowest, t), np.maximum(last, o)
    return ((chain.microbatches - chain.fill) * slowest + before + surplus + last).min()
