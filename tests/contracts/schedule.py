"""What every schedule must satisfy. A newcomer subclasses this and names its kind."""

from collections import Counter
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
    exact_in_flight = True

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
            durations = {Kind.F: 100, Kind.B: 200, Kind.I: 100, Kind.W: 100}
            timeline = run_path(order, Durations.uniform(order.stages, durations))
            times = Times(100, 200, 0, 0, 0, 0, 0, shape.ranks, shape.chunks, shape.microbatches, max, min, 100)
            assert timeline.makespan == pytest.approx(SCHEDULES[self.name].makespan(times))

    def test_in_flight_is_exact(self):
        for shape in self.shapes:
            order = build(self.name, shape)
            kind = SCHEDULES[self.name]
            found, formula = order.peak_in_flight(), [kind.in_flight(r, shape, min) for r in range(shape.ranks)]
            assert all(a <= b for a, b in zip(found, formula, strict=True))
            assert found == formula or not self.exact_in_flight

    def test_no_engine_beats_the_lower_bound(self):
        """Whatever dominates: chunks, embedding, head or messages."""
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
            durations = Durations(column | whole, np.full(stages, message))
            timeline = run_path(build(self.name, shape, durations.work()), durations)
            assert SCHEDULES[self.name].lower_bound(times) <= timeline.makespan + 1e-6
