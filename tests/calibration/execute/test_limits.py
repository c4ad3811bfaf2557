"""What is refused before anything is started: versions, orders, too few processes."""

import json
from dataclasses import replace

import pytest
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, _PipelineScheduleRuntime
from typer.testing import CliRunner

from calibration.execute import cli, versions
from calibration.execute.limits import as_executed, check_order, executable, executed_level
from calibration.execute.measure import _measured, median_interval
from calibration.execute.predict import assumptions, predict
from calibration.execute.runtime import check
from calibration.execute.versions import check_torch
from sim.costs.run_level import level_of
from sim.schedules import Shape, build
from sim.schedules.custom import parse_order
from sim.specs import Cluster, InputError, Offload, Plan
from tests.calibration.execute.cases import SMALL, cluster, job, plan, profile

RUN = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The profile of a made-up core."""
    return profile(tmp_path_factory.mktemp("profiles") / "core")


@pytest.mark.parametrize("found", ["2.11.0", "2.13.0+cpu", "2.12.1"])
def test_the_versions_of_pyproject_are_executed_on(found):
    check_torch(found)


@pytest.mark.parametrize("found", ["2.10.1", "2.14.0", "3.0", "nightly"])
def test_other_versions_are_refused(found):
    with pytest.raises(InputError, match=r"torch: got .*; allowed: >= 2\.11, < 2\.14"):
        check_torch(found)


def test_the_installed_runtime_has_what_is_used_of_it():
    check()


def test_a_runtime_that_has_changed_is_refused(monkeypatch):
    monkeypatch.delattr(PipelineScheduleMulti, "_load_csv")
    monkeypatch.delattr(_PipelineScheduleRuntime, "_load_csv")
    with pytest.raises(InputError, match="allowed: a _PipelineScheduleRuntime with _load_csv"):
        check()


def test_another_torch_is_refused_by_the_command(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(versions, "version", lambda name: "2.14.1")
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder)), "--despite-load"])
    assert str(done.exception).startswith("torch: got '2.14.1'; allowed: >= 2.11, < 2.14 (its pipelining runtime")


def test_a_plan_for_more_ranks_than_processes_is_refused(tmp_path, folder):
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder, dp=2)), "--despite-load", "--processes", "1"])
    assert str(done.exception) == "--processes: got 1; allowed: at least 2: the plan has so many ranks"


GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("1F1", "1F0"), "row 2 cell 3: got '1F0'; allowed: every action once"),
        (GOOD.replace("1B1", "1X1"), "row 2 cell 4: got '1X1'"),
        (GOOD.replace(",0B1", ""), "0F1 without 0I1"),
        (GOOD + "2F0,2F1,2B0,2B1\n", "order: ranks: got 3; allowed: 2"),
        ("0F0,0B0\n1F0,1B0\n", "order: microbatches: got 1; allowed: 2"),
        ("0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0\n", ""),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "order: got 'a deadlock'; allowed: an order that ends: "),
        ("1F0,1F1,1B0,1B1\n0F0,0B0,0F1,0B1\n", "order: rank of every stage: got [1, 0]; allowed: [0, 1]"),
        ("0F1,0F0,0B0,0B1\n1F1,1F0,1B0,1B1\n", "order: got '1F1 first'; allowed: F of stage 1 in the order"),
    ],
)
def test_an_order_that_was_tampered_with_is_refused(folder, text, said):
    given = plan(pp=2, schedule="gpipe", global_batch=4)

    def predicted() -> object:
        return predict(SMALL, cluster(folder, 2), given, order=parse_order(text))

    if not said:
        assert predicted()
        return
    with pytest.raises(InputError) as told:
        predicted()
    assert said in str(told.value)


def test_an_order_needs_a_pipeline(tmp_path, folder):
    (tmp_path / "o.csv").write_text(GOOD)
    done = RUN.invoke(cli.app, [str(job(tmp_path, folder)), "--despite-load", "--order", str(tmp_path / "o.csv")])
    assert str(done.exception).startswith("--order")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recompute": "full"}, "plan.recompute"),
        ({"offload": Offload(activations=1.0)}, "plan.offload.activations"),
    ],
)
def test_what_a_split_backward_would_do_twice_is_refused(change, said):
    with pytest.raises(InputError, match="where I and W are apart") as told:
        check_order(build("zb-h1", Shape(2, 4)), plan(pp=2, schedule="zb-h1", **change))
    assert str(told.value).startswith(said)


def test_tensor_parallel_plans_execute_on_both_devices():
    given = plan(tp=2, recompute="selective", precision="bf16")
    assert executable(SMALL, Cluster.of("cpu", 1, gpus_per_node=2, domain_gpus=2), given, "cpu").gpus == 2
    assert executable(SMALL, Cluster.of("h100-sxm-80gb", 1, gpus_per_node=2), given, "cuda").gpus == 2


@pytest.mark.parametrize(("n", "places"), [(10, (1, 8)), (20, (5, 14)), (1, (0, 0)), (4, (0, 3))])
def test_the_interval_of_a_median_is_that_of_the_tables(n, places):
    """n = 10: 2nd to 9th hold it in 97.9 %, 3rd to 8th in 89.1 %; n = 20: 6th to 15th in 95.9 %."""
    assert median_interval(n) == places


def test_figures_are_plain_data(folder):
    said = predict(SMALL, cluster(folder, 2), plan(pp=2, schedule="1f1b")).figures()
    assert json.loads(json.dumps(said))["traffic"][0]["pp send 0>1"] == [4, 4 * 4 * 2 * SMALL.seq * SMALL.hidden]


@pytest.mark.parametrize("change", [{"tp": 2}, {"pp": 2}, {"dp": 2, "zero": 3}])
def test_tempos_layers_are_executed_whole(change):
    given = plan(tempo=True, **change)
    name = next(each for each in ("tp", "pp", "zero") if each in change)
    with pytest.raises(InputError, match=rf"^plan.{name}: got {change[name]}; allowed: .* with tempo true"):
        executable(SMALL, Cluster.of("cpu", 1, gpus_per_node=2, domain_gpus=2), given, "cpu")
    assert executable(SMALL, Cluster.of("cpu", 1, gpus_per_node=1), plan(tempo=True), "cpu").gpus == 1


def test_nothing_happens_between_two_steps_of_what_is_executed():
    hosts, gpus = Cluster.of("cpu", 1, gpus_per_node=1), Cluster.of("h100-sxm-80gb", 1, gpus_per_node=1)
    assert executed_level(hosts) == level_of(hosts)
    usual, here = level_of(gpus), executed_level(gpus)
    assert here.parameters.step_overhead_s == 0 < usual.parameters.step_overhead_s
    assert replace(here.parameters, step_overhead_s=usual.parameters.step_overhead_s) == usual.parameters
    given = Plan(global_batch=4, precision="bf16")
    (told,) = assumptions(SMALL, gpus, given, as_executed(given))
    assert "nothing between two steps; trainsim simulate" in told


def test_the_median_of_an_even_number_of_steps_lies_between_the_middle_ones():
    found = _measured([{"seconds": [10.0, 1.0, 4.0, 2.0]}, {"seconds": [1.0, 1.0, 1.0, 3.0]}])
    assert (found.step_time_s, found.median_s, found.steps) == (1.0, 3.5, 4)
