"""Whatever comes: no device is given twice, no job is lost, work is conserved, nothing that could run waits."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sim.cluster.active import Active
from sim.cluster.arrays import NOW, Fleet, Log, Next, Rule
from sim.cluster.jobs import ClusterJob
from sim.cluster.rounds import run_rounds
from sim.cluster.throughputs import Throughputs
from tests.full import FULL

SCALES = (1, 2, 3)
KINDS = st.tuples(st.sampled_from(("quick", "slow", "choosy")), st.sampled_from(SCALES))


def table(draw_pairs):
    alone = {
        (name, scale): np.array(rates)
        for scale in SCALES
        for name, rates in {"quick": [3.0, 2.0], "slow": [0.5, 0.25], "choosy": [0.0, 1.5]}.items()
    }
    pairs = {}
    if draw_pairs:
        pairs = {(a, b): np.array([alone[a], alone[b]]).T * 0.6 for a in alone for b in alone if a[1] == b[1]}
    return Throughputs(("fast", "late"), alone, pairs)


class Shared(RuleBasedStateMachine):
    """A cluster of two types whose shares are drawn, run a few rounds at a time."""

    @initialize(
        counts=st.tuples(st.integers(3, 7), st.integers(3, 7)),
        servers=st.integers(1, 4),
        parity=st.booleans(),
        strict=st.booleans(),
        packs=st.booleans(),
    )
    def cluster(self, counts, servers, parity, strict, packs):
        per_server = np.full(2, 1 if parity else servers)
        self.fleet = Fleet(np.array([0, counts[0]]), np.array(counts), per_server)
        known = table(packs)
        self.active = Active(known, known, self.fleet, packs, 50.0, 0.0 if parity else 50.0)
        self.rule = Rule(100.0, parity, strict, True, 300.0)
        self.clock, self.counts = np.zeros(2), np.zeros(4, np.int64)
        self.came, self.gone, self.steps, self.ran = 0, 0, 0.0, False
        self.done = {}

    @rule(kind=KINDS, steps=st.integers(1, 3_000), switch=st.floats(0, 60))
    def comes(self, kind, steps, switch):
        name, scale = kind
        job = ClusterJob(job_type=name, scale_factor=scale, steps=steps, arrival_s=float(self.clock[NOW]))
        self.active.admit([job], [self.came], [switch])
        self.came += 1
        self.ran = False

    @rule(data=st.data())
    def shares_change(self, data):
        rows = len(self.active) + len(self.active.pairs())
        drawn = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2 * rows, max_size=2 * rows)
        self.active.reset(100.0)
        self.active.share(np.array(data.draw(drawn)).reshape(rows, 2))
        self.ran = False

    @rule(rounds=st.integers(1, 3))
    def rounds_go(self, rounds):
        if not len(self.active) or len(self.active.ended()):
            return
        cells = np.zeros((rounds, len(self.active.held.row)), np.int64)
        log = Log(np.zeros(rounds), np.zeros(rounds), np.zeros(rounds, np.int64), cells)
        before = self.active.work.left.copy()
        entries, used = run_rounds(
            self.active.rows, self.fleet, self.active.work, self.active.held, self.active.spent_s, self.clock,
            self.counts, log, np.tile([0, 1], (rounds, 1)), self.rule, Next(np.inf, 0.0, False),
        )  # fmt: skip
        assert (self.active.work.left <= before).all() and (self.active.work.left >= 0).all()
        self.steps += (before - self.active.work.left).sum()
        self.log, self.ran = log, used == entries
        if used == entries and not self.rule.parity:
            assert (log.length_s[:entries] == 100.0).all()

    @rule()
    def those_that_ended_leave(self):
        places = self.active.ended()
        for place in places.tolist():
            self.done[int(self.active.ids[place])] = self.active.jobs[place].steps - self.active.work.left[place]
        self.active.leave(places)
        self.gone += len(places)
        self.ran = False

    @invariant()
    def nobody_is_lost(self):
        if not hasattr(self, "active"):
            return
        assert len(self.active) + self.gone == self.came
        assert sorted([*self.active.ids.tolist(), *self.done]) == list(range(self.came))
        singles = self.active.rows.scale[self.active.rows.single].tolist()
        assert singles == [job.scale_factor for job in self.active.jobs]

    @invariant()
    def work_is_conserved(self):
        if not hasattr(self, "active"):
            return
        left = sum(job.steps for job in self.active.jobs) - self.active.work.left.sum()
        assert np.isclose(left + sum(self.done.values()), self.steps)
        assert np.isclose(self.active.held.busy_s.sum(), self.used())

    def used(self):
        """Device-seconds of all jobs, those that have gone included."""
        self.kept = getattr(self, "kept", {})
        for place, number in enumerate(self.active.ids.tolist()):
            self.kept[number] = self.active.work.used_s[place].sum()
        return sum(self.kept.values())

    @invariant()
    def devices_are_given_once(self):
        """Every row that has devices has as many as it asks for, all of one type; no job is in two rows."""
        if not hasattr(self, "active"):
            return
        held, rows = self.active.held.row, self.active.rows
        placed = np.unique(held[held >= 0])
        jobs = rows.job[placed].ravel()
        jobs = jobs[jobs >= 0]
        assert len(set(jobs.tolist())) == len(jobs)
        for row in placed.tolist():
            devices = np.flatnonzero(held == row)
            kind = devices >= self.fleet.first[1]
            assert len(devices) == rows.scale[row] and kind.all() == kind.any()
            assert rows.speed[row, int(kind[0]), 0] > 0

    @invariant()
    def nobody_waits_for_an_idle_device(self):
        """Right after a round: a job that could run on devices that are idle has some, unless the policy is strict."""
        if not getattr(self, "ran", False) or self.rule.strict or self.rule.parity or len(self.active.ended()):
            return
        held, rows = self.active.held.row, self.active.rows
        running = set(rows.job[np.unique(held[held >= 0])].ravel().tolist())
        for j in range(2):
            devices = range(self.fleet.first[j], self.fleet.first[j] + self.fleet.devices[j])
            idle = sum(held[w] < 0 for w in devices)
            for job, row in enumerate(rows.single.tolist()):
                assert job in running or rows.scale[row] > idle or rows.speed[row, j, 0] == 0


Shared.TestCase.settings = settings(max_examples=1_000 if FULL else 25, stateful_step_count=50, deadline=None)
TestShared = Shared.TestCase
