"""Runners of sweeps: the contract, and what is each one's own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sim.specs import InputError
from sim.sweep.runners import RUNNERS, Pool, Ray, runner
from tests.contracts.runner import RunnerContract
from tests.contracts.tasks import niceness, squared, where
from tests.full import fully
from tests.oracle import ROOT


class TestHere(RunnerContract):
    name = "here"
    dies = False


class TestPool(RunnerContract):
    name = "pool"

    def test_workers_give_way_and_end_with_the_context(self):
        with Pool(2) as made:
            found = made.run(range(100), niceness)
            assert next(found) == min(19, os.nice(0) + 10)
            workers = [psutil.Process(w.process.pid) for w in made.held]
        assert not any(w.is_running() for w in workers)

    @pytest.mark.slow
    def test_workers_end_when_the_caller_is_killed(self):
        script = (
            "import sys, time; from sim.sweep.runners import Pool\n"
            "with Pool(2) as made:\n"
            "    made.run([1], time.sleep).__next__()\n"
            "    print(*(w.process.pid for w in made.held), flush=True)\n"
            "    time.sleep(60)"
        )
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env) as caller:
            workers = [int(word) for word in caller.stdout.readline().split()]
            caller.kill()
        assert len(workers) == 2
        deadline = time.monotonic() + 10
        while any(psutil.pid_exists(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(psutil.pid_exists(pid) for pid in workers)


class TestRay(RunnerContract):
    name = "ray"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _cluster(cls, cluster):
        return cluster

    @fully  # Ray starts a process for each of them; the same tests of the pool are quick
    def test_a_worker_that_is_killed_costs_no_task(self, runner, tmp_path):
        super().test_a_worker_that_is_killed_costs_no_task(runner, tmp_path)

    @fully
    def test_a_task_that_kills_every_worker_is_given_up(self, runner, monkeypatch):
        super().test_a_task_that_kills_every_worker_is_given_up(runner, monkeypatch)

    @pytest.mark.slow
    @pytest.mark.parametrize(("seconds", "cut"), [(0.01, False), (5.0, True)])
    def test_what_is_about_to_end_is_not_cancelled(self, runner, monkeypatch, seconds, cut):
        """Ray ends the whole program where both happen at once."""
        cancel, cancelled = runner.ray.cancel, []
        monkeypatch.setattr(runner.ray, "cancel", lambda one, force: cancelled.append(one) or cancel(one, force=force))
        found = runner.run([0.0, *[seconds] * 20], where)
        next(found)
        found.close()
        assert bool(cancelled) is cut

    def test_nothing_leaves_the_machine(self, cluster):
        """Whatever Ray has started listens and talks to loopback addresses alone."""
        with Ray(2) as made:
            assert sorted(made.run(range(8), squared)) == [n * n for n in range(8)]
            assert not made.owned
        seen = 0
        for process in psutil.process_iter():
            try:
                if "ray" not in " ".join(process.cmdline()):
                    continue
                for each in process.net_connections("inet"):
                    seen += 1
                    for end in (each.laddr, each.raddr):
                        assert not end or end.ip.removeprefix("::ffff:").startswith("127."), each
            except psutil.Error:
                continue
        assert seen > 5
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


TWO_NODES = """
import os
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
from ray.cluster_utils import Cluster
from sim.sweep.grid import Grid
from sim.sweep.run import sweep
from sim.sweep.runners import Ray
from tests.contracts.tasks import where
from tests.sweep.conftest import BASE, QUICK
node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}
nodes = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
nodes.add_node(**node)
with Ray(address=nodes.address) as made:
    print(made.workers, len(set(made.run([0.3] * 8, where))))
grid = Grid(**BASE, axes=QUICK)
on_ray, on_pool = sweep(grid, "ray.db", "ray", address=nodes.address), sweep(grid, "pool.db")
print(on_ray.counts.ok > 0 and on_ray.counts.best == on_pool.counts.best)
nodes.shutdown()
"""


@fully
def test_tasks_spread_over_all_nodes_of_a_cluster(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    asked = [sys.executable, "-c", TWO_NODES]
    done = subprocess.run(asked, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["2 2", "True"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("threads",), "runner: got 'threads'; allowed: one of pool, ray, here"),
        (("pool", 0), "workers: got 0; allowed: a whole number from 1"),
        (("ray", -1), "workers: got -1; allowed: a whole number from 1"),
        (("pool", 2, "auto"), "address: got 'auto'; allowed: left out with runner pool"),
        (("here", 2), "workers: got 2; allowed: left out with runner here"),
        (("here", None, "auto"), "address: got 'auto'; allowed: left out with runner here"),
    ],
)
def test_what_a_runner_does_not_take(arguments, message):
    with pytest.raises(InputError) as error:
        runner(*arguments)
    assert message in str(error.value)


def test_ray_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="runner: got 'ray'; allowed: pool; for ray install it: pip install"):
        runner("ray")


@pytest.mark.parametrize(
    ("address", "message"), [(None, "runner: got 'ray'"), ("10.9.8.7:1", "address: got '10.9.8.7:1'")]
)
def test_a_cluster_that_does_not_start_is_one_clear_error(monkeypatch, address, message):
    """Whatever Ray raises then, a bare Exception among it."""
    made = Ray(1, address)
    ended = []

    class Silent:
        is_initialized = staticmethod(lambda: False)
        shutdown = staticmethod(lambda: ended.append(1))

        @staticmethod
        def init(**_):
            raise Exception("The node timed out.\nMore.")

    monkeypatch.setattr(made, "ray", Silent)
    with pytest.raises(InputError, match=r"a Ray cluster that \w+ \(The node timed out.\)") as error, made:
        pass
    assert str(error.value).startswith(message)
    assert ended


def test_every_runner_is_tested():
    assert {one.name for one in RunnerContract.__subclasses__()} == set(RUNNERS)


@pytest.mark.parametrize(
    ("writable", "kept", "own"), [(True, False, False), (False, True, False), (False, False, True)]
)
def test_a_local_cluster_has_its_own_token_where_none_can_be_written(tmp_path, monkeypatch, writable, kept, own):
    pytest.importorskip("ray")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_TOKEN"}
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    monkeypatch.setattr(os, "environ", environment.copy())
    if kept:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("x")
    Ray(1)
    assert ("RAY_AUTH_TOKEN" in os.environ) == own
    monkeypatch.setattr(os, "environ", environment)
    Ray(1, address="auto")
    assert "RAY_AUTH_TOKEN" not in os.environ
