"""Fingerprints tell devices and software apart; the own machine becomes a device file with sources."""

from dataclasses import fields, replace

import pytest

from calibration.device import (
    DRIVER_NAMES,
    Clocks,
    Measured,
    Versions,
    cpu_fingerprint,
    device_file,
    highest_rates,
    machine,
    slug,
)
from sim.catalog import names
from sim.specs import Device
from sim.specs.catalog import device
from sim.specs.fields import InputError, read
from tests.calibration.fakes import FINGERPRINT

MEASURED = Measured(5e10, "gemm/forward", 2e10, "gelu/forward")
H200 = replace(
    FINGERPRINT,
    vendor="NVIDIA",
    name="NVIDIA H200",
    cores=132,
    versions=Versions(python="3.12.3", torch="2.11.0", cuda="13.0"),
    clocks=Clocks(sm_hz=1.98e9, memory_hz=3.2e9),
    power_cap_w=650.0,
)


def checked(made):
    """Return the mapping as the simulator reads it (what only a CPU has is not in question here)."""
    return read(Device, {k: v for k, v in made.items() if k != "peak_fp32_flop_per_s"} | {"intra_node": "pcie"})


def test_this_machine():
    held = cpu_fingerprint()
    assert held.kind == "cpu"
    assert held == cpu_fingerprint()
    assert held.versions.torch
    assert held.memory_bytes > 2**28
    assert machine(held).memory_bytes == held.memory_bytes / 4
    assert cpu_fingerprint(threads=2).differences(held) == ["threads"]


def test_differences_name_fields():
    other = replace(FINGERPRINT, driver="9", versions=Versions(python="3.11.0", torch="2.12.0"))
    assert FINGERPRINT.differences(other) == ["driver", "versions"]
    assert FINGERPRINT.differences(FINGERPRINT) == []


def test_plain_leaves_out_what_is_not_known():
    plain = FINGERPRINT.plain()
    assert plain["clocks"] == {"sm_hz": 3e9}
    assert "driver" not in plain
    assert read(type(FINGERPRINT), plain) == FINGERPRINT


def row(op="gelu", flop=1.0, size=1e9, t_s=1.0, direction="forward", name="x"):
    return {"op": op, "flop": flop, "bytes": size, "t_s": t_s, "direction": direction, "id": name}


def test_highest_rates():
    rows = [
        row("gemm", flop=1e9, size=1e6, t_s=0.1),
        row("gemm", flop=8e9, size=1e6, t_s=0.4, name="big"),
        row(size=1e6, t_s=1e-5, name="in cache"),
        row(size=1e9, t_s=0.1, name="long"),
        row("copy", flop=0.0, size=1e9, t_s=0.01, direction="h2d", name="host"),
    ]
    assert highest_rates(rows, l2_bytes=1e7) == Measured(2e10, "big", 1e10, "long")


def test_the_largest_move_counts_where_none_is_long():
    rows = [row("gemm", flop=1e12), row(size=1e6, t_s=1e-5, name="only"), row(size=1e5, t_s=1e-7)]
    assert highest_rates(rows, l2_bytes=1e9).bytes_from == "only"


@pytest.mark.parametrize("rows", [[], [row()], [row("gemm", flop=1e12)]])
def test_rates_need_both_kinds(rows):
    with pytest.raises(InputError, match="at least one sample of"):
        highest_rates(rows, 0.0)


def test_device_file_of_a_cpu():
    made = device_file(FINGERPRINT, MEASURED, "2026-01-31")
    assert made.keys() <= {f.name for f in fields(Device)} | {"peak_fp32_flop_per_s"}
    assert made["intra_node"] == "host"
    assert made["peak_fp32_flop_per_s"]["value"] == 5e10
    held = checked(made)
    assert (held.name, held.title) == ("cpu-model-1", "Model 1")
    assert (held.peak_bf16_flop_per_s.value, held.memory_bytes_per_s.value) == (5e10, 2e10)
    assert held.intra_bytes_per_s.value > 1e7
    assert (held.sms.value, held.gpus_per_node, held.boost_hz.value) == (1, 4, 3e9)
    assert held.memory_bytes.value == 2**32
    assert held.memory_bytes.source == "read from this machine, 2026-01-31: all memory over 4 processes"
    assert held.power_w.source == "assumption: 5 W a core"


def test_device_file_of_a_card_in_the_catalog_keeps_its_peaks():
    held = checked(device_file(H200, MEASURED, "2026-01-31"))
    assert held.peak_bf16_flop_per_s == device("h200-sxm-141gb").peak_bf16_flop_per_s
    assert (held.power_w.value, held.boost_hz.value, held.memory_bytes.value) == (650.0, 1.98e9, 2**34)
    assert held.intra_node == "pcie"


def test_device_file_of_an_unknown_card_has_measured_peaks():
    held = checked(device_file(replace(H200, name="Card X"), MEASURED, "2026-01-31"))
    assert held.name == "cuda-card-x"
    assert held.peak_bf16_flop_per_s.value == 5e10
    assert held.idle_power_w.source.startswith("not known")


def test_driver_names_lead_to_the_catalog():
    assert set(DRIVER_NAMES.values()) <= set(names("devices"))


def test_slug_is_a_file_name():
    assert slug(replace(FINGERPRINT, name="Intel(R) Xeon(R) @ 2.0GHz")) == "cpu-intel-r-xeon-r-2-0ghz"
    assert len(slug(replace(FINGERPRINT, name="y" * 300))) == 64
