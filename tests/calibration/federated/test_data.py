"""Data, their partitions, and the networks."""

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits

from calibration.federated.data import DATA, digits, generated, training_samples
from calibration.federated.flat import Flat
from calibration.federated.models import NORMS, network
from calibration.federated.partition import partitioned
from calibration.federated.setting import Setting
from calibration.federated.train import train
from sim.decentralized.communication import Communication
from sim.specs.fields import InputError

LABELS = torch.arange(1003) % 10


def test_digits_are_split_once():
    data = digits()
    assert (len(data.labels), len(data.test_labels)) == (1438, 359)
    counts = torch.bincount(torch.cat([data.labels, data.test_labels]))
    assert counts.tolist() == torch.bincount(torch.tensor(load_digits().target)).tolist()


@pytest.mark.parametrize("name", DATA)
def test_images_are_scaled_and_classes_even(name):
    data = DATA[name]()
    assert len(data.labels) == training_samples(name)
    assert abs(float(data.inputs.mean())) < 1e-5
    assert float(data.inputs.std()) == pytest.approx(1, abs=1e-4)
    assert data.inputs.shape[1:] == data.shape
    counts = torch.bincount(data.labels, minlength=10) / len(data.labels)
    assert 0.07 < counts.min() <= counts.max() < 0.13


def test_generated_images_are_those_of_the_seed():
    first = generated(3).inputs.clone()
    generated.cache_clear()
    assert (generated(3).inputs == first).all()
    assert (generated(4).inputs != first).any()


@pytest.mark.slow
def test_generated_images_are_neither_easy_nor_hopeless():
    run = train(Setting(data="generated", partitions=2, steps=200, travel_every=50), Communication(algorithm="bsp"))
    assert run.travels[0].accuracy < 0.7
    assert run.accuracy > 0.8


@pytest.mark.parametrize("skew", [0.0, 0.3, 0.75, 1.0])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_every_sample_is_in_one_partition(skew, k):
    parts = partitioned(LABELS, k, skew, 1)
    assert torch.cat(parts).sort().values.tolist() == list(range(1003))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_skew_is_the_share_that_is_sorted():
    def own(skew: float) -> float:
        """Return the mean share of a partition's two most frequent labels."""
        counts = [torch.bincount(LABELS[part], minlength=10).sort().values for part in partitioned(LABELS, 5, skew)]
        return sum(float(count[-2:].sum() / count.sum()) for count in counts) / 5

    shares = [own(skew) for skew in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert shares[0] < 0.3
    assert shares[-1] > 0.98
    for skew, share in zip((0.25, 0.5, 0.75), shares[1:], strict=False):
        assert share == pytest.approx(skew + (1 - skew) * 0.2, abs=0.06)


def test_partitions_are_those_of_the_seed():
    same, other = partitioned(LABELS, 4, 0.5, 7), partitioned(LABELS, 4, 0.5, 8)
    assert all((a == b).all() for a, b in zip(same, partitioned(LABELS, 4, 0.5, 7), strict=True))
    assert (same[0] != other[0]).any()


@pytest.mark.parametrize(("changed", "path"), [({"skew": 1.5}, "skew"), ({"k": 0}, "k"), ({"k": 2000}, "k")])
def test_wrong_partitions_are_refused(changed, path):
    with pytest.raises(InputError, match=path):
        partitioned(**{"labels": LABELS, "k": 5, "skew": 0.5, **changed})


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("data", DATA)
def test_the_state_of_a_network_is_one_vector(norm, data):
    model = network(norm, DATA[data]().shape, 1)
    flat = Flat(network(norm, DATA[data]().shape, 1))
    assert 20_000 < len(flat.weights) < 30_000
    assert (len(flat.state) > len(flat.weights)) == (norm == "batch")
    inputs, labels = DATA[data]().inputs[:8], DATA[data]().labels[:8]
    flat.differentiate(inputs, labels)
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    assert torch.allclose(flat.gradient, torch.cat([p.grad.flatten() for p in model.parameters()]))
    for ours, theirs in zip(flat.module.buffers(), model.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    flat.state.zero_()
    assert not any(p.any() for p in flat.module.parameters())


def test_a_batch_is_no_larger_than_a_partition():
    with pytest.raises(InputError, match="from 1 to 287, the samples of a partition"):
        Setting(batch=288)
    assert Setting().epoch_steps == 14
    assert replace(Setting(), lr_decays=(10, 20)).lr_at(15) == pytest.approx(0.002)
