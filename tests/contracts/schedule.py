"""What every schedule must satisfy. A newcomer subclasses this and names its kind."""

from collections import Counter
from itertools import accumulate
from random import Random

import numpy as np
import pytest

from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.schedules import CLOSED, SCHEDULES, IllegalScheduleError, Kind, Schedule, Shape, Times, build
from sim.schedules.ir import COMPUTE
from sim.specs import Plan
from sim.specs.pipelines import PIPELINES
from tests.contracts.longest_path import run

UNIT = {Kind.F: 1, Kind.I: 1, Kind.W: 1, Kind.B: 2}
ALLOCATES = {Kind.F: 1, Kind.B: -1, Kind.W: -1, Kind.I: 0}


def check_order(order: Schedule) -> None:
    """Check every law that holds for any order on a rank a stage: whole, placed, balanced, running."""
    found = Counter(action for rank in order.actions for action in rank if action.kind in COMPUTE)
    assert set(found.values()) == {1}
    each = range(order.microbatches // order.pipelines)
    every = {(s, k) for s in range(order.stages) for k in each}
    of = {kind: {(s, k) for s, other, k in found if other is kind} for kind in (Kind.F, Kind.B, Kind.I, Kind.W)}
    assert of[Kind.F] == every == of[Kind.B] | of[Kind.I]
    assert of[Kind.I] == of[Kind.W]
    assert not of[Kind.B] & of[Kind.I]
    assert all(order.rank_of[a.stage] == r for r, rank in enumerate(order.actions) for a in rank)
    for rank, pairs in zip(order.actions, order.fused, strict=True):
        alive = list(accumulate(ALLOCATES.get(action.kind, 0) for action in rank))
        assert min(alive) == alive[-1] == 0  # freed: all that was allocated, and never before it was
        assert all((rank[i].kind, rank[i + 1].kind) == (Kind.F, Kind.B) for i in pairs)
    _check_messages(order, of)
    run(order, UNIT)


def _check_messages(order: Schedule, of: dict[Kind, set[tuple[int, int]]]) -> None:
    """Over each boundary between ranks go as many forwards as gradients, and as many are sent as received."""
    for s in range(order.stages - 1):
        if (s + 1) % order.depth:
            sent, received = ({k for stage, k in of[Kind.F] if stage == at} for at in (s, s + 1))
            back = {k for stage, k in of[Kind.B] | of[Kind.I] if stage == s + 1}
            assert sent == received == back


def turns(order: Schedule) -> bool:
    """Return whether no other forward of the last stage comes between a microbatch's forward there and its backward."""
    last, alive, most = order.depth - 1, 0, 0
    for action in order.actions[order.rank_of[last]]:
        if action.stage == last:
            alive += {Kind.F: 1, Kind.B: -1, Kind.I: -1}.get(action.kind, 0)
            most = max(most, alive)
    return most == 1


class ScheduleContract:
    """Laws that hold for any schedule of a legal shape.

    in_flight(shape): the most chunks that any rank may keep.
    """

    name: str
    shapes: tuple[Shape, ...]

    def in_flight(self, shape: Shape) -> int:
        raise NotImplementedError

    def test_is_registered(self):
        kind = SCHEDULES[self.name]
        assert kind.name == self.name
        assert len(set(kind.variants)) == len(kind.variants)

    def test_its_stages_lie_where_plans_say(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            plan = Plan(
                pp=shape.ranks,
                virtual_stages=shape.chunks // order.pipelines,
                schedule=self.name,
                global_batch=shape.microbatches,
            )
            assert (plan.rank_of, plan.copies) == (order.rank_of, order.pipelines)

    def test_the_last_rank_turns_at_once_if_plans_say_so(self):
        """A backward of the last stage right after its forward; I and W apart, or paired with a forward, count too."""
        found = [turns(build(self.name, shape)) for shape in self.shapes if shape.microbatches > 1]
        assert all(found) == PIPELINES[self.name].turns

    def test_it_holds_updates_of_its_own_if_plans_say_that_it_does_not_flush(self):
        for shape in self.shapes:
            kinds = {action.kind for rank in build(self.name, shape).actions for action in rank}
            assert (Kind.OPTIMIZER in kinds) == PIPELINES[self.name].asynchronous

    def test_orders_are_whole_and_run(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            assert (order.ranks, order.microbatches) == (shape.ranks, shape.microbatches)
            assert order.stages == shape.ranks * shape.chunks == order.depth * SCHEDULES[self.name].copies
            check_order(order)

    def test_says_whether_it_splits_the_backward(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            kinds = {action.kind for rank in order.actions for action in rank}
            kind = SCHEDULES[self.name]
            assert (kind.splits, kind.splits and not kind.joins) == (Kind.W in kinds, Kind.B not in kinds)

    def test_says_how_many_pairs_a_rank_runs_at_most(self):
        for shape in self.shapes:
            most = SCHEDULES[self.name].most_pairs(shape.ranks, shape.microbatches)
            assert most == max(map(len, build(self.name, shape).fused))

    def test_the_engine_agrees_with_the_second_opinion(self):
        """Every start and end, with messages, on uniform stages."""
        times = {Kind.F: 5, Kind.I: 4, Kind.W: 3, Kind.B: 7}
        for shape in self.shapes:
            order = build(self.name, shape)
            timeline, ran = run_path(order, Durations.uniform(order.stages, times, 2)), run(order, times, 2)
            every = {timeline.action(i): i for i in range(len(timeline.graph))}
            found = {action: i for action, i in every.items() if action.kind in COMPUTE}
            assert {a: timeline.start[i] for a, i in found.items()} == ran.start
            assert {a: timeline.end[i] for a, i in found.items()} == ran.end

    def test_no_rank_keeps_more_than_it_may(self):
        peaks = [(max(build(self.name, s).peak_in_flight()), self.in_flight(s)) for s in self.shapes]
        assert all(found <= most for found, most in peaks)
        assert any(found == most for found, most in peaks)

    def test_its_default_variant_is_the_first_and_others_are_refused(self):
        variants = SCHEDULES[self.name].variants
        for shape in self.shapes[:3]:
            sizes = shape.ranks, shape.microbatches, shape.chunks
            if variants:
                assert build(self.name, Shape(*sizes, variant=variants[0])).texts() == build(self.name, shape).texts()
            with pytest.raises(IllegalScheduleError, match="variant: got mine; allowed: "):
                build(self.name, Shape(*sizes, variant="mine"))

    @pytest.mark.parametrize("field", ["ranks", "microbatches", "chunks"])
    def test_refuses_a_shape_of_nothing(self, field):
        with pytest.raises(IllegalScheduleError):
            build(self.name, Shape(**{"ranks": 2, "microbatches": 4, field: 0}))


class ClosedContract(ScheduleContract):
    """Laws of kinds with closed forms."""

    exact_in_flight = True

    def in_flight(self, shape: Shape) -> int:
        return max(CLOSED[self.name].in_flight(r, shape, min) for r in range(shape.ranks))

    def test_the_closed_form_is_exact(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            durations = {Kind.F: 100, Kind.B: 200, Kind.I: 100, Kind.W: 100}
            times = Times(100, 200, 0, 0, 0, 0, 0, shape.ranks, shape.chunks, shape.microbatches, max, min, 100)
            closed = CLOSED[self.name].makespan(times)
            assert run_path(order, Durations.uniform(order.stages, durations)).makespan == pytest.approx(closed)
            assert run(order, durations).makespan == pytest.approx(closed)

    def test_in_flight_is_exact(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            found = order.peak_in_flight()
            formula = [CLOSED[self.name].in_flight(r, shape, min) for r in range(shape.ranks)]
            assert all(a <= b for a, b in zip(found, formula, strict=True))
            assert found == formula or not self.exact_in_flight

    def test_no_engine_beats_the_lower_bound(self):
        """Whatever dominates: chunks, embedding, head or messages, which follow each other."""
        random = Random(0)
        for shape in self.shapes * 20:
            stages = shape.ranks * shape.chunks
            column = {kind: np.full(stages, random.randint(1, 100)) for kind in (Kind.F, Kind.I, Kind.W)}
            f, i, w = (int(values[0]) for values in column.values())
            ends = [[random.choice([0, 1, 50, 500]) for _ in column] for _ in range(2)]
            for values, first, last in zip(column.values(), *ends, strict=True):
                values[0] += first
                values[-1] += last
            message = random.choice([0, 1, 30, 300]) if shape.ranks > 1 else 0
            (first_f, first_i, first_w), (last_f, last_i, last_w) = ends
            times = Times(
                f, i + w, first_f, first_i + first_w, last_f, last_i + last_w, message,
                shape.ranks, shape.chunks, shape.microbatches, max, min, w, first_w, last_w,
            )  # fmt: skip
            whole = {Kind.B: column[Kind.I] + column[Kind.W]}
            sent = np.full(stages, message)
            durations = Durations(column | whole, sent, sending=sent)
            timeline = run_path(build(self.name, shape, durations.work()), durations)
            assert CLOSED[self.name].lower_bound(times) <= timeline.makespan + 1e-6
