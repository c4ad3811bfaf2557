"""What an error says was probably meant: a name that is near, or the number behind a text with a unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.specs.fields import InputError
from sim.specs.meant import near

DEVICES = ["a100-sxm-80gb", "h100-nvl", "h100-sxm-80gb", "l4"]
NEAR = [
    ("h100-sxm-80g", ["h100-sxm-80gb"]),
    ("H100-SXM-80GB", ["h100-sxm-80gb"]),
    ("h100", ["h100-nvl", "h100-sxm-80gb"]),
    ("tpu-v5", []),
    ("", []),
    ("4", []),
]
UNITS = [
    ("intra_bytes_per_s", "900 GB/s", "9e11"),
    ("intra_bytes_per_s", "900GB", "9e11"),
    ("intra_bytes_per_s", "400 Gb/s", "5e10"),
    ("memory_bytes", "80 GiB", "85899345920"),
    ("memory_bytes.value", "80.5 GB", "8.05e10"),
    ("peak_bf16_flop_per_s", "989 TFLOP/s", "9.89e14"),
    ("latency_s", "7.2 us", "7.2e-06"),
    ("checkpointing.failures.restart_s", "10m", "600"),
    ("checkpointing.failures.restart_s", "1.5 h", "5400"),
    ("training.tokens", "300B", "3e11"),
    ("training.tokens", "14.8T", "1.48e13"),
]


@pytest.mark.parametrize(("name", "found"), NEAR)
def test_names(name, found):
    assert near(name, DEVICES) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [("num_layers", ["layers"]), ("hidden_size", ["hidden"]), ("n_kv_heads", ["kv_heads"]), ("max_seq", ["seq"])],
)
def test_a_name_inside_another_is_meant(name, found):
    known = ["mtp_layers", "layers", "hidden", "heads", "kv_heads", "seq"]
    assert near(name, known, keys=True) == found
    assert near("llama4_text", ["llama"]) == []  # of values a part is another thing


@pytest.mark.parametrize(("path", "text", "number"), UNITS)
def test_text_with_a_unit(path, text, number):
    assert str(InputError(path, text, "a number from 0 to 1e18")).endswith(f"; did you mean {number}?")


@pytest.mark.parametrize("text", ["fast", "900 mB/s", "900 GB/s of both directions", "9" * 1000])
def test_other_text_has_no_number(text):
    assert "mean" not in str(InputError("intra_bytes_per_s", text, "a number from 1e6 to 1e14 B/s"))


@given(st.integers() | st.floats() | st.booleans() | st.none())
def test_numbers_are_not_taken_for_names(value):
    assert "mean" not in str(InputError("plan.schedule", value, "one of 1f1b, 10, True, none, inf"))
    assert near(str(value), map(str, range(100))) == []


def test_a_long_list_is_told_by_its_near_names():
    with pytest.raises(InputError, match=r"allowed: one of \d+ names; did you mean gpt3-175b\?$") as error:
        sim.models["gtp3-175b"]
    assert "llama3-8b" in error.value.allowed  # who reads the attribute gets them all


def test_unknown_key_is_the_last_name_of_the_path():
    assert str(InputError("axes.plan.zeroo.0", 1, "no such key; known keys: tp, zero")).endswith("did you mean zero?")


def test_facade():
    with pytest.raises(AttributeError, match="no attribute 'simulat'; did you mean simulate"):
        sim.simulat  # noqa: B018 - its absence is what is looked at
    assert sim.devices["h100-sxm-80gb"].name == "h100-sxm-80gb"


def test_what_is_missing_says_so():
    error = InputError("plan", None, "required: tp, pp")
    assert str(error) == "plan: missing; required: tp, pp"
    assert (error.path, error.value, error.allowed) == ("plan", None, "required: tp, pp")
