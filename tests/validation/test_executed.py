"""The file of executed plans: it reads back as written, and what is wrong in it is refused with its place."""

import json
from typing import Any

import pytest

from sim.report import figures
from sim.specs import InputError
from sim.specs.fields import read
from sim.validation.executed import Evidence, read_evidence, write_evidence
from tests.oracle import ROOT

SHIPPED = ROOT / "notebooks" / "data" / "hardware.json"


def side(time: float, **changed: Any) -> dict[str, Any]:
    """Return the figures of two processes, each with a message of 8 bytes to the other."""
    traffic = [{"pp send 0>1": [1, 8.0]}, {"pp send 1>0": [1, 8.0]}]
    ends = [round(0.9 * time, 6), round(1.1 * time, 6)]
    held = {"step_time_s": time, "interval_s": ends, "peak_memory_bytes": [1e6, 2e6], "traffic": traffic}
    return held | changed


def raw(**changed: Any) -> dict[str, Any]:
    """Return a file with one plan."""
    one = {
        "name": "a <b>plan", "model": {"layers": 2, "hidden": 64, "heads": 2, "vocab": 200, "seq": 32},
        "plan": {"pp": 2, "global_batch": 4}, "date": "2026-11-22", "torch": "2.13.0", "cores": 2, "steps": 10,
        "predicted": side(0.1), "measured": side(0.12, median_s=0.13), "passes": 16, "order_matches": True,
        "max_gradient_error": 1e-7,
    }  # fmt: skip
    head = {"schema_version": 1, "machine": "a machine", "profile": "cpu", "command": "a command"}
    return head | {"plans": [one | changed]}


def test_it_reads_back_as_written(tmp_path):
    held = read(Evidence, raw())
    write_evidence(held, tmp_path / "data.json")
    assert read_evidence(tmp_path / "data.json") == held
    (one,) = held.plans
    assert (one.processes, one.shares_cores, one.inside, one.traffic_matches) == (2, False, False, True)
    assert one.error == pytest.approx(0.1 / 0.12 - 1)
    assert (one.measured.messages, one.measured.bytes_sent) == (2, [8.0, 8.0])
    model, plan = one.job()
    assert (model.hidden, plan.pp) == (64, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cores": 0}, "plans.0.cores"),
        ({"predicted": side(0.1, interval_s=[0.2, 0.1])}, "plans.0.predicted.interval_s"),
        ({"predicted": side(0.1, traffic=[])}, "plans.0.predicted.traffic"),
        ({"measured": side(0.1, traffic=[{}], peak_memory_bytes=[1.0])}, "plans.0.measured.traffic"),
        ({"measured": side(-1.0)}, "plans.0.measured.step_time_s"),
        ({"measured": side(0.1, peak_memory_bytes=[1e6, 0.0])}, "measured.peak_memory_bytes"),
        ({"shell": "rm"}, "plans.0.shell"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(tmp_path, change, said):
    (tmp_path / "data.json").write_text(json.dumps(raw(**change)))
    with pytest.raises(InputError, match=said.replace(".", r"\.")):
        read_evidence(tmp_path / "data.json")


def test_a_name_stands_once():
    twice = raw()
    twice["plans"] *= 2
    with pytest.raises(InputError, match="every name once"):
        read(Evidence, twice)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_have_a_row_a_plan(theme):
    shared = raw(name="another", cores=1)["plans"] + raw()["plans"]
    plans = read(Evidence, raw() | {"plans": shared}).plans
    times, memory = figures.executed_times(plans, theme), figures.executed_memory(plans, theme)
    assert [trace.name for trace in times.data] == [
        "predicted, 80 % interval", "measured", "measured, shared cores"
    ]  # fmt: skip
    assert list(times.data[1].x) == pytest.approx([120.0]) and list(times.data[1].y) == ["a &lt;b&gt;plan"]
    assert list(times.data[0].error_x.array) == pytest.approx([10.0, 10.0])
    assert list(memory.data[1].x) == pytest.approx([1, 2, 1, 2])
    assert "−16.7 %" in times.data[1].text[0]


def test_what_is_shipped_holds_what_the_notebook_says():
    plans = read_evidence(SHIPPED).plans
    assert len(plans) >= 12
    assert {one.processes for one in plans} == {1, 2, 4}
    for one in plans:
        assert one.order_matches and one.traffic_matches
        assert one.max_gradient_error < 1e-5
        one.job()
