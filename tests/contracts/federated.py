"""What every algorithm of decentralised training must satisfy. A newcomer subclasses this and names itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibration.federated.replica import Replica
from calibration.federated.results import FederatedRun
from calibration.federated.setting import Setting
from calibration.federated.train import one_thread, train
from calibration.federated.transport import Memory, everyone
from sim.decentralized.communication import KNOBS, Communication

SHORT = Setting(
    partitions=3, steps=6, travel_every=3, batch=8, momentum=0.0, outer_lr=1.0, outer_momentum=0.0, clip_norm=1e6
)


class FederatedContract:
    """Laws of an algorithm. whole: the theta at which every value goes at every step."""

    name: str
    whole: float

    @pytest.fixture(autouse=True)
    def _one_thread(self):
        with one_thread():
            yield

    def trained(self, theta: float | None = None, **changed: object) -> FederatedRun:
        at = self.whole if theta is None else theta
        return train(replace(SHORT, **changed), Communication(algorithm=self.name, theta=at))

    def test_where_all_is_sent_it_is_bsp(self):
        wanted = train(replace(SHORT, skew=1.0), Communication(algorithm="bsp"))
        found = self.trained(skew=1.0)
        assert np.abs(np.subtract(found.state, wanted.state)).max() < 1e-6
        assert found.sent_bytes == wanted.sent_bytes

    @pytest.mark.slow
    def test_equal_seeds_are_equal_to_the_bit(self):
        for theta in KNOBS[self.name].thetas[::5]:
            one, other = (self.trained(theta, momentum=0.9, steps=12) for _ in range(2))
            assert one == other
        assert self.trained(seed=1).state != self.trained().state

    def test_bytes_are_those_of_the_arrays(self):
        setting = replace(SHORT, norm="batch")
        replicas = [Replica(setting, self.name, own, data) for own, data in enumerate(setting.shares())]
        for step in range(1, 5):
            messages = [replica.step(step, KNOBS[self.name].thetas[0]) for replica in replicas]
            assert len({message is None for message in messages}) == 1
            if messages[0] is None:
                continue
            done = Memory(setting.partitions).exchange(step, messages, everyone)
            sizes = [4 * (m.values.numel() + (0 if m.indices is None else m.indices.numel())) for m in messages]
            assert list(done.sent_bytes) == sizes
            assert done.traffic_bytes == 2 * sum(sizes)
            for replica in replicas:
                replica.receive(done)

    @pytest.mark.slow
    def test_less_is_sent_with_every_further_theta(self):
        at = {"partitions": 2, "batch": 100, "steps": 50, "travel_every": 50}
        sent = [self.trained(theta, **at).sent_bytes for theta in KNOBS[self.name].thetas[::3]]
        assert sent == sorted(sent, reverse=True)
        assert len(set(sent)) == len(sent)

    def test_it_learns_iid_data(self):
        run = self.trained(KNOBS[self.name].thetas[0], momentum=0.9, steps=80, travel_every=40)
        assert run.accuracy > 0.8
        assert abs(run.accuracy_loss) < 0.05

    def test_theta_may_change_and_partitions_may_leave(self):
        setting = replace(SHORT, momentum=0.9)
        replicas = [Replica(setting, self.name, own, data) for own, data in enumerate(setting.shares())]
        transport = Memory(3)
        for step in range(1, 13):
            if step == 7:
                replicas, transport.members = replicas[1:], (1, 2)
            messages = [replica.step(step, KNOBS[self.name].thetas[:2][step % 2 - 1]) for replica in replicas]
            if messages[0] is not None:
                done = transport.exchange(step, messages, everyone)
                for replica in replicas:
                    replica.receive(done)
        assert all(torch.isfinite(replica.model.state).all() for replica in replicas)
