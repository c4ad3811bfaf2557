"""What every runner of a sweep must satisfy. A newcomer subclasses this and says how it is made."""

from pathlib import Path

import pytest

from sim.sweep.grid import Grid
from sim.sweep.run import sweep
from sim.sweep.runners import MAX_LOSSES, RUNNERS, Runner, TaskFailed, WorkerLost
from sim.sweep.store import Store
from tests.contracts.tasks import DiesOnce, always_dies, broken, squared
from tests.sweep.conftest import BASE, QUICK


def rows(path: Path) -> list[tuple[int, bytes, bytes]]:
    """Return a store's table without how long it took."""
    with Store(path) as store:
        return store.db.execute("SELECT number, digest, payload FROM blocks ORDER BY number").fetchall()


class RunnerContract:
    """Laws that hold for any runner of two workers. dies: whether workers are processes that can be killed."""

    name: str
    dies = True

    @pytest.fixture(scope="class")  # what one test leaves, the next starts from
    @classmethod
    def runner(cls):
        with RUNNERS[cls.name](2 if cls.dies else None, None) as made:
            yield made

    @pytest.mark.slow
    def test_it_is_a_runner(self, runner):
        assert isinstance(runner, Runner)
        assert runner.workers >= 1

    @pytest.mark.slow
    def test_every_task_is_done_once(self, runner):
        assert sorted(runner.run(iter(range(40)), squared)) == [n * n for n in range(40)]
        assert list(runner.run([], squared)) == []
        assert list(runner.run([7], squared)) == [49]

    def test_tasks_are_taken_as_they_are_needed(self, runner):
        taken = []
        found = runner.run((taken.append(n) or n for n in range(10_000)), squared)
        for _ in range(3):
            next(found)
        assert len(taken) <= 3 + 2 * runner.workers
        found.close()

    def test_an_error_names_its_task(self, runner):
        with pytest.raises(TaskFailed, match="task 3: ValueError: no such number"):
            list(runner.run(range(5), broken))

    @pytest.mark.slow
    @pytest.mark.usefixtures("anew")
    @pytest.mark.parametrize("engine", ["analytic", "path"])
    def test_the_table_is_that_of_one_process(self, runner, tmp_path, monkeypatch, engine):
        """Byte for byte, whoever computes it."""
        monkeypatch.setattr("sim.sweep.writer.BLOCK_ROWS", {"analytic": 64, "path": 6})
        axes = QUICK if engine == "analytic" else {"plan.tp": [1, 3, 8], "plan.pp": [1, 2], "plan.zero": [0, 1, 3]}
        grid = Grid(**BASE, axes=axes, engine=engine)
        for store, way in ((tmp_path / "one.db", "here"), (tmp_path / "other.db", runner)):
            assert sweep(grid, store, way).counts.left == 0
        assert rows(tmp_path / "one.db") == rows(tmp_path / "other.db")

    def test_a_worker_that_is_killed_costs_no_task(self, runner, tmp_path):
        if self.dies:
            function = DiesOnce(str(tmp_path), (1, 5, 6))
            assert sorted(runner.run(range(12), function)) == [n * n for n in range(12)]
            assert {path.name for path in tmp_path.iterdir()} == {"1", "5", "6"}

    @pytest.mark.slow
    def test_a_task_that_kills_every_worker_is_given_up(self, runner, monkeypatch):
        if self.dies:
            assert runner.losses == MAX_LOSSES
            monkeypatch.setattr(runner, "losses", 2)
            with pytest.raises(WorkerLost, match="task 2 has lost 2 workers"):
                list(runner.run(range(6), always_dies))
