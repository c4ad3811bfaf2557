"""A few runs of one's own cluster fit the run level of a profile folder, and everything predicts with it."""

import json
from dataclasses import asdict
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from calibration import cli
from calibration.execute.learn import fit, run_of, save
from calibration.own_site import calibrate_site
from sim.cli import app
from sim.costs.learned import Learned, profile_hash
from sim.costs.profile import load_profile
from sim.costs.run_level import SITE, RunLevel, level_of, run_level
from sim.engine.certainty import carried_sigma
from sim.engine.step import simulate
from sim.specs import Cluster, InputError
from sim.specs.catalog import device
from sim.specs.job import Job
from sim.sweep.sections import contents
from sim.tuner.tune import tune
from sim.validation.jobs import read_jobs
from tests.calibration import nccl

BASE, SLOWER = "h100-sxm-80gb", 1.25
PLANS = [{"tp": t, "micro_batch": m, "global_batch": 64, "zero": 1} for t in (2, 4, 8) for m in (1, 2)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Six jobs and a table of what they took on a cluster that is a quarter slower than told."""
    folder = tmp_path_factory.mktemp("runs")
    lines, random = ["job,step_time_s"], np.random.default_rng(2)
    for n, plan in enumerate(PLANS):
        job = {"model": "llama3-8b", "cluster": {"device": BASE, "nodes": 1}, "plan": plan}
        (folder / f"{n}.yaml").write_text(yaml.safe_dump(job))
        held = Job.load(folder / f"{n}.yaml")
        took = simulate(held.model, held.cluster, held.plan).step_time_s * SLOWER * random.uniform(0.98, 1.02)
        lines.append(f"{n}.yaml,{took}")
    (folder / "own.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def found(runs):
    return calibrate_site([runs / "own.csv"], runs / "ours", BASE)


@pytest.fixture(scope="module")
def ours(runs, found):
    return str(runs / "ours")


def test_runs_of_the_site_are_predicted_by_others_of_it(found):
    before, left_out = (np.abs(errors).mean() for errors in (found.before, found.left_out))
    assert before > 0.15 and left_out < 0.05
    assert len(found.before) == len(found.left_out) == len(PLANS)
    assert found.site.devices == (BASE,) and not found.skipped


def test_whatever_names_the_folder_predicts_with_it(ours):
    cluster = Cluster.of(BASE, nodes=2, profile=ours)
    assert level_of(cluster) == level_of(Cluster.of(BASE, profile=ours)) != run_level()
    job = Job.load(f"{ours}/../0.yaml")
    plain, own = (simulate(job.model, Cluster.of(BASE, nodes=1, profile=p), job.plan) for p in (BASE, ours))
    assert own.step_time_s == pytest.approx(SLOWER * plain.step_time_s, rel=0.06)
    assert own.step_time_interval_s[1] / own.step_time_s < plain.step_time_interval_s[1] / plain.step_time_s
    assert "run level: fitted to runs of the site (6)" in own.assumptions
    best = tune(job.model, Cluster.of(BASE, nodes=1, profile=ours), global_batch=64).best.step
    assert best.level == own.level
    assert load_profile(ours) == load_profile(BASE)


def test_runs_on_a_device_file_test_the_profile_that_they_are_predicted_with(runs, tmp_path):
    """The file gives the links of a device of the catalog: the interval holds nothing of carrying kernels over."""
    told = {"name": "own", "like": "a100-sxm-80gb", "inter_bytes_per_s_per_node": {"value": 1e11, "source": "ours"}}
    held = {k: v for k, v in asdict(device("a100-sxm-80gb")).items() if v is not None}
    (tmp_path / "own.json").write_text(json.dumps(held | told))
    job = yaml.safe_load((runs / "0.yaml").read_text())
    job["cluster"]["device"] = "own.json"
    (tmp_path / "0.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "own.csv").write_text("job,step_time_s\n0.yaml,5\n")
    found = calibrate_site([tmp_path / "own.csv"], tmp_path / "ours", "a100-sxm-80gb")
    cluster = Cluster.of(str(tmp_path / "own.json"), nodes=1, profile=str(tmp_path / "ours"))
    step = simulate(Job.load(tmp_path / "0.yaml").model, cluster, Job.load(tmp_path / "0.yaml").plan)
    assert carried_sigma(step.profile, found.site) == 0
    assert step.sigma_log == pytest.approx(found.site.sigma_log, rel=0.01)


def test_a_site_counts_among_the_files_of_a_sweep(ours):
    assert {name.rpartition("/")[2] for name in contents({"profile": ours})} >= {"profile.json", SITE}


def test_validate_takes_the_folder_as_a_site(runs, ours):
    table = str(runs / "own.csv")
    plain, own = (
        json.loads(CliRunner().invoke(app, ["validate", table, "--profile", p, "--json"]).stdout) for p in (BASE, ours)
    )
    assert own["summary"]["time"]["mape"] < 5 and plain["summary"]["time"]["mape"] > 15
    assert list(own["run_level"]) == ["site"] and list(plain["run_level"]) == [BASE]
    head, *lines = (runs / "own.csv").read_text().splitlines(keepends=True)
    for name, held in (("first.csv", lines[:3]), ("second.csv", lines[3:])):
        (runs / name).write_text("".join([head, *held]))
    given = ["validate", str(runs / "second.csv"), "--site", str(runs / "first.csv"), "--json"]
    assert json.loads(CliRunner().invoke(app, given).stdout)["summary"]["time"]["mape"] < 6
    known = CliRunner().invoke(app, ["validate", table, "--site", str(runs / "first.csv")])
    assert "of RUNS is of the same device, network, plan and time" in str(known.exception)


def test_validate_says_which_runs_a_site_was_fitted_to(runs, ours, tmp_path):
    """Wherever the table lies and whatever stands beside them; a later run is none of them, nor is one of a site."""
    lines = (runs / "own.csv").read_text().splitlines()
    (tmp_path / "moved.csv").write_text(
        "\n".join([lines[0], f"{runs}/0.yaml,9.5", *(f"{runs}/{x}" for x in lines[1:])])
    )
    given = ["validate", str(tmp_path / "moved.csv"), "--profile", ours]
    (seen,) = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)["fitted_to"]
    assert (seen["path"], seen["runs"], seen["of"]) == (str(Path(ours, SITE)), 6, 7)
    known = json.loads(CliRunner().invoke(app, ["validate", str(runs / "own.csv"), "--profile", ours, "--json"]).stdout)
    assert known["summary"]["time"]["mape"] < seen["other_half_mape"] < 5
    told = " ".join(CliRunner().invoke(app, given).stdout.split())
    half = f"each half by parameters fitted to the other, they are {seen['other_half_mape']:.1f} % off"
    assert f"{ours}/site.json was fitted to 6 of these 7 runs: their errors are no evidence; {half}" in told
    (tmp_path / "later.csv").write_text("\n".join(["job,step_time_s", f"{runs}/0.yaml,9.5"]))
    for further in ([], ["--site", str(runs / "own.csv")]):
        later = ["validate", str(tmp_path / "later.csv"), "--profile", ours, "--json", *further]
        assert "fitted_to" not in json.loads(CliRunner().invoke(app, later).stdout)


def test_a_site_of_before_its_runs_were_kept_is_read(runs, ours, tmp_path):
    held = json.loads(Path(ours, SITE).read_text())
    assert len(held.pop("runs")) == len(PLANS)
    (tmp_path / "profile.json").write_bytes(Path(ours, "profile.json").read_bytes())
    (tmp_path / SITE).write_text(json.dumps(held))
    assert level_of(Cluster.of(BASE, profile=str(tmp_path))) == level_of(Cluster.of(BASE, profile=ours))
    told = CliRunner().invoke(app, ["validate", str(runs / "own.csv"), "--profile", str(tmp_path), "--json"])
    assert "fitted_to" not in json.loads(told.stdout)


def test_jobs_that_name_the_folder_are_validated_as_they_are_simulated(runs, ours, tmp_path):
    job = yaml.safe_load((runs / "0.yaml").read_text())
    job["cluster"]["profile"] = ours
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "later.csv").write_text("job,step_time_s\njob.yaml,5\n")
    held = Job.load(tmp_path / "job.yaml")
    told = json.loads(CliRunner().invoke(app, ["validate", str(tmp_path / "later.csv"), "--json"]).stdout)
    by_simulation = simulate(held.model, held.cluster, held.plan)
    assert told["rows"][0]["predicted_step_time_s"] == pytest.approx(by_simulation.step_time_s, rel=1e-3)
    assert told["run_level"][ours]["source"] == "fitted to runs of the site (6)"


def test_links_written_over_a_site_say_that_the_runs_are_to_be_fitted_again(ours, tmp_path):
    (tmp_path / "all_gather.log").write_text(nccl.log("all_gather", (8,), (2**10, 2**20, 2**30), (3e-5, 6e-5, 4e-3)))
    for base, out, place in ((ours, "new", ours), (ours, "own", ours), (str(tmp_path / "copy"), "copy", "copy")):
        copytree(ours, tmp_path / "copy", dirs_exist_ok=True)
        given = ["--from", str(tmp_path / "all_gather.log"), "--base", base, "--out", str(tmp_path / out)]
        told = CliRunner().invoke(cli.app, given).stderr
        assert f"{Path(tmp_path, place) / SITE} was fitted to another profile: `trainsim calibrate" in told
    assert "was fitted to" not in CliRunner().invoke(cli.app, [*given[:3], BASE, "--out", str(tmp_path / "x")]).stderr


def test_a_profile_written_anew_asks_for_a_new_fit(runs, ours, tmp_path):
    out = tmp_path / "ours"
    copytree(ours, out)
    text = (out / "profile.json").read_text()
    (out / "profile.json").write_text(text.replace('"kernel_sigma_log"', ' "kernel_sigma_log"'))
    with pytest.raises(InputError, match=r"site.json.profile_sha256.*was written anew: `trainsim calibrate --from"):
        level_of(Cluster.of(BASE, profile=str(out)))
    calibrate_site([runs / "own.csv"], out, str(out))
    assert level_of(Cluster.of(BASE, profile=str(out))) != run_level()


def test_what_executed_plans_taught_the_base_is_written_beside_the_site(runs, ours, tmp_path):
    """The runs are fitted as predicted with it, so that a folder without it would predict other times."""
    base, out = tmp_path / "base", tmp_path / "out"
    base.mkdir()
    plain = json.loads(Path(ours, "profile.json").read_text())
    (base / "profile.json").write_text(json.dumps(plain | {"session": ""}))
    job = Job.load(runs / "0.yaml")
    taught = [run_of(job.model, job.plan.but(micro_batch=m).on(job.model, job.cluster), 1.0, 1.5) for m in (1, 2, 4)]
    save(Learned(profile_sha256=profile_hash(plain | {"session": ""}), runs=taught, corrections=fit(taught)), base)
    calibrate_site([runs / "own.csv"], out, str(base))
    with_base, with_out = load_profile(str(base)).learned, load_profile(str(out)).learned
    assert with_out == with_base and with_out.corrections and not with_out.off
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    calibrate_site([runs / "own.csv"], out, str(base))  # again: nothing is another
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    links = ["--from", str(tmp_path / "links.log"), "--base", str(base), "--out", str(tmp_path / "links")]
    (tmp_path / "links.log").write_text(nccl.log("all_gather", (8,), (2**10, 2**20, 2**30), (3e-5, 6e-5, 4e-3)))
    told = f"{base}/learned.json was learned from another profile, and corrects no prediction of this one"
    assert told in CliRunner().invoke(cli.app, links).stderr
    (base / "learned.json").unlink()
    assert "was learned" not in CliRunner().invoke(cli.app, links).stderr
    with pytest.raises(InputError, match=rf"a folder without another learned.json than {base} has \(or --base {out}\)"):
        calibrate_site([runs / "own.csv"], out, str(base))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema_version": 2}, "site.json.schema_version: got 2"),
        ({"run_level": {}}, "site.json.run_level.parameters: missing"),
        ({"profile_sha256": "x"}, "site.json.profile_sha256: got 'x'"),
        ({"more": 1}, "site.json.more"),
    ],
)
def test_a_damaged_site_is_one_error(ours, tmp_path, change, told):
    held = json.loads(Path(ours, SITE).read_text())
    (tmp_path / "profile.json").write_text(Path(ours, "profile.json").read_text())
    (tmp_path / SITE).write_text(json.dumps(held | change))
    with pytest.raises(InputError) as caught:
        level_of(Cluster.of(BASE, profile=str(tmp_path)))
    assert told in str(caught.value)


def test_a_mixed_cluster_has_one_site_or_none(ours):
    groups = [{"device": d, "nodes": 1, "profile": p} for d, p in ((BASE, ours), ("h200-sxm-141gb", ours))]
    assert level_of(Cluster(groups=groups)) != run_level()
    with pytest.raises(InputError, match=r"cluster.groups.profile: got .*; allowed: profiles that all hold the same"):
        level_of(Cluster(groups=[groups[0], {"device": "a100-sxm-80gb", "nodes": 1}]))


def test_what_is_no_site_is_refused_and_nothing_written(runs, tmp_path):
    (tmp_path / "other.csv").write_text("job,step_time_s\n")
    (tmp_path / "two.csv").write_text(f"job,step_time_s\n{runs}/0.yaml,3\na100.yaml,3\n")
    (tmp_path / "a100.yaml").write_text((runs / "0.yaml").read_text().replace(BASE, "a100-sxm-80gb"))
    (tmp_path / "cpu.csv").write_text("job,step_time_s\ncpu.yaml,3\n")
    (tmp_path / "cpu.yaml").write_text((runs / "0.yaml").read_text().replace(BASE, "cpu").replace("tp: 2", "tp: 1"))
    for name, base, told in (
        ("other.csv", BASE, "runs of one cluster"),
        ("two.csv", BASE, "a100-sxm-80gb, h100-sxm-80gb"),
        ("two.csv", "h900", "--base: got 'h900'"),
        ("cpu.csv", "cpu", "--from: got 'cpu'; allowed: runs on GPUs"),
    ):
        with pytest.raises(InputError) as caught:
            calibrate_site([tmp_path / name], tmp_path / "out", base)
        assert told in str(caught.value)
        assert not (tmp_path / "out").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "profile.json").write_text("{}")
    with pytest.raises(InputError, match="a folder without another profile than h100"):
        calibrate_site([runs / "own.csv"], tmp_path / "taken", BASE)
    assert (tmp_path / "taken" / "profile.json").read_text() == "{}" and not (tmp_path / "taken" / SITE).exists()


def test_the_command_tells_before_and_after(runs, tmp_path):
    given = ["--from", str(runs / "own.csv"), "--base", BASE, "--out", str(tmp_path / "mine")]
    table = CliRunner().invoke(cli.app, given)
    assert table.exit_code == 0 and "gemm_slowdown" in table.stdout
    assert "6 runs: " in table.stderr and "by those fitted to the other half" in table.stderr
    assert f"profile: {tmp_path / 'mine'}" in table.stderr
    with pytest.raises(InputError, match="--base: missing; required with tables of jobs"):
        cli.calibrate(first=[runs / "own.csv"], out=tmp_path / "x")


def test_one_run_takes_the_spread_of_others_and_json_says_so(runs, tmp_path):
    took = read_jobs(runs / "own.csv")[0].row.step_time_s / SLOWER
    (tmp_path / "one.csv").write_text(f"job,step_time_s\n{runs}/0.yaml,{took}\n")
    given = ["--from", str(tmp_path / "one.csv"), "--base", BASE, "--out", str(tmp_path / "mine"), "--json"]
    told = json.loads(CliRunner().invoke(cli.app, given).stdout)
    assert "fewer than 3 runs may mislead" in CliRunner().invoke(cli.app, given[:-1]).stderr
    assert told["errors"]["runs"] == 1 and told["errors"]["other_half_mape"] is None
    assert told["site"]["sigma_log"] == run_level().sigma_log
    assert set(told["site"]["parameters"]) == {*RunLevel.__dataclass_fields__}


def test_milliseconds_are_told_as_such(runs, tmp_path):
    (tmp_path / "ms.csv").write_text(f"job,step_time_s\n{runs}/0.yaml,9000\n{runs}/1.yaml,9100\n")
    with pytest.raises(
        InputError, match=r"step_time_s: got '1\S+ times the predicted times'; allowed: seconds: at most"
    ):
        calibrate_site([tmp_path / "ms.csv"], tmp_path / "mine", BASE)
    assert not (tmp_path / "mine").exists()


def test_the_runs_are_the_cases_of_the_table(runs):
    assert len(read_jobs(runs / "own.csv", BASE)) == len(PLANS)
