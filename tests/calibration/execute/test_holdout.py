"""Predictions come before measurements, and both are told; what cannot be run is refused; accuracy where it is idle."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibration.execute import holdout
from calibration.execute.busy import others
from calibration.execute.holdout import Case, Row, cases, cluster_of, hold_out, table
from calibration.execute.limits import as_executed, check_model, executable
from calibration.execute.measure import Measured
from calibration.execute.predict import Predicted, predict, predict_block
from calibration.execute.processes import ExecutionError
from calibration.execute.trainer import Trainer
from calibration.execute.worker import peak_bytes
from sim.costs.profile import load_profile
from sim.specs import Cluster, InputError, Model, Offload, Plan
from sim.specs.catalog import models
from tests.calibration.execute.cases import SMALL, plan, profile


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of a made-up core."""
    return profile(tmp_path_factory.mktemp("profiles") / "core")


def instead(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Measure nothing: whatever is asked for takes a second, if its prediction is in the folder."""

    def told(model: Model, given: Plan, *_: object) -> Measured:
        held = json.loads((folder / holdout.FILE).read_text())
        assert len(held["predictions"]) > len(held["rows"])
        return Measured(1.0, 1.1, 10, (2.0, 1.0), (1e6,) * (given.dp or 1), (0.0,) * (given.dp or 1))

    monkeypatch.setattr(holdout, "measure", told)
    monkeypatch.setattr(holdout, "measure_block", told)


def test_predictions_are_written_before_anything_is_measured(folder, monkeypatch):
    instead(monkeypatch, folder)
    rows = hold_out(folder, "cpu")
    held = json.loads((folder / holdout.FILE).read_text())
    assert [row["name"] for row in held["rows"]] == list(held["predictions"]) == [c.name for c in cases("cpu")]
    for row in rows:
        told = held["predictions"][row.case.name]
        assert told["step_time_s"] == row.predicted.step_time_s
        assert row.error == pytest.approx(row.predicted.step_time_s - 1)


def test_a_case_that_fails_keeps_none_of_the_others_from_running(folder, monkeypatch):
    instead(monkeypatch, folder)
    other, wrong = holdout.measure, next(case for case in cases("cpu") if case.what == "step")

    def killed(model: Model, given: Plan, *more: object) -> Measured:
        if model == wrong.model:
            raise ExecutionError("a process was killed")
        return other(model, given, *more)

    monkeypatch.setattr(holdout, "measure", killed)
    failed = []
    rows = hold_out(folder, "cpu", failed=lambda case, error: failed.append((case.name, str(error))))
    assert failed == [(wrong.name, "a process was killed")]
    assert [row.case.name for row in rows] == [case.name for case in cases("cpu") if case.name != wrong.name]
    with pytest.raises(ExecutionError):
        hold_out(folder, "cpu")
    monkeypatch.setattr(holdout, "measure", other)
    assert wrong.name in [row.case.name for row in hold_out(folder, "cpu", resume=True)]


def test_the_cases_are_what_a_newcomer_can_run():
    held = list(cases("cpu"))
    assert {case.what for case in held} == {"block", "step"}
    assert {case.plan.dp for case in held} == {1, 2}
    assert len({case.name for case in held}) == len(held)
    for case in held:
        check_model(case.model)
        assert case.model.hidden in (128, 256, 512)
        assert case.model.vocab <= 8_000
    assert all(case.plan.precision == "bf16" and case.plan.dp == 1 for case in cases("cuda"))


def test_a_busy_machine_is_refused_with_the_reason(folder, monkeypatch):
    instead(monkeypatch, folder)
    with pytest.raises(ExecutionError, match="others use 90 %"):
        hold_out(folder, "cpu", busy=lambda: "others use 90 %")
    assert json.loads((folder / holdout.FILE).read_text())["rows"] == []


def test_what_is_executed_already_stays_with_its_prediction(folder, monkeypatch):
    instead(monkeypatch, folder)
    file = folder / holdout.FILE
    first = next(cases("cpu")).name
    kept = {"name": first, "error": 0.5}
    file.write_text(json.dumps({"predictions": {first: {"step_time_s": 7.0}, "gone": {}}, "rows": [kept]}))
    rows = hold_out(folder, "cpu", resume=True)
    held = json.loads(file.read_text())
    assert held["rows"][0] == kept and held["predictions"][first] == {"step_time_s": 7.0}
    names = [c.name for c in cases("cpu")]
    assert [row.case.name for row in rows] == names[1:]
    assert [row["name"] for row in held["rows"]] == list(held["predictions"]) == names
    hold_out(folder, "cpu")
    assert kept not in json.loads(file.read_text())["rows"]


def test_progress_hears_of_every_case_and_the_table_has_them(folder, monkeypatch):
    instead(monkeypatch, folder)
    heard: list[Row] = []
    assert hold_out(folder, "cpu", done=heard.append) == heard
    assert [found.case for found in heard] == list(cases("cpu"))
    assert table(heard).row_count == len(heard)


def test_rows_of_a_busy_machine_say_so(folder, monkeypatch):
    instead(monkeypatch, folder)
    shares = iter([0.45, *(0.01 for _ in cases("cpu"))])
    monkeypatch.setattr(holdout, "beside", lambda run: (run(), next(shares)))
    rows = hold_out(folder, "cpu")
    assert [held["load"] for held in json.loads((folder / holdout.FILE).read_text())["rows"][:2]] == [0.45, 0.01]
    made = table(rows)
    assert list(made.columns[-1].cells)[:2] == ["45\u00a0%", "1.0\u00a0%"]
    assert str(made.caption).endswith("; never fitted; the machine was busy: others used 45\u00a0% of it")
    assert str(table(rows[1:]).caption).endswith("; never fitted")


def row(predicted_s: float, measured_s: float) -> Row:
    interval = predicted_s / 1.2, predicted_s * 1.2
    case = Case("block", "block", SMALL, plan())
    return Row(case, Predicted(predicted_s, interval), Measured(measured_s, measured_s, 10))


@pytest.mark.parametrize(("predicted", "inside"), [(1.0, True), (1.21, False), (0.8, False), (1.19, True)])
def test_inside_means_inside_the_interval(predicted, inside):
    found = row(predicted, 1.0)
    assert found.inside is inside
    assert found.memory_error is None
    assert f"{int(inside)} of 1 inside" in str(table([found]).caption)


def test_a_step_is_longer_than_its_blocks(folder):
    cluster = cluster_of(folder, "cpu", 1)
    block, step = predict_block(SMALL, cluster, plan()), predict(SMALL, cluster, plan())
    layers, microbatches = SMALL.layers, 4
    assert layers * microbatches * block.step_time_s < step.step_time_s
    assert predict_block(replace(SMALL, layers=5, pattern="T" * 5), cluster, plan()) == block


@pytest.mark.parametrize(
    ("micro_batch", "change"),
    [
        (8, {}),
        (8, {"attention": "eager"}),
        (4, {"tied_embeddings": False}),
        (2, {"tied_embeddings": False, "seq": 16, "vocab": 4_000}),
    ],
)
def test_the_predicted_peak_is_the_measured_one(folder, micro_batch, change):
    """Within 0.2 %: tokens and loss are not predicted, nor the mask of stored scores."""
    sizes = {"layers": 2, "hidden": 128, "heads": 2, "seq": 64, "vocab": 1_000}
    model, given = Model(**{**sizes, **change}), plan(micro_batch=micro_batch)
    trainer = Trainer(model, given, 0, 1, torch.device("cpu"), seed=0)
    trainer.step()  # makes the optimizer's states
    (predicted,) = predict(model, cluster_of(folder, "cpu", 1), given).peak_memory_bytes
    assert predicted == pytest.approx(peak_bytes(trainer, trainer.step), rel=2e-3)


def test_overlap_never_makes_a_predicted_step_longer(folder):
    cluster = cluster_of(folder, "cpu", 2)
    apart, beside = (predict(SMALL, cluster, plan(dp=2, overlap_dp=o)) for o in (False, True))
    assert beside.step_time_s <= apart.step_time_s
    assert beside.bytes_sent == apart.bytes_sent


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dropout": 0.1}, "model.dropout: got 0.1; allowed: 0.0 in what is executed"),
        ({"norm": "rmsnorm"}, "model.norm"),
        ({"gated_mlp": True}, "model.gated_mlp"),
        ({"positions": "rope"}, "model.positions"),
        ({"kv_heads": 1}, "model.kv_heads"),
        ({"window": 8}, "model.window"),
        ({"layers": 200, "hidden": 1024}, "model: got '2519"),
    ],
)
def test_other_networks_are_refused(change, said):
    sizes = {"layers": 2, "hidden": 64, "heads": 2, "vocab": 200, "seq": 32}
    with pytest.raises(InputError, match="in what is executed") as told:
        check_model(Model(**{**sizes, **change}))
    assert said in str(told.value)


def test_a_network_that_is_too_large_is_told_so_whatever_else_it_has():
    with pytest.raises(InputError, match=r"model: got '17\d{10} parameters'; allowed: at most 500000000"):
        check_model(replace(models["gpt3-175b"], dropout=0.1))


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-175b", "vit-b", "mixtral-8x7b", "t5-base"])
def test_large_and_foreign_networks_of_the_catalog_are_refused(name):
    with pytest.raises(InputError, match="in what is executed"):
        check_model(models[name])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cp": 2}, "plan.cp: got 2; allowed: 1 in what is executed"),
        ({"zero": 3, "dp": 2, "tp": 2}, "plan.zero: got 3; allowed: 0 or 1 with tp or pp > 1"),
        ({"zero": 2}, "plan.zero: got 2; allowed: 0 or 1 on one data-parallel rank"),
        ({"pp": 2, "schedule": "pipedream"}, "model.tied_embeddings: got True; allowed: false with schedule pipedream"),
        ({"pp": 2, "schedule": "2bw", "dp": 2}, "plan.dp: got 2; allowed: 1 with schedule 2bw"),
        ({"pp": 2, "schedule": "chimera", "virtual_stages": 1}, "plan.schedule: got 'chimera'; allowed: one copy"),
        ({"pp": 2, "stage_layers": (0, 2)}, "plan.stage_layers"),
        ({"offload": Offload(gradients=1.0)}, "plan.offload.gradients: got 1.0; allowed: 0 in what is executed"),
        ({"offload": Offload(activations=0.3)}, "plan.offload.activations: got 0.3; allowed: a share of whole layers"),
        ({"offload": Offload(activations=1.0), "recompute": "selective"}, "plan.offload.activations: got 1.0"),
        ({"offload": Offload(optimizer=1.0), "zero": 2, "dp": 2}, "plan.offload.optimizer: got 1.0; allowed: 0 with"),
        ({"precision": "fp16"}, "plan.precision: got 'fp16'; allowed: fp32 or bf16"),
        ({"precision": "bf16", "pp": 2, "schedule": "2bw"}, "plan.precision: got 'bf16'; allowed: fp32 with schedule"),
        ({"compiled": True, "tp": 2}, "plan.tp: got 2; allowed: 1 with compiled true"),
        ({"compiled": True, "recompute": "full"}, "plan.recompute: got 'full'; allowed: none with compiled true"),
        ({"compiled": True, "offload": Offload(activations=1.0)}, "plan.offload.activations: got 1.0; allowed: 0 with"),
        ({"dp": 16, "micro_batch": 1, "global_batch": 16}, "plan: got '16 ranks'; allowed: at most 8 on cpu"),
    ],
)
def test_other_plans_are_refused(folder, change, said):
    given = plan(**change)
    devices = given.tp * given.pp * given.dp * given.cp
    held = Cluster.of("cpu", nodes=1, gpus_per_node=devices, domain_gpus=devices, profile=str(folder))
    with pytest.raises(InputError) as told:
        executable(SMALL, held, given, "cpu")
    assert said in str(told.value)


def test_compiled_layers_need_a_compiler(folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    held = Cluster.of("cpu", nodes=1, gpus_per_node=1, domain_gpus=1, profile=str(folder))
    with pytest.raises(InputError, match="no no-such-compiler here"):
        executable(SMALL, held, plan(compiled=True), "cpu")


def test_what_torch_does_itself_is_part_of_the_plan():
    made = as_executed(Plan(global_batch=8))
    assert (made.framework, made.cross_entropy, made.fused_wgrad) == ("torch", "autograd", False)


@pytest.mark.slow
def test_predictions_of_the_own_calibration_hold():
    """TRAINSIM_PROFILE names the folder of a calibration of this very machine."""
    held = os.environ.get("TRAINSIM_PROFILE")
    if not held:
        pytest.skip("no calibration of this machine (set TRAINSIM_PROFILE)")
    reason = others()
    if reason:
        pytest.skip(reason)
    rows = hold_out(Path(held), "cpu")
    errors = sorted(abs(found.error) for found in rows)
    assert errors[len(errors) // 2] < 0.15
    assert sum(found.inside for found in rows) >= len(rows) // 2


def test_processes_that_share_cores_take_the_time_of_all_their_work(folder):
    """Two that are never idle take twice as long on one core; a pipeline's bubble leaves the core to the other."""
    cluster = cluster_of(folder, "cpu", 2)
    for given, crowded in ((plan(dp=2), 2.0), (plan(dp=1, pp=2), 1.5)):
        apart, beside = (predict(SMALL, cluster, given, cores=cores) for cores in (2, 1))
        assert beside.step_time_s == pytest.approx(apart.step_time_s * beside.crowded_factor)
        assert 1 == apart.crowded_factor < beside.crowded_factor == pytest.approx(crowded, abs=0.3)
        assert predict(SMALL, cluster, given).figures() == apart.figures()


def test_a_folder_of_a_catalog_profiles_name_is_the_folder(tmp_path, monkeypatch):
    """`calibrate --out cpu`: the catalog has a profile of that name."""
    profile(tmp_path / "cpu")
    monkeypatch.chdir(tmp_path)
    there = cluster_of(Path("cpu"), "cpu", 1)
    assert load_profile(there.profile) == load_profile(str(tmp_path / "cpu")) != load_profile("cpu")
