"""Orders of every kind with random durations, drawn by hypothesis."""

import numpy as np
from hypothesis import strategies as st

from sim.engine.graph import Graph, graph_of
from sim.engine.program import Program, Stream
from sim.engine.timeline import Durations
from sim.schedules import SCHEDULES, Kind, build
from tests.schedules.shapes import shapes

SYNCHRONOUS = [name for name, kind in SCHEDULES.items() if not kind.asynchronous]


@st.composite
def durations(draw, stages, largest=1_000):
    """Return ticks of every kind on every stage; B is I + W."""
    column = st.lists(st.integers(1, largest), min_size=stages, max_size=stages).map(np.array)
    table = {kind: draw(column) for kind in (Kind.F, Kind.I, Kind.W, Kind.REDUCE_GRAD, Kind.OPTIMIZER)}
    message = st.lists(st.integers(0, draw(st.sampled_from([0, 10, 3_000]))), min_size=stages, max_size=stages)
    return Durations(table | {Kind.B: table[Kind.I] + table[Kind.W]}, draw(message.map(np.array)))


@st.composite
def problems(draw, name=None, names=SYNCHRONOUS):
    """Return an order and durations."""
    name = name or draw(st.sampled_from(list(names)))
    shape = draw(shapes(name))
    each = draw(durations(shape.ranks * shape.chunks))
    return build(name, shape, each.work()), each


@st.composite
def shared_programs(draw):
    """Return any operations on up to four ranks with streams, lanes and links of their own, in an order that runs."""
    n, ranks = draw(st.integers(1, 25)), draw(st.integers(1, 4))
    pick = st.lists(st.integers(0, 10_000), min_size=n, max_size=n)
    rank = np.array(draw(pick)) % ranks
    stream = np.array(draw(pick)) % (len(Stream) - 1)
    edges = [sorted({s % i for s in draw(st.lists(st.integers(0, 10_000), max_size=2))}) if i else [] for i in range(n)]
    first = np.cumsum([0, *map(len, edges)])
    source = np.array([s for each in edges for s in each], dtype=np.int64)
    zero = np.zeros(n, dtype=np.int64)
    graph = Graph(
        rank, zero, zero, np.arange(n), rank * len(Stream) + stream, first, source,
        np.full(len(source), -1), np.zeros(n, dtype=bool),
    )  # fmt: skip
    duration = np.array(draw(st.lists(st.integers(0, 500), min_size=n, max_size=n)))
    lag = np.array(draw(st.lists(st.integers(0, 50), min_size=len(source), max_size=len(source))), dtype=np.int64)
    some = st.lists(st.integers(0, 2), max_size=2, unique=True)
    used = [[] if s == Stream.COMPUTE else draw(some) for s in stream.tolist()]
    links = np.array([x for each in used for x in each], dtype=np.int64)
    return Program(graph, duration, lag, stream, np.cumsum([0, *map(len, used)]), links)


def program_of(problem):
    """Return the program of an order with durations."""
    order, each = problem
    return each.program(graph_of(order))
