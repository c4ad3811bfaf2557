import pytest

from sim.decentralized import Communication, Messages, Sizes
from sim.decentralized.communication import kept_by_dgc
from sim.specs.fields import InputError

SIZES = Sizes(tensors=(1_000, 10, 1), buffers=40)


def messages(algorithm, theta, **more):
    return Messages(communication=Communication(algorithm=algorithm, theta=theta), sizes=SIZES, **more)


def test_sizes_are_those_of_all_tensors():
    assert SIZES.parameters == 1_011
    assert SIZES.model_bytes == 4 * (1_011 + 40)
    twice = SIZES.scaled(2 * SIZES.model_bytes)
    assert (twice.tensors, twice.buffers) == ((2_000, 20, 2), 80)
    for wrong in ({}, {"parameters": 5, "tensors": (3, 3)}, {"tensors": (0,)}):
        with pytest.raises(InputError, match=r"parameters|tensors"):
            Sizes(**wrong)


def test_gradients_are_whole_and_models_take_their_buffers_along():
    assert messages("bsp", 1.0).bytes_at() == 4 * 1_011
    for name in ("fedavg", "diloco"):
        assert messages(name, 20.0).bytes_at() == SIZES.model_bytes
        assert messages(name, 20.0).bytes_per_step(30, 40) == SIZES.model_bytes / 20


def test_dgc_sends_a_share_of_every_tensor():
    kept = sum(kept_by_dgc(0.99, values) for values in SIZES.tensors)
    assert kept == 10 + 1 + 1
    assert messages("dgc", 0.99).bytes_at() == 8 * kept
    assert messages("dgc", 0.0).bytes_at() == 4 * 1_011  # with indices it would be twice as much


def test_warm_up_holds_back_less_in_stages():
    warm = messages("dgc", 0.99, warm_up_steps=10)
    assert warm.stages == (1, 11, 21, 31, 41, 51)
    for begin, end in ((0, 5), (5, 10), (5, 35), (10, 20), (0, 60)):
        sent = [warm.bytes_at(step) for step in range(begin + 1, end + 1)]
        assert warm.bytes_per_step(begin, end) == sum(sent) / len(sent)
    sizes = [warm.bytes_at(step) for step in warm.stages]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4  # the last stages hold back more than theta, and are cut to it
    assert warm.bytes_at(10) == sizes[0] == 8 * (250 + max(1, round(0.25 * 10)) + 1)
    assert warm.bytes_at(11) == sizes[1]
    assert warm.bytes_at() == messages("dgc", 0.99).bytes_at() == sizes[-1]


def test_gaia_sends_what_a_fraction_says():
    assert messages("gaia", 0.2, sent_fraction=0.1).bytes_at() == 8 * 102
    assert messages("gaia", 0.2).bytes_at() == 4 * 1_011
