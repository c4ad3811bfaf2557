"""The same training with a process for each partition, on one machine, over links as slow as one likes."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch._C._distributed_c10d import Store, TCPStore

from calibration.execute.processes import ADDRESS, ExecutionError, bound, last_words, started, write_task
from calibration.federated.gloo_transport import members_key
from calibration.federated.links import Matrix, links
from calibration.federated.results import FederatedRun
from calibration.federated.setting import Setting
from calibration.federated.train import Steering
from calibration.federated.worker import ARRAYS, data_name, seen_key, theta_key
from sim.decentralized.communication import Communication
from sim.decentralized.objective import Observation
from sim.specs.arguments import checked
from sim.specs.fields import InputError, read
from sim.specs.files import write_atomically

POLL_S = 0.005
TIMEOUT_S, MOST_S = 600.0, 1e6
COMMAND = (sys.executable, "-m", "calibration.federated.worker")
FREE_BYTES_PER_S = 1e15
"""Of links that take no time."""


@dataclass(frozen=True)
class Wait:
    """`partition` had to wait for a message of `sender` last and longest in so many exchanges, `seconds` in all.

    It waits from when it is ready itself, so for who computes longer as well as for a slow link.
    """

    partition: int
    sender: int
    exchanges: int
    seconds: float


@dataclass(frozen=True)
class Departure:
    """A partition that a signal ended: at which step of the others, and how long after it was seen dead they went on
    (s)."""

    partition: int
    signal: int
    step: int
    resumed_after_s: float


@dataclass(frozen=True)
class GlooRun:
    """A training of processes, as those that are left tell it.

    `exchange_s`: of the run's seconds, those that each of `run.partitions` spent in exchanges, waiting included;
    `waits`: who waited for whom, the longest first; `departures`: who was lost.
    """

    run: FederatedRun
    exchange_s: tuple[float, ...]
    waits: tuple[Wait, ...]
    departures: tuple[Departure, ...]

    def lines(self) -> list[str]:
        """Return who was lost, and who waited longest for whom."""
        told = [
            f"partition {one.partition} was ended by signal {one.signal}; the others noticed at step {one.step} and "
            f"went on after {one.resumed_after_s:.2f} s"
            for one in self.departures
        ]
        return told + [
            f"partition {one.partition} waited {one.seconds:.2f} s for partition {one.sender} ({one.exchanges} times)"
            for one in self.waits[:3]
        ]


@checked
def train_processes(
    setting: Setting,
    communication: Communication,
    controller: Steering | None = None,
    *,
    bytes_per_s: float | Matrix = FREE_BYTES_PER_S,
    latency_s: float | Matrix = 0.0,
    killed: Mapping[int, int] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> GlooRun:
    """Train with a process for each partition; weights and bytes are those of `calibration.federated.train.train`.

    bytes_per_s, latency_s: of the links, a number or [K, K] from row to column; killed: the step at which a partition
    kills itself, by partition, to see what the others do; timeout_s: of the whole, and how long one waits for another.

    Raises:
        InputError: links, killed partitions or the controller's theta are not possible.
        ExecutionError: a process failed, all were ended, or the time is over.
    """
    wan = links(setting.partitions, bytes_per_s, latency_s)
    for partition, step in (killed or {}).items():
        if not (0 <= partition < setting.partitions and 1 <= step <= setting.steps):
            allowed = f"partitions from 0 to {setting.partitions - 1}: steps from 1 to {setting.steps}"
            raise InputError("killed", {partition: step}, allowed)
    if not 0 < timeout_s <= MOST_S:
        raise InputError("timeout_s", timeout_s, f"seconds above 0, at most {MOST_S:g}")
    how = Communication(algorithm=communication.algorithm, theta=controller.theta) if controller else communication
    with TemporaryDirectory(prefix="trainsim-") as name, bound(0) as listener:
        folder = Path(name)
        task = {
            "communication": asdict(how),
            "controlled": controller is not None,
            "killed": {str(partition): step for partition, step in (killed or {}).items()},
            **asdict(wan),
        }
        _write(folder, setting, task, timeout_s)
        timeout = timedelta(seconds=timeout_s)
        port = listener.getsockname()[1]
        store = TCPStore(
            ADDRESS, port, None, True, timeout, wait_for_workers=False, master_listen_fd=os.dup(listener.fileno())
        )
        with started(folder, setting.partitions, COMMAND, listener) as processes:
            listener.close()
            watch = _Watch(processes, store, folder)
            watch.until_the_end(controller, how, timeout_s)
        return _result(watch, folder)


def _write(folder: Path, setting: Setting, task: Mapping[str, Any], timeout_s: float) -> None:
    write_task(folder, {"setting": asdict(setting), **task}, timeout_s, {})
    for own, share in enumerate(setting.shares()):
        held = io.BytesIO()
        np.savez(held, **{name: getattr(share, name).numpy() for name in ARRAYS})
        write_atomically(folder / data_name(own), held.getvalue())


class _Watch:
    """Sees which processes are gone and tells the others; answers for the controller."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], store: Store, folder: Path) -> None:
        self.processes, self.store, self.folder = processes, store, folder
        self.members = list(range(len(processes)))
        self.lost: dict[int, float] = {}
        """When a partition was seen dead (s on the machine's clock)."""

    def until_the_end(self, controller: Steering | None, how: Communication, timeout_s: float) -> None:
        """Return when every process that is left has ended well."""
        end, asked = time.monotonic() + timeout_s, 0
        while self._running():
            if controller is not None and self.store.check([seen_key(asked)]):
                seen = Observation(**json.loads(self.store.get(seen_key(asked))))
                theta = Communication(algorithm=how.algorithm, theta=controller.observe(seen)).theta
                self.store.set(theta_key(asked), repr(theta))
                asked += 1
            if time.monotonic() > end:
                raise ExecutionError(f"the partitions have not ended after {timeout_s:g} s; all were ended")
            time.sleep(POLL_S)

    def _running(self) -> bool:
        codes = [process.poll() for process in self.processes]
        failed = [partition for partition in self.members if (codes[partition] or 0) > 0]
        killed = [partition for partition in self.members if (codes[partition] or 0) < 0]
        for partition in killed:
            self.lost[partition] = time.monotonic()
            self.members.remove(partition)
            self.store.set(members_key(len(self.lost)), json.dumps(self.members))
        if failed or not self.members:
            raise ExecutionError(last_words(self.processes, self.folder, failed or killed))
        return None in codes


def _result(watch: _Watch, folder: Path) -> GlooRun:
    told = [json.loads((folder / f"result-{partition}.json").read_text("utf-8")) for partition in watch.members]
    first = told[0]
    waits = [Wait(*wait) for wait in first["waits"]]
    departures = []
    for partition, seen_s in watch.lost.items():
        met = [one for each in told for one in each["regrouped"] if partition in one["gone"]]
        resumed_s = max((one["until_s"] for one in met), default=seen_s)
        step = min((one["step"] for one in met), default=first["run"]["steps"])
        signal = -(watch.processes[partition].returncode or 0)
        departures.append(Departure(partition, signal, step, max(0.0, resumed_s - seen_s)))
    return GlooRun(
        run=read(FederatedRun, first["run"]),
        exchange_s=tuple(float(each["exchange_s"]) for each in told),
        waits=tuple(sorted(waits, key=lambda wait: -wait.seconds)),
        departures=tuple(departures),
    )
