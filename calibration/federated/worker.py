"""One partition as a process: `python -m calibration.federated.worker FOLDER`, started by `calibration.federated.gloo`.

Reads FOLDER/task.json and its share of the data beside it, writes FOLDER/result-PARTITION.json.
"""

import json
import os
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch._C._distributed_c10d import Store, TCPStore

from calibration.execute.process import process
from calibration.federated.data import Data
from calibration.federated.gloo_transport import GlooTransport
from calibration.federated.links import Links
from calibration.federated.replica import Replica
from calibration.federated.setting import Setting
from calibration.federated.train import Training
from calibration.host import keep_freed_memory
from sim.decentralized.communication import Communication
from sim.decentralized.objective import Observation
from sim.specs.fields import read
from sim.specs.files import load_mapping, write_atomically

ARRAYS = ("inputs", "labels", "test_inputs", "test_labels")


class Asked:
    """The controller is where the processes are watched: all tell what was seen, which is the same, and are told."""

    def __init__(self, store: Store, theta: float, timeout: timedelta) -> None:
        self.store, self.theta, self.timeout = store, theta, timeout
        self.asked = 0

    def observe(self, seen: Observation) -> float:
        """Return the theta to go on with."""
        self.store.set(seen_key(self.asked), json.dumps(asdict(seen)))
        key = theta_key(self.asked)
        self.store.wait([key], self.timeout)
        self.theta = float(self.store.get(key))
        self.asked += 1
        return self.theta


def data_name(partition: int) -> str:
    """Return the file with a partition's share of the data."""
    return f"data-{partition}.npz"


def seen_key(number: int) -> str:
    """Return under which key of the store observation `number` stands."""
    return f"seen-{number}"


def theta_key(number: int) -> str:
    """Return under which key of the store the answer to observation `number` stands."""
    return f"theta-{number}"


def main(folder: Path) -> None:
    """Do one partition's part of the training."""
    torch.set_num_threads(1)
    keep_freed_memory()
    task, own = load_mapping(folder / "task.json"), int(os.environ["RANK"])
    timeout = timedelta(seconds=float(task["timeout_s"]))
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False, timeout)
    setting = read(Setting, task["setting"], "setting")
    communication = read(Communication, task["communication"], "communication")
    links = Links(task["bytes_per_s"], task["latency_s"])
    killed_at = int(task["killed"].get(str(own), 0))
    transport = GlooTransport(own, setting.partitions, store, links, timeout.total_seconds(), killed_at)
    controller = Asked(store, communication.theta, timeout) if task["controlled"] else None
    held = np.load(folder / data_name(own), allow_pickle=False)
    data = Data(setting.data, *(torch.from_numpy(held[name]) for name in ARRAYS))
    replica = Replica(setting, communication.algorithm, own, data)
    run = Training(setting, communication, controller, [replica], transport).run()
    told = {
        "run": asdict(run),
        "exchange_s": transport.exchange_s,
        "waits": [[*who, waited.exchanges, waited.seconds] for who, waited in transport.waits.items()],
        "regrouped": [asdict(one) for one in transport.regrouped],
    }
    write_atomically(folder / f"result-{own}.json", json.dumps(told))


if __name__ == "__main__":
    process(main)
