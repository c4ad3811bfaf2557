"""Prepared samples: shapes, normalised, augmented by place, every sample once an epoch."""

import pytest
import torch
from torch.utils.data import DataLoader

from calibration.loading.decoding import LENGTH, SIDE, Order, Prepared


def test_images_are_tensors_around_zero(images):
    pixels = torch.stack([Prepared(images, "images")[place] for place in range(8)])
    assert pixels.shape == (8, 3, SIDE, SIDE)
    assert pixels.dtype == torch.float32
    assert abs(pixels.mean()) < 1
    assert 0.1 < pixels.std() < 2


def test_sounds_are_normalised(sounds):
    sound = Prepared(sounds, "audio")[0]
    assert sound.shape == (1, LENGTH)
    assert sound.mean() == pytest.approx(0, abs=1e-5)
    assert sound.std() == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("kind", ["images", "audio"])
def test_a_sample_is_augmented_anew_in_each_epoch(kind, request):
    source = request.getfixturevalue({"images": "images", "audio": "sounds"}[kind])
    data = Prepared(source, kind, seed=3)
    assert torch.equal(data[1], Prepared(source, kind, seed=3)[1])
    assert not torch.equal(data[1], data[1 + len(source)])
    assert not torch.equal(data[1], Prepared(source, kind, seed=4)[1])


def test_every_epoch_holds_every_sample_once():
    places = list(Order(10, 3, seed=1))
    epochs = [places[10 * epoch :][:10] for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10 * e, 10 * e + 10)) for e in range(3)]
    assert len({tuple(place % 10 for place in epoch) for epoch in epochs}) == 3
    assert list(Order(10, 3, seed=1)) == places
    assert len(Order(10, 3)) == 30


def test_workers_prepare_what_one_process_does(images):
    data, order = Prepared(images, "images"), Order(len(images), 1)
    alone = list(DataLoader(data, 8, sampler=order))
    shared = list(DataLoader(data, 8, sampler=order, num_workers=2))
    assert len(alone) == 5
    assert all(torch.equal(one, other) for one, other in zip(alone, shared, strict=True))
