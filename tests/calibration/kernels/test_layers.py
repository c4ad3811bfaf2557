"""Which products are measured."""

import pytest

from calibration.kernels.layers import flop, layers, small_transformers
from calibration.kernels.whole import CPU_STEPS, CUDA_STEPS
from tests.contracts.family import CPU, CUDA


def fitted(machine, suite):
    return [layer for use, layer in layers(machine, suite) if use == "fit"]


@pytest.mark.parametrize(("machine", "suite", "least"), [(CPU, "smoke", 55), (CUDA, "smoke", 55), (CUDA, "full", 240)])
def test_there_are_enough_shapes_of_every_sort(machine, suite, least):
    some = fitted(machine, suite)
    assert least <= len(some) <= 260
    assert any(batch > 1 for *_, batch in some)
    assert any(tokens < 16 for tokens, *_ in some)
    assert any(n % 8 for layer in some for n in layer[:3])


@pytest.mark.parametrize(("machine", "steps"), [(CPU, CPU_STEPS), (CUDA, CUDA_STEPS)], ids=["cpu", "cuda"])
def test_the_products_of_whole_steps_lie_inside(machine, steps):
    some = fitted(machine, "smoke" if machine.kind == "cpu" else "full")
    low, high = ([f(layer[i] for layer in some) for i in range(3)] for f in (min, max))
    for size in steps:
        tokens, h = size.micro_batch * size.seq, size.hidden
        for layer in ((tokens, h, 3 * h), (tokens, h, 4 * h), (tokens, 4 * h, h), (tokens, h, size.vocab)):
            assert all(a <= n <= b for a, n, b in zip(low, layer, high, strict=True)), layer


def test_larger_ones_are_larger_and_random_ones_are_not_of_the_grid():
    for machine in (CPU, CUDA):
        some = list(layers(machine, "full"))
        most = max(flop(layer) for use, layer in some if use == "fit")
        assert all(flop(layer) > most for use, layer in some if use == "larger")
        assert sum(n & (n - 1) > 0 for use, layer in some if use == "random" for n in layer[:3]) > 30


def test_small_transformers_are_whole_layers():
    assert (256, 512, 2048, 1) in set(small_transformers())
