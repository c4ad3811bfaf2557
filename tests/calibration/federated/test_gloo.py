"""Partitions that are processes: the same training, over slow links, and when one is lost."""

import subprocess
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

from calibration.execute.processes import ExecutionError
from calibration.federated.gloo import _Watch, train_processes
from calibration.federated.gloo_transport import GlooTransport, members_key
from calibration.federated.links import links
from calibration.federated.message import Message, whole
from calibration.federated.setting import Setting
from calibration.federated.train import train
from calibration.federated.transport import everyone
from sim.decentralized.communication import Communication
from sim.specs.fields import InputError
from tests.calibration.federated.scripted import Scripted

SETTING = Setting(partitions=3, steps=10, travel_every=4, skew=1.0, norm="batch")
GAIA = Communication(algorithm="gaia", theta=0.1)


@pytest.mark.slow
def test_processes_do_what_one_process_does_and_name_the_slow_link():
    slow = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.1, 0.0, 0.0]]
    far, here = Scripted((0.1, 0.3, 0.02)), Scripted((0.1, 0.3, 0.02))
    found = train_processes(SETTING, GAIA, far, latency_s=slow)
    wanted = train(SETTING, GAIA, here)
    assert np.abs(np.subtract(found.run.state, wanted.state)).max() < 1e-6
    assert replace(found.run, state=wanted.state) == wanted
    assert found.run.thetas == (0.1,) * 4 + (0.3,) * 4 + (0.02,) * 2
    assert far.seen == here.seen
    worst = found.waits[0]
    assert (worst.partition, worst.sender) == (0, 2)
    # Every step's message goes over the slow link, of two travels one.
    assert 0.1 * 11 < found.run.seconds < 60
    assert worst.seconds > 0.1 * 8
    assert found.lines()[0].startswith("partition 0 waited")
    assert not found.departures


def test_those_who_are_left_go_on_when_the_first_is_killed():
    found = train_processes(SETTING, Communication(algorithm="fedavg", theta=2.0), killed={0: 6})
    (lost,) = found.departures
    assert (lost.partition, lost.signal, lost.step) == (0, 9, 6)
    assert lost.resumed_after_s < 10
    assert [(one.step, one.partitions) for one in found.run.exchanges] == [
        *[(step, (0, 1, 2)) for step in (2, 4)],
        *[(step, (1, 2)) for step in (6, 8, 10)],
    ]
    assert [travel.partitions for travel in found.run.travels] == [(0, 1, 2), (1, 2)]
    model = 4 * found.run.state_values
    assert found.run.traffic_bytes == (2 * 6 + 3 * 2) * model + (3 + 2) * model
    assert found.run.partitions == (1, 2)
    assert len(found.run.partition_accuracy) == len(found.exchange_s) == 2
    assert found.lines()[0].startswith("partition 0 was ended by signal 9; the others noticed at step 6")


def meet(monkeypatch, partitions, act):
    """Return what `act(transport)` returned for each of so many transports, each on a thread."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store, found = HashStore(), {}

    def run(own):
        found[own] = act(GlooTransport(own, partitions, store, links(partitions, 1e15), 20.0), store)

    threads = [threading.Thread(target=run, args=(own,)) for own in range(partitions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[own] for own in range(partitions)]


def test_messages_arrive_as_they_were_sent(monkeypatch):
    sent = [
        whole(torch.arange(5.0)),
        Message(torch.tensor([7.0]), torch.tensor([3], dtype=torch.int32), 1),
        Message(torch.tensor([1 / 3], dtype=torch.float64)),
    ]
    for done in meet(monkeypatch, 3, lambda transport, _: transport.exchange(1, [sent[transport.own]], everyone)):
        assert done.sent_bytes == (20, 8, 8)
        assert done.traffic_bytes == 72
        for message, wanted in zip(done.messages, sent, strict=True):
            assert torch.equal(message.values, wanted.values)
            assert (message.indices is None) == (wanted.indices is None)
            assert message.significant == wanted.significant
        assert done.messages[1].indices.tolist() == [3]


def test_who_was_not_done_gets_what_the_others_had_of_a_partition_that_is_gone(monkeypatch):
    barrier = threading.Barrier(3)

    def act(transport, store):
        """Partition 2 goes after an exchange that partition 1 has not seen the end of."""
        own = transport.own
        done = transport.exchange(1, [whole(torch.tensor([float(own)]))], everyone)
        if own == 1:
            transport.number, transport.last = 0, type(done)((), (), ())
        barrier.wait()
        if own == 2:
            transport._group = None
            store.set(members_key(1), "[0, 1]")
            return None
        if own == 1:
            done = transport.exchange(1, [whole(torch.tensor([1.0]))], everyone)
            assert done.members == (0, 1, 2)
            assert [float(message.values) for message in done.messages] == [0.0, 1.0, 2.0]
        after = transport.exchange(2, [whole(torch.tensor([10.0 + own]))], everyone)
        return after.members, [float(message.values) for message in after.messages], transport.regrouped[0].gone

    assert meet(monkeypatch, 3, act)[:2] == [((0, 1), [10.0, 11.0], (2,))] * 2


def test_a_link_carries_its_bytes_after_its_latency():
    wan = links(2, [[0, 4.0], [8.0, 0]], 0.5)
    assert (wan.carry_s(0, 1, 16), wan.carry_s(1, 0, 16)) == (4.5, 2.5)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"killed": {3: 1}}, "killed"),
        ({"killed": {1: 11}}, "killed"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"bytes_per_s": [[1.0]]}, "bytes_per_s"),
        ({"bytes_per_s": 0.0}, "bytes_per_s"),
        ({"latency_s": -1.0}, "latency_s"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(given, path):
    with pytest.raises(InputError, match=path):
        train_processes(SETTING, GAIA, **given)


@pytest.mark.parametrize(("command", "told"), [("echo no cheese; exit 3", "no cheese"), ("kill -9 $$", "signal 9")])
def test_a_failure_and_the_loss_of_all_end_the_training(tmp_path, command, told):
    (tmp_path / "words-0").write_text("no cheese")
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.DEVNULL)
    with pytest.raises(ExecutionError, match=told):
        _Watch([process], HashStore(), tmp_path).until_the_end(None, GAIA, 10.0)


def test_partitions_that_take_too_long_are_told(tmp_path):
    process = subprocess.Popen(["sleep", "5"])
    with pytest.raises(ExecutionError, match=r"have not ended after 0\.1 s"):
        _Watch([process], HashStore(), tmp_path).until_the_end(None, GAIA, 0.1)
    process.kill()
    process.wait()
