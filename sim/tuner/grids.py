"""Compiled functions over whole grids: every operation on the axes that it depends on alone, block by block.

A compiled function adds its terms from left to right, so that one of them that varies along all axes makes all that
follow as large. Here the function is traced once: sums, products and extremes first join the terms that vary along the
same axes; what does not vary along the axis that is cut into blocks is computed once, the rest into buffers that stay
in the cache. The values are those of the function up to rounding, since terms are added in another order.
"""

import os
from bisect import insort
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from math import inf, isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.costs.algebra import Compiled

FAMILIES = ((np.add, np.subtract), (np.multiply, np.true_divide), (np.maximum, None), (np.minimum, None))
"""Operations whose terms may be joined in any order, and the inverse of each."""

FAMILY = {ufunc: family for family in FAMILIES for ufunc in family if ufunc}
POWERS = {2.0: np.square, 0.5: np.sqrt, -1.0: np.reciprocal}
"""What NumPy's own `**` does for these exponents."""

BLOCK = 131_072
"""Elements of a block's largest array: enough that Python's own work for each block counts little."""

ALIKE = 1 << 32
"""The bit of an axis that stands for the one that is cut: of rows that are alike there is one along it."""

EXACT = (0.0, 1.0)
"""Values of symbols for which a function is made anew: most of its terms are then none, or their only factor."""

Node = tuple[Any, tuple[int, ...]]
"""An operation (a ufunc) and the nodes it reads; or a symbol's name or a number, and none."""


def distinct(*columns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of all that differ in whole numbers, and of every row which of those it equals."""
    key = columns[0]
    for column in columns[1:]:
        key = key * (int(column.max(initial=0)) + 1) + column
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which.ravel()


class _Nodes:
    """Nodes that are equal are one; every node comes after what it reads."""

    def __init__(self) -> None:
        self.every: list[Node] = []
        self.known: dict[Node, int] = {}

    def add(self, what: Any, reads: tuple[int, ...] = ()) -> int:
        """Return the index of a node."""
        node = (what, reads)
        if node not in self.known:
            self.known[node] = len(self.every)
            self.every.append(node)
        return self.known[node]


class _Traced(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array while a function is traced."""

    def __init__(self, nodes: _Nodes, index: int) -> None:
        self.nodes, self.index = nodes, index

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> "_Traced":
        if method != "__call__" or options:
            raise TypeError(f"{ufunc.__name__}.{method} is no plain operation")
        if ufunc is np.power and not isinstance(inputs[1], _Traced) and float(inputs[1]) in POWERS:
            ufunc, inputs = POWERS[float(inputs[1])], inputs[:1]
        reads = (x.index if isinstance(x, _Traced) else self.nodes.add(float(x)) for x in inputs)
        return _Traced(self.nodes, self.nodes.add(ufunc, tuple(reads)))


def _traced(function: Compiled) -> tuple[list[Node], list[int]]:
    """Return all nodes of a function, and those of its outputs."""
    nodes = _Nodes()
    symbols: dict[str, Any] = {name: _Traced(nodes, nodes.add(name)) for name in function.symbols}
    out = function(symbols)
    return nodes.every, [v.index if isinstance(v, _Traced) else nodes.add(float(v)) for v in out.values()]


def _plain(axes: int, cut: int) -> int:
    return axes & ~ALIKE if axes & cut else axes


class _Axed:
    """Nodes, and of every one the axes that it varies along, as bits; `ALIKE` where it does along the one of bit `cut`,
    but not between rows that are alike."""

    def __init__(self, varies: Mapping[str, int], cut: int) -> None:
        self.nodes, self.axes, self.varies, self.cut = _Nodes(), list[int](), varies, cut

    def _add(self, what: Any, reads: tuple[int, ...] = ()) -> int:
        index = self.nodes.add(what, reads)
        if index == len(self.axes):
            along = self.varies.get(what, 0) if isinstance(what, str) else 0
            for i in reads:
                along |= self.axes[i]
            self.axes.append(_plain(along, self.cut))
        return index


class _Joined(_Axed):
    """The nodes of a function with terms that vary along the same axes joined first."""

    def __init__(self, function: Compiled, varies: Mapping[str, int], cut: int) -> None:
        self.old, ends = _traced(function)
        super().__init__(varies, cut)
        self.made = dict[int, int]()
        readers = [0] * len(self.old)
        for index in [*ends, *(i for _, reads in self.old for i in reads)]:
            readers[index] += 1
        self.alone = [n == 1 for n in readers]
        for index, (what, _) in enumerate(self.old):
            if readers[index] and not (self.alone[index] and what in FAMILY):
                self._at(index)
        self.ends = [self._at(i) for i in ends]

    def _new(self, index: int) -> int:
        what, reads = self.old[index]
        if what not in FAMILY:
            return self._add(what, tuple(self._at(i) for i in reads))
        family = FAMILY[what]
        return self._fold(family, self._terms(family, index, False))

    def _at(self, index: int) -> int:
        if index not in self.made:
            self.made[index] = self._new(index)
        return self.made[index]

    def _terms(self, family: tuple[Any, Any], index: int, inverse: bool) -> list[tuple[int, bool]]:
        """Return the terms of a node, and which of them are taken away (or divided by)."""
        what, (first, second) = self.old[index]
        found = []
        for i, other in ((first, inverse), (second, inverse != (what is family[1]))):
            inner = self.alone[i] and FAMILY.get(self.old[i][0]) is family
            found += self._terms(family, i, other) if inner else [(self._at(i), other)]
        return found

    def _fold(self, family: tuple[Any, Any], terms: list[tuple[int, bool]]) -> int:
        """Return the node of all terms together: first what has the fewest elements, with what adds the fewest."""
        left = sorted(terms, key=lambda term: (self._size(self.axes[term[0]]), term))
        while len(left) > 1:
            one, minus = left.pop(0)
            both = [(self._size(self.axes[one] | self.axes[i]), inverse != minus, i) for i, inverse in left]
            _, differ, other = best = min(both)
            taken = left.pop(both.index(best))[1]
            reads = (other, one) if minus and not taken else (one, other)
            index = self._add(family[int(differ)], reads)
            insort(left, (index, minus and taken), key=lambda term: (self._size(self.axes[term[0]]), term))
        index, inverse = left[0]
        return self._add(np.negative if family[0] is np.add else np.reciprocal, (index,)) if inverse else index

    def _size(self, axes: int) -> tuple[int, int]:
        """Return what orders axes by how much varies along them: rows first, as there are many."""
        return axes & self.cut, _plain(axes, self.cut).bit_count()


class _Folded(_Axed):
    """The nodes of a joined function where some symbols have one value, those of `known` a number of `EXACT`: of fewer
    operations, in the same order, so that every value stays what it is to the last bit."""

    def __init__(self, joined: _Joined, varies: Mapping[str, int], known: Mapping[str, float]) -> None:
        super().__init__(varies, joined.cut)
        self.known, made = known, list[int]()
        for what, reads in joined.nodes.every:
            made.append(self._new(what, tuple(made[i] for i in reads)))
        self.ends = [made[i] for i in joined.ends]

    def _new(self, what: Any, reads: tuple[int, ...]) -> int:
        if not reads:
            return self._add(self.known.get(what, what))
        numbers = [self._number(i) for i in reads]
        if None not in numbers:
            with np.errstate(all="ignore"):
                value = float(what(*numbers))
            return self._add(value) if isfinite(value) else self._add(what, reads)
        if what in (np.add, np.subtract):
            return self._sum(what, *reads, *numbers)
        if what in (np.multiply, np.true_divide):
            return self._product(what, *reads, *numbers)
        return self._add(what, reads)

    def _product(self, what: Any, one: int, other: int, a: float | None, b: float | None) -> int:
        if a == 0 or (b == 0 and what is np.multiply):
            return self._add(0.0)
        if b == 1:
            return one
        if what is np.multiply and (a == 1 or -1 in (a, b)):
            varying = other if b is None else one
            return varying if a == 1 else self._add(np.negative, (varying,))
        return self._add(what, (one, other))

    def _sum(self, what: Any, one: int, other: int, a: float | None, b: float | None) -> int:
        if b == 0:
            return one
        if a == 0:
            return other if what is np.add else self._add(np.negative, (other,))
        if self.nodes.every[other][0] is np.negative:
            return self._add(np.subtract if what is np.add else np.add, (one, *self.nodes.every[other][1]))
        if what is np.add and self.nodes.every[one][0] is np.negative:
            return self._add(np.subtract, (other, *self.nodes.every[one][1]))
        return self._add(what, (one, other))

    def _number(self, index: int) -> float | None:
        what = self.nodes.every[index][0]
        return what if isinstance(what, float) else None


class _Stage:
    """Some nodes in their order, each with a buffer; of nodes that vary along the same axes one after another shares
    one. rows, gathered: nodes from elsewhere that it reads, with its rows and with one of those that are alike."""

    def __init__(self, joined: _Folded, order: Sequence[int], kept: set[int]) -> None:
        nodes, own = joined.nodes.every, set(order)
        last = {i: at for at, index in enumerate(order) for i in nodes[index][1]}
        self.steps = [(nodes[i][0], *(*nodes[i][1], None)[:2], i) for i in order]
        read = sorted({i for index in order for i in nodes[index][1]} - own)
        self.rows = [i for i in read if joined.axes[i] & joined.cut]
        several = any(joined.axes[i] & joined.cut for i in order)
        self.gathered = [i for i in read if joined.axes[i] & ALIKE and several]
        self.buffer: dict[int, int] = {}
        self.along: list[int] = []
        free: dict[int, list[int]] = {}
        for at, index in enumerate(order):
            for i in set(nodes[index][1]):
                if i in own and last[i] == at and i not in kept:
                    free.setdefault(joined.axes[i], []).append(self.buffer[i])
            left = free.get(joined.axes[index])
            if index in kept or not left:
                self.buffer[index] = len(self.along)
                self.along.append(joined.axes[index])
            else:
                self.buffer[index] = left.pop()


class _Program:
    """A function whose symbols vary along given axes, `cut` along one of them.

    numbers: of symbols that have one value that number if it is of `EXACT`, infinity if it is any other.
    """

    def __init__(
        self, function: Compiled, axes: tuple[int, ...], cut: int, numbers: tuple[tuple[str, float], ...]
    ) -> None:
        varies, same = dict(zip(function.symbols, axes, strict=True)), dict(numbers)
        known = {name: value for name, value in same.items() if value in EXACT}
        joined = _Folded(_joined(function, axes, cut), varies | dict.fromkeys(same, 0), known)
        nodes, self.axes = joined.nodes.every, joined.axes
        order = _needed(nodes, joined.ends)
        self.given = {i: nodes[i][0] for i in order if not nodes[i][1]}
        self.cut, self.size, self.ends = cut, len(nodes), joined.ends
        parts: tuple[list[int], ...] = ([], [], [], [])
        for i in order:
            if nodes[i][1]:
                one = joined.axes[i] & (cut | ALIKE)
                more = (joined.axes[i] & ~cut).bit_count() > 1
                parts[0 if not one else 1 if one == ALIKE else 3 if more else 2].append(i)
        ends, later = set(self.ends), [{i for index in part for i in nodes[index][1]} for part in parts]
        self.once = [(nodes[i], i) for i in parts[0]]
        self.alike = _Stage(joined, parts[1], later[2] | later[3] | ends)
        self.long = _Stage(joined, parts[2], later[3] | ends)
        self.long.rows = [i for i in self.given if self.axes[i] & cut]  # also those that only the short blocks read
        self.short = _Stage(joined, parts[3], ends)


def _needed(nodes: Sequence[Node], ends: Sequence[int]) -> list[int]:
    """Return the nodes that lead to `ends`, each as late as the first that reads it."""
    order: list[int] = []
    done: set[int] = set()
    waiting = list(reversed(ends))
    while waiting:
        index = waiting[-1]
        left = [i for i in nodes[index][1] if i not in done]
        if index in done or not left:
            waiting.pop()
            if index not in done:
                done.add(index)
                order.append(index)
        else:
            waiting.extend(left)
    return order


@lru_cache(maxsize=64)
def _joined(function: Compiled, axes: tuple[int, ...], cut: int) -> _Joined:
    return _Joined(function, dict(zip(function.symbols, axes, strict=True)), cut)


_program = lru_cache(maxsize=256)(_Program)


def evaluated(
    function: Compiled, values: Mapping[str, Any], along: int = 0, alike: Any = None, threads: bool = True
) -> dict[str, Any]:
    """Return the outputs of a compiled function of numbers and arrays, each of its own broadcast shape.

    along: the axis of the arrays' common shape that is cut into blocks, which go to all cores if there are `threads`.
    alike [along that axis]: from 0 on, equal for rows for which most symbols have the same values: what depends on
    these alone is computed for one of them.

    Raises:
        KeyError: a symbol has no value.
    """
    given = {name: np.asarray(values[name], dtype=float) for name in function.symbols}
    shape = np.broadcast_shapes(*{each.shape for each in given.values()})
    shape = np.moveaxis(np.broadcast_to(0, shape), along, -1).shape if shape else shape
    for name, each in given.items():
        if each.ndim:  # the long axis last, so that NumPy's innermost loops are long
            given[name] = np.moveaxis(each.reshape((1,) * (len(shape) - each.ndim) + each.shape), along, -1)
    axes = {k: sum((n > 1) << i for i, n in enumerate(v.shape)) for k, v in given.items()}
    cut = 1 << len(shape) - 1 if shape and shape[-1] > 1 else 0
    if alike is not None and cut:
        first = np.unique(alike, return_index=True)[1]
        for name, each in given.items():
            one = each[..., first] if axes[name] & cut else each
            if axes[name] & cut and (one[..., alike] == each).all():
                given[name], axes[name] = one, axes[name] & ~cut | ALIKE
    same = {name: each.flat[0] for name, each in given.items() if each.size and (each == each.flat[0]).all()}
    given |= {name: np.asarray(value) for name, value in same.items()}
    numbers = tuple((name, float(value) if value in EXACT else inf) for name, value in same.items())
    run = _Run(_program(function, tuple(axes.values()), cut, numbers), given, shape, alike)
    run.all(os.cpu_count() if threads else 1)
    found = (np.moveaxis(each, -1, along) if np.ndim(each) else each for each in run.found)
    return dict(zip(function.outputs, found, strict=True))


class _Run:
    """One evaluation of a program. found: its outputs."""

    def __init__(self, program: _Program, given: Mapping[str, Any], shape: tuple[int, ...], alike: Any) -> None:
        self.program, self.shape, self.alike = program, shape, alike
        made = {*program.long.buffer, *program.short.buffer}
        self.out = {i: np.empty(self._dims(program.axes[i], shape[-1])) for i in program.ends if i in made}
        self.values: list[Any] = [None] * program.size
        for i, what in program.given.items():
            self.values[i] = (given[what] if given[what].ndim else given[what].item()) if what in given else what
        for (operation, reads), i in program.once:
            self.values[i] = operation(*[self.values[k] for k in reads])
        if program.alike.steps:
            rows = int(alike.max()) + 1
            buffers = [np.empty(self._dims(axes, rows)) for axes in program.alike.along]
            self.values = self._stage(program.alike, buffers, self.values, (0, rows), 0)
        self.found = [self.out[i] if i in self.out else self._whole(i) for i in program.ends]
        self.rows = [max(1, BLOCK // self._inner(stage)) for stage in (program.long, program.short)]

    def _whole(self, index: int) -> Any:
        """Return all rows of an output that is known before any block."""
        value = self.values[index]
        return value[..., self.alike] if self.program.axes[index] & ALIKE else value

    def _dims(self, axes: int, rows: int) -> tuple[int, ...]:
        """Return the shape of what varies along `axes` in a block of so many rows."""
        others = (n if axes >> k & 1 else 1 for k, n in enumerate(self.shape[:-1]))
        return *others, rows if axes & (self.program.cut | ALIKE) else 1

    def _inner(self, stage: _Stage) -> int:
        """Return the elements for each row of the largest array of a stage."""
        return max((prod(self._dims(axes, 1)) for axes in stage.along), default=1)

    def all(self, cores: int | None) -> None:
        """Evaluate every block."""
        if not self.out:
            return
        whole, long = self.shape[-1], self.rows[0]
        each = max(long, -(-whole // (4 * (cores or 1) * long)) * long)
        parts = [(first, min(whole, first + each)) for first in range(0, whole, each)]
        if len(parts) == 1 or cores == 1:
            self._part((0, whole))
            return
        with ThreadPoolExecutor(cores) as threads:
            list(threads.map(self._part, parts))

    def _part(self, rows: tuple[int, int]) -> None:
        """Evaluate the blocks of some rows, all in the same buffers."""
        (begin, end), (long, short), program = rows, self.rows, self.program
        longs, shorts = (
            [np.empty(self._dims(axes, min(n, end - begin))) for axes in stage.along]
            for stage, n in ((program.long, long), (program.short, short))
        )
        for first in range(begin, end, long):
            last = min(end, first + long)
            values = self._stage(program.long, longs, self.values, (first, last), 0)
            for start in range(first, last, short) if program.short.steps else ():
                self._stage(program.short, shorts, values, (start, min(last, start + short)), first)

    def _stage(
        self, stage: _Stage, buffers: Sequence[Any], values: Sequence[Any], rows: tuple[int, int], origin: int
    ) -> list[Any]:
        """Return all values after a stage has run for some rows; of those that it reads and that are cut, `values` has
        the rows from `origin` on; of those that are alike a stage before this one may have gathered its own rows."""
        (first, last), found = rows, list(values)
        for i in stage.rows:
            found[i] = values[i][..., first - origin : last - origin]
        for i in stage.gathered:
            found[i] = self.values[i].take(self.alike[first:last], -1)
        for i, k in stage.buffer.items():
            found[i] = self.out[i][..., first:last] if i in self.out else buffers[k][..., : last - first]
        for operation, one, other, i in stage.steps:
            if other is None:
                operation(found[one], out=found[i])
            else:
                operation(found[one], found[other], out=found[i])
        return found
