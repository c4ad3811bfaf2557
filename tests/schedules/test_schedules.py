"""The schedules: contract, the corpus of other generators' orders, refusals."""

from collections import Counter
from itertools import accumulate, product

import pytest

from sim.engine.events import run_events
from sim.engine.graph import DeadlockError
from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.schedules import CLOSED, SCHEDULES, Action, IllegalScheduleError, Kind, Schedule, Shape, Work, build
from sim.specs.pipelines import PIPELINES
from tests.contracts.longest_path import WaitsForeverError, run
from tests.contracts.schedule import UNIT, ClosedContract, ScheduleContract
from tests.schedules.corpus import OURS, rows, shape_of, texts

PLAIN = tuple(Shape(p, m) for p in (1, 2, 4) for m in (1, 2, 4, 9))


class TestGPipe(ClosedContract):
    name = "gpipe"
    shapes = PLAIN


class TestOneFOneB(ClosedContract):
    name = "1f1b"
    shapes = PLAIN


class TestInterleaved(ClosedContract):
    name = "interleaved"
    shapes = tuple(Shape(p, p * g, v) for p in (2, 4) for v in (2, 3) for g in (1, 2, 3))


class TestLoopedBFS(ClosedContract):
    name = "looped-bfs"
    shapes = tuple(Shape(p, m, v) for p in (1, 2, 5) for m in (1, 3, 8) for v in (2, 3))


class TestZBH1(ClosedContract):
    name = "zb-h1"
    shapes = PLAIN


class TestZBH2(ClosedContract):
    name = "zb-h2"
    shapes = PLAIN


class TestZB1P(ClosedContract):
    name = "zb-1p"
    shapes = PLAIN
    exact_in_flight = False


class TestZB2P(ClosedContract):
    name = "zb-2p"
    shapes = PLAIN
    exact_in_flight = False


class TestInterleavedZB(ScheduleContract):
    name = "interleaved-zb"
    shapes = (*(Shape(p, p * g, v) for p in (1, 2, 4) for v in (2, 3) for g in (1, 2, 3)), Shape(4, 3, 2))

    def in_flight(self, shape):
        return shape.ranks * shape.chunks


class TestZBV(ScheduleContract):
    name = "zbv"
    shapes = tuple(Shape(p, m, 2) for p in (1, 2, 4) for m in (1, 2, 5, 12))

    def in_flight(self, shape):
        return 2 * shape.ranks


class TestVHalf(ScheduleContract):
    name = "v-half"
    shapes = tuple(Shape(p, m, 2) for p in (1, 2, 4, 5) for m in (1, 2, 5, 12))

    def in_flight(self, shape):
        return 2 * ((shape.ranks + 2) // 2)


class TestVMin(ScheduleContract):
    name = "v-min"
    shapes = tuple(Shape(p, m, 2) for p in (1, 2, 4, 5) for m in (1, 2, 5, 12))

    def in_flight(self, shape):
        return 2 * ((shape.ranks + 4) // 3)


class TestDualPipeV(ScheduleContract):
    name = "dualpipev"
    shapes = tuple(Shape(p, m, 2) for p in (1, 2, 3, 4) for m in (2 * p, 2 * p + 1, 5 * p))

    def in_flight(self, shape):
        return 2 * shape.ranks + 1


class TestDualPipe(ScheduleContract):
    name = "dualpipe"
    shapes = tuple(Shape(p, m, 2) for p in (2, 4, 6) for m in (2 * p, 2 * p + 2, 6 * p))

    def in_flight(self, shape):
        return shape.ranks + 1


class TestChimera(ScheduleContract):
    name = "chimera"
    shapes = tuple(Shape(p, m, 2) for p in (2, 4, 8) for m in (2, p, p + 2, 3 * p))

    def in_flight(self, shape):
        return shape.ranks

    def test_ranks_keep_half_a_pipeline_to_a_whole_one(self):
        """Li and Hoefler 2021, Table 2: D / 2 + 1 to D microbatches."""
        assert build("chimera", Shape(8, 8, 2)).peak_in_flight() == [5, 6, 7, 8, 8, 7, 6, 5]


class TestPipeDream(ScheduleContract):
    name = "pipedream"
    shapes = PLAIN

    def in_flight(self, shape):
        return shape.ranks


class TestTwoBW(ScheduleContract):
    name = "2bw"
    shapes = tuple(Shape(p, g * n, group=g) for p in (2, 4) for g in (p, p + 1) for n in (1, 3))

    def in_flight(self, shape):
        return shape.ranks


def test_every_schedule_passes_the_contract():
    contracts = (*ScheduleContract.__subclasses__(), *ClosedContract.__subclasses__())
    held = {contract.name for contract in contracts if contract is not ClosedContract}
    assert held == set(SCHEDULES) == set(PIPELINES) - {"none"}


@pytest.mark.slow
def test_every_order_of_the_corpus():
    """Action by action, with the corpus's own lengths and peaks; an order that deadlocks must be refused."""
    compared = Counter()
    for row in rows():
        name, _ = OURS[row["schedule"]]
        shape, params = shape_of(row), row["params"]
        work = Work.uniform(shape.ranks * shape.chunks, *(int(params[x]) for x in "fbwc")) if "f" in params else None
        order = build(name, shape, work)
        assert order.texts() == texts(row)
        if check := row.get("check"):
            times = {kind: int(check["durations"][kind.name]) for kind in (Kind.F, Kind.I, Kind.W, Kind.B)}
            ran = run(order, times, int(check["durations"]["comm"]))
            assert (ran.makespan, max(ran.spans())) == (check["makespan"], check["max_rank_span"])
            assert order.peak_in_flight() == check["peak_F_minus_W"]
            assert peaks_to_input(order) == check["peak_F_minus_B"]
        compared[row["schedule"]] += 1
    assert set(compared) == set(OURS)
    assert sum(compared.values()) == 414


def peaks_to_input(order):
    """Return, per rank, the most chunks alive from F to I (or B)."""
    steps = {Kind.F: 1, Kind.I: -1, Kind.B: -1, Kind.W: 0}
    return [max(accumulate(steps[a.kind] for a in rank)) for rank in order.actions]


@pytest.mark.slow
def test_interleaved_refuses_exactly_the_groups_that_deadlock():
    """An independent run is the judge; PyTorch's grouping never deadlocks."""
    kind, refused = SCHEDULES["interleaved"], 0
    for p, m, v, group in product(range(2, 7), range(1, 14), (2, 3), range(1, 9)):
        shape = Shape(p, m, v, group)
        order = kind.build(shape, Work.uniform(p * v))
        if kind.refusal(shape):
            refused += 1
            with pytest.raises(WaitsForeverError):
                run(order, UNIT)
        else:
            run(order, UNIT)
    assert refused > 200
    assert not any(
        m % max(1, m // p) == 0 and kind.refusal(Shape(p, m, v, variant="torch"))
        for p, m, v in product(range(2, 9), range(1, 30), (2, 3))
    )


def test_closed_forms_know_how_many_microbatches_have_their_head():
    """Of interleaved in groups of any length, none of them short."""
    steps, longer = {Kind.F: 1, Kind.I: 0, Kind.B: -1, Kind.W: -1}, 0
    for name, p, m, v, more in product(CLOSED, (2, 3, 4), (4, 6, 8, 11, 12, 20), (1, 2, 3), range(4)):
        shape = Shape(p, m, v, p + more if CLOSED[name].grouped else 0)
        try:
            order = build(name, shape)
        except IllegalScheduleError:
            continue
        if CLOSED[name].grouped and m % shape.group:
            continue
        head = (a for a in order.actions[-1] if a.stage == order.stages - 1)
        assert CLOSED[name].of_last_chunk(shape, min, max) == max(accumulate(steps[a.kind] for a in head))
        longer += shape.group > p
    assert longer > 5


def test_torch_and_deepseek_agree_on_dualpipev():
    first, second = (build("dualpipev", Shape(4, 10, 2, variant=v)).texts() for v in ("torch", "deepseek"))
    assert first == second


def test_fused_pairs_and_two_copies_as_text():
    """DeepSeek's order for two ranks and four microbatches, and the weights both ranks hold."""
    order = build("dualpipe", Shape(2, 4, 2))
    assert order.texts()[0] == "d0:0F0 d1:1F0 d0:0F1 d1:1B0 (d1:1F1;d0:0B0)OVERLAP_F_B d1:1B1 d0:0I1 d0:0W1"
    assert (order.pipelines, order.depth, order.rank_of) == (2, 2, (0, 1, 1, 0))


@pytest.mark.parametrize(
    ("name", "shape", "field"),
    [
        ("zigzag", Shape(2, 2), "schedule"),
        ("1f1b", Shape(2, 2, 2), "virtual_stages"),
        ("1f1b", Shape(4, 3, variant="torch"), "microbatches"),
        ("gpipe", Shape(2, 2, 2), "virtual_stages"),
        ("interleaved", Shape(2, 2, 1), "virtual_stages"),
        ("interleaved", Shape(4, 8, 2, 2), "microbatch_group_size"),
        ("interleaved", Shape(4, 5, 3), "microbatches"),
        ("looped-bfs", Shape(2, 2, variant="megatron"), "variant"),
        ("interleaved-zb", Shape(2, 4, 1), "virtual_stages"),
        ("interleaved-zb", Shape(4, 9, 2), "microbatches"),
        ("zbv", Shape(2, 4, 1), "virtual_stages"),
        ("zbv", Shape(2, 4, 2, variant="megatron"), "variant"),
        ("dualpipev", Shape(2, 3, 2), "microbatches"),
        ("dualpipev", Shape(2, 4, 3), "virtual_stages"),
        ("dualpipe", Shape(3, 8, 2), "ranks"),
        ("dualpipe", Shape(2, 5, 2), "microbatches"),
        ("dualpipe", Shape(4, 6, 2), "microbatches"),
        ("chimera", Shape(3, 4, 2), "ranks"),
        ("chimera", Shape(4, 3, 2), "microbatches"),
        ("chimera", Shape(4, 4, 2, variant="torch"), "variant"),
        ("zb-h1", Shape(2, 2, 2), "virtual_stages"),
        ("zb-1p", Shape(2, 2, 2), "virtual_stages"),
        ("zb-2p", Shape(2, 2, memory_limit=0.5), "memory_limit"),
        ("zb-2p", Shape(2, 2, memory_limit=float("nan")), "memory_limit"),
        ("zb-h2", Shape(2, 2, memory_limit=3), "memory_limit"),
        ("zb-h1", Shape(2, 2, input_frees=1.5), "input_frees"),
        ("zb-1p", Shape(2, 2, input_frees=float("nan")), "input_frees"),
        ("interleaved", Shape(4, 8, 2, -1), "microbatch_group_size"),
    ],
)
def test_refusals(name, shape, field):
    with pytest.raises(IllegalScheduleError) as caught:
        build(name, shape)
    assert caught.value.field == field


@pytest.mark.parametrize("engine", [run_path, run_events])
def test_a_deadlock_names_its_cycle(engine):
    first = (Action(0, Kind.F, 0), Action(0, Kind.B, 0), Action(0, Kind.F, 1), Action(0, Kind.B, 1))
    second = (Action(1, Kind.F, 1), Action(1, Kind.F, 0), Action(1, Kind.B, 0), Action(1, Kind.B, 1))
    with pytest.raises(DeadlockError, match="waits for") as caught:
        engine(Schedule("bad", 2, (0, 1), (first, second)), Durations.uniform(2, {Kind.F: 1, Kind.B: 2}))
    assert Action(1, Kind.F, 1) in caught.value.cycle
