"""Mist's nine measured runs on L4: predicted without having seen them."""

from functools import cache
from pathlib import Path

import pytest

from sim.specs import InputError
from sim.validation.staged import Compared, StagedRun, compare, read_staged, summary
from tests.oracle import reference


def files() -> list[Path]:
    names = ("mist_measured_runs_l4.csv", "mist_tuned_plans.json", "mist_hardware_fits.json")
    return [reference(f"tuner/{name}") for name in names]


@cache
def runs() -> list[StagedRun]:
    return read_staged(*files())


@cache
def compared(engine: str) -> list[Compared]:
    return compare(runs(), engine)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["path", "events"])
def test_nine_runs_within_the_specified_errors(engine: str) -> None:
    """Targets: time 8 % raw and 3 % with the bias removed, memory of a stage 3 %; Mist's own: 5.9 - 6.7 %, 1.2 %."""
    found = compared(engine)
    errors = summary(found)
    assert len(found) == 9
    assert errors["time"]["mape"] <= 8 and errors["time"]["mape_debiased"] <= 3  # type: ignore[operator]
    assert errors["memory"]["max"] <= 3  # type: ignore[operator]


def test_no_single_run_is_far_off() -> None:
    """Regression limits just above what was reached: 3.1 % in the mean, at most 6.0 %; memory 0.7 %."""
    errors = summary(compared("path"))
    assert errors["time"]["max"] <= 6.3 and errors["time"]["mape"] <= 3.4  # type: ignore[operator]
    assert errors["memory"]["mape"] <= 0.8  # type: ignore[operator]


def test_plans_and_models_are_read_as_they_ran() -> None:
    """7B without flash attention: four stages of 2 devices, ZeRO-1, five of seven layers recomputed in the first."""
    run = next(r for r in runs() if r.name == "l4-24gb/gpt/7b-s_2048-v_50304-b_128-n_1-m_8-f_False")
    first = run.plan.stages[0]
    assert run.plan.split_stages == (7, 8, 9, 8)
    assert (first.dp, first.zero, first.recompute_layers, first.offload.optimizer) == (2, 1, 5, 0.125)
    assert run.plan.global_batch == 128 and run.model.attention == "eager" and run.model.ffn == 4 * 4096
    assert run.cluster.links.host_bytes_per_s == pytest.approx(5.7546 * 2**30)
    assert [round(b / 2**20) for b in run.allocated_bytes] == [20033, 19329, 18145, 19061]
    llama = next(r for r in runs() if "llama/7b" in r.name)
    assert (llama.model.ffn, llama.model.positions, llama.model.tied_embeddings) == (11008, "rope", False)


def test_nothing_of_them_is_in_the_prediction() -> None:
    for found in compared("path"):
        assert "l4" not in found.step.level.devices
        assert found.step.profile.name == "l4" and not found.step.profile.estimate


@pytest.mark.parametrize(
    ("cell", "instead"),
    [("gpt,l4-24gb", "gpt,a100-40gb"), ("18506 MB; 13406 MB", "18506 MB"), ("9.6776", "soon"), ("1.3b-s", "1.4b-s")],
)
def test_a_wrong_cell_is_one_clear_error(tmp_path: Path, cell: str, instead: str) -> None:
    table, plans, hardware = files()
    broken = tmp_path / "runs.csv"
    broken.write_text(table.read_text("utf-8").replace(cell, instead, 1), "utf-8")
    with pytest.raises(InputError) as raised:
        read_staged(broken, plans, hardware)
    assert raised.value.path == f"{broken}:2"


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    table, plans, _ = files()
    (tmp_path / "fits.json").write_text('{"template": 1}', "utf-8")
    for wrong in (tmp_path / "fits.json", tmp_path / "none.json"):
        with pytest.raises(InputError):
            read_staged(table, plans, wrong)
