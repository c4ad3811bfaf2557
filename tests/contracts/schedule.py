"""What every schedule must satisfy. A newcomer subclasses this and names its kind."""

from collections import Counter
from functools import partial
from random import Random

import numpy as np
import pytest

from sim.engine.path import run_path
from sim.engine.timeline import Durations
from sim.schedules import SCHEDULES, Kind, Shape, Times, build


class ScheduleContract:
    """Laws that hold for any synchronous schedule of a legal shape."""

    name: str
    shapes: tuple[Shape, ...]

    def test_is_registered(self):
        assert SCHEDULES[self.name].name == self.name

    def test_every_microbatch_passes_every_stage_once(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            found = Counter((a.stage, a.kind, a.microbatch) for rank in order.actions for a in rank)
            stages, microbatches = range(shape.ranks * shape.chunks), range(shape.microbatches)
            forward = {(s, Kind.F, k) for s in stages for k in microbatches}
            assert {key for key in found if key[1] is Kind.F} == forward
            assert set(found.values()) == {1}
            whole = {(s, k) for s, kind, k in found if kind is Kind.B}
            split = {(s, k) for s, kind, k in found if kind is Kind.I} & {
                (s, k) for s, kind, k in found if kind is Kind.W
            }
            assert whole | split == {(s, k) for s, _, k in forward}

    def test_stages_sit_on_their_ranks(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            assert all(order.rank_of[a.stage] == r for r, rank in enumerate(order.actions) for a in rank)

    def test_runs_without_deadlock_and_the_closed_form_is_exact(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            timeline = run_path(order, Durations.uniform(order.stages, {Kind.F: 100, Kind.B: 200}))
            times = partial(Times, 100, 200, 0, 0, 0, 0, 0, shape.ranks, shape.chunks, shape.microbatches)
            assert timeline.makespan == pytest.approx(SCHEDULES[self.name].makespan(times(max, min)))

    def test_in_flight_is_exact(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            kind = SCHEDULES[self.name]
            assert order.peak_in_flight() == [kind.in_flight(r, shape, min) for r in range(shape.ranks)]

    def test_no_engine_beats_the_lower_bound(self):
        """Whatever dominates: chunks, embedding, head or messages."""
        random = Random(0)
        for shape in self.shapes * 20:
            order = build(self.name, shape)
            forward, backward = (np.full(order.stages, random.randint(1, 100)) for _ in range(2))
            ends = [random.choice([0, 1, 50, 500]) for _ in range(4)]
            message = random.choice([0, 1, 30, 300]) if shape.ranks > 1 else 0
            times = Times(
                int(forward[0]), int(backward[0]), *ends, message,
                shape.ranks, shape.chunks, shape.microbatches, max, min,
            )  # fmt: skip
            forward[0] += ends[0]
            backward[0] += ends[1]
            forward[-1] += ends[2]
            backward[-1] += ends[3]
            durations = Durations({Kind.F: forward, Kind.B: backward}, np.full(order.stages, message))
            assert SCHEDULES[self.name].lower_bound(times) <= run_path(order, durations).makespan + 1e-6
