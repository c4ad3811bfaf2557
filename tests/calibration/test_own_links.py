"""Collectives of one's own cluster: parameters behind made logs are found; what logs do not tell stays the base's."""

import csv
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from typer.testing import CliRunner

from calibration import cli, own_links
from calibration.nccl_logs import Log, read_logs
from calibration.own_links import SWITCH, Timings, calibrate_links, fitted, predict, timings
from calibration.store import SESSION
from sim.costs.profile import load_profile
from sim.costs.run_level import level_of, run_level
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Plan
from sim.specs.catalog import device, models
from tests.calibration import nccl
from tests.oracle import reference

BASE = "h100-sxm-80gb"
SIZES = 2.0 ** np.arange(10, 34)
SLOWER = {"inter_efficiency": 0.6, SWITCH: 0.52, "intra_alpha": 1.5e-5, "intra_efficiency_gather": 0.7}
PROGRAMS = {"all_to_all": "alltoall", "shift": "sendrecv"}


def parameters(name=BASE, **changes):
    return {k: v for k, v in (load_profile(name).collectives | changes).items() if v}


def made(operation, hosts, known, name=BASE, noise=0.02):
    """Return a log of what a cluster with these parameters would measure."""
    n, k = sum(hosts), len(SIZES)
    log = Log(None, operation, n, len(hosts), SIZES, np.ones(k))
    t = timings([log], device(name))
    shaken = np.exp(np.random.default_rng(n).normal(0, noise, k))
    return replace(log, seconds=predict(t, device(name), known) * shaken)


def as_text(log):
    program = PROGRAMS.get(log.operation, log.operation)
    return nccl.log(program, [log.ranks // log.hosts] * log.hosts, log.sizes, log.seconds)


def wrote(tmp_path, *logs):
    paths = [tmp_path / f"{n}.log" for n in range(len(logs))]
    for path, log in zip(paths, logs, strict=True):
        path.write_text(as_text(log))
    return paths


def test_the_parameters_behind_the_logs_are_found():
    known = parameters(**SLOWER)
    logs = [made("all_reduce", (8,), known), made("all_gather", (8,), known), made("all_reduce", (8,) * 4, known)]
    found = fitted(logs, load_profile(BASE), device(BASE))
    mine = found.profile.collectives
    for name in SLOWER.keys() - {"intra_alpha"}:
        assert mine[name] == pytest.approx(SLOWER[name], rel=0.06), name
    first, further = (sum(p[k] * n for k, n in (("intra_alpha", 1), ("intra_alpha_rank", 7))) for p in (known, mine))
    assert further == pytest.approx(first, rel=0.05)  # one number of ranks tells their sum
    assert max(each.fitted.mape for each in found.errors) < 3 < min(each.base.mape for each in found.errors)
    assert [each.shape for each in found.errors] == ["8", "8", "4 x 8"]
    assert found.profile.models == load_profile(BASE).models
    assert "logs of nccl-tests" in found.profile.collectives_source


def test_what_logs_do_not_tell_stays_or_keeps_its_ratio():
    base, known = parameters(), parameters(**SLOWER)
    outside = fitted([made("all_reduce", (8,) * 4, known)], load_profile(BASE), device(BASE)).profile.collectives
    assert {k: v for k, v in outside.items() if not k.startswith("inter")} == pytest.approx(
        {k: v for k, v in base.items() if not k.startswith("inter")}
    )
    gathers = fitted([made("all_gather", (8,), known)], load_profile(BASE), device(BASE)).profile.collectives
    ratio = base["intra_efficiency_reduce"] / base["intra_efficiency_gather"]
    assert gathers["intra_efficiency_reduce"] / gathers["intra_efficiency_gather"] == pytest.approx(ratio, rel=1e-4)
    assert (gathers["inter_efficiency"], gathers[SWITCH]) == (base["inter_efficiency"], base[SWITCH])


def test_start_up_by_rank_is_told_by_several_numbers_of_ranks():
    known = parameters("a100-sxm-80gb", intra_alpha_rank=2e-5)
    logs = [made("all_reduce", (n,), known, "a100-sxm-80gb") for n in (2, 4, 8)]
    found = fitted(logs, load_profile("a100-sxm-80gb"), device("a100-sxm-80gb"))
    assert found.profile.collectives["intra_alpha_rank"] == pytest.approx(2e-5, rel=0.1)


def test_rings_where_no_switch_reduces():
    rings = parameters(intra_efficiency_reduce=0.7, **{SWITCH: 0.0})
    found = fitted([made("all_reduce", (8,), rings), made("all_gather", (8,), rings)], load_profile(BASE), device(BASE))
    assert SWITCH not in found.profile.collectives
    assert found.profile.collectives["intra_efficiency_reduce"] == pytest.approx(0.7, rel=0.05)


def test_other_collectives_are_predicted_and_shown():
    known = parameters(**SLOWER)
    logs = [made("all_gather", (8,), known), *(made(o, (8, 8), known) for o in ("all_reduce", "shift", "all_to_all"))]
    found = {e.operation: e for e in fitted(logs, load_profile(BASE), device(BASE)).errors}
    assert found["shift"].fitted.mape < 4 < found["shift"].base.mape
    assert found["all_to_all"].fitted.mape < 4 < found["all_to_all"].base.mape


def test_trays_of_one_fast_domain_are_one_domain():
    t = timings([Log(None, "all_reduce", 72, 18, SIZES, np.ones(len(SIZES)))], device("gb200"))
    assert {*t.n_in.tolist()} == {72.0} and {*t.n_out.tolist()} == {1.0}


def test_predictions_are_the_simulators(tmp_path):
    """A step over the written profile takes what its collectives take longer."""
    known = parameters(inter_efficiency=0.3)
    calibrate_links(wrote(tmp_path, made("all_reduce", (8,) * 4, known)), tmp_path / "mine", BASE)
    plan = Plan(tp=8, dp=4, global_batch=64, zero=1, overlap_dp=False)
    model = models["opt-6.7b"]
    before, after = (
        simulate(model, Cluster.of(BASE, nodes=4, profile=p), plan) for p in (BASE, str(tmp_path / "mine"))
    )
    slower = after.breakdown_s["dp"] / before.breakdown_s["dp"]
    rates = load_profile(BASE).collectives["inter_efficiency"] / 0.3
    assert slower == pytest.approx(rates / run_level().parameters.inter_slowdown, rel=0.1)
    assert after.breakdown_s["compute"] == pytest.approx(before.breakdown_s["compute"], rel=1e-6)
    assert any(line.startswith("collectives: logs of nccl-tests") for line in after.assumptions)


def test_a_step_takes_what_the_logs_say_times_what_steps_add_to_collectives(tmp_path):
    """The shipped correction of the shipped network rate is none of a network that was timed."""
    known, shipped = parameters(inter_efficiency=0.6), run_level()
    assert shipped.parameters.inter_slowdown < 1 < shipped.parameters.collective_slowdown
    inside, both = tmp_path / "inside", tmp_path / "both"
    calibrate_links(wrote(tmp_path, made("all_gather", (8,), known)), inside, BASE)
    calibrate_links(wrote(tmp_path, made("all_reduce", (8,) * 4, known)), both, str(inside))
    held = {p: level_of(Cluster.of(BASE, nodes=4, profile=str(p))) for p in (inside, both)}
    assert held[inside].parameters == shipped.parameters
    assert held[both].parameters == replace(shipped.parameters, inter_slowdown=1.0)
    plan = Plan(tp=8, dp=4, global_batch=64, zero=1, overlap_dp=False)
    steps = [simulate(models["opt-6.7b"], Cluster.of(BASE, nodes=4, profile=str(p)), plan) for p in held]
    told = [next(line for line in step.assumptions if line.startswith("run level:")) for step in steps]
    collectives, links = (getattr(shipped.parameters, f"{name}_slowdown") for name in ("collective", "inter"))
    assert [f"collectives x {collectives:.3g} of logs of nccl-tests" in line for line in told] == [True, True]
    assert [f"inter_slowdown 1, not {links:.3g}" in line for line in told] == [False, True]
    groups = [{"device": BASE, "nodes": 2, "profile": str(p)} for p in (both, BASE)]
    assert level_of(Cluster(groups=groups)) == shipped  # one set for all devices: not all of them were timed


def test_a_profile_with_own_links_is_a_base_again(tmp_path):
    known = parameters(**SLOWER)
    first = calibrate_links(wrote(tmp_path, made("all_gather", (8,), known)), tmp_path / "one", BASE)
    second = calibrate_links(wrote(tmp_path, made("all_reduce", (8,) * 4, known)), tmp_path / "two", str(first.device))
    again = calibrate_links(
        wrote(tmp_path, made("all_reduce", (8,) * 4, known)), tmp_path / "three", str(tmp_path / "one")
    )
    assert second.device == again.device == BASE
    held = load_profile(str(tmp_path / "three")).collectives
    assert held["intra_efficiency_gather"] == first.profile.collectives["intra_efficiency_gather"]
    assert held["inter_efficiency"] == pytest.approx(0.6, rel=0.05)


def test_a_profile_of_newer_libraries_is_of_its_device(tmp_path):
    logs = wrote(tmp_path, made("all_gather", (8,), parameters(**SLOWER)))
    found = calibrate_links(logs, tmp_path / "ours", "h100-sxm-80gb-2026")
    again = calibrate_links(logs, tmp_path / "again", str(tmp_path / "ours"))
    assert found.device == again.device == BASE
    assert again.profile.models == load_profile("h100-sxm-80gb-2026").models


def test_what_cannot_be_fitted_is_refused_and_nothing_written(tmp_path):
    good = made("all_gather", (8,), parameters())
    few = replace(good, sizes=SIZES[:2], seconds=good.seconds[:2])
    small = replace(good, sizes=SIZES[:8], seconds=good.seconds[:8])
    for logs, base, told in (
        ([good], None, "--base: missing; required"),
        ([good], "h900", "--base: got 'h900'"),
        ([good], "cpu", "--base: got 'cpu'; allowed: a GPU's profile"),
        ([few], BASE, "2 sizes inside a node"),
        ([small], BASE, "the largest 131 kB"),
        ([made("shift", (8,), parameters())], BASE, "a log of one of all_reduce"),
        ([replace(good, ranks=16)], BASE, "16 ranks on a host"),
    ):
        with pytest.raises(InputError) as caught:
            calibrate_links(wrote(tmp_path, *logs), tmp_path / "out", base)
        assert told in str(caught.value), told
        assert not (tmp_path / "out").exists()


def test_a_measuring_session_is_not_written_over(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / SESSION).write_text("{}")
    with pytest.raises(InputError, match="whose profile would be lost"):
        calibrate_links(wrote(tmp_path, made("all_gather", (8,), parameters())), tmp_path / "out", BASE)
    assert not (tmp_path / "out" / "profile.json").exists()


def test_kernels_of_another_profile_are_not_written_over(tmp_path):
    logs = wrote(tmp_path, made("all_gather", (8,), parameters()))
    for _ in range(2):  # the same again takes its own place
        calibrate_links(logs, tmp_path / "out", BASE)
    before = (tmp_path / "out" / "profile.json").read_bytes()
    with pytest.raises(InputError, match="a folder without other kernels than a100-sxm-80gb's"):
        calibrate_links(logs, tmp_path / "out", "a100-sxm-80gb")
    assert (tmp_path / "out" / "profile.json").read_bytes() == before


def test_rates_of_other_links_than_those_of_the_logs_are_told(tmp_path):
    """Logs of a device whose file says 400 GB/s a node hold half as much on links that a job gives half of that."""
    own, plan = parameters(inter_efficiency=0.6), Plan(tp=8, global_batch=64)
    calibrate_links(wrote(tmp_path, made("all_reduce", (8, 8), own)), tmp_path / "mine", BASE)
    mine, half = str(tmp_path / "mine"), {"inter_bytes_per_s_per_node": 200e9, "intra_bytes_per_s": 100e9}
    same, other = (
        simulate(models["llama3-8b"], Cluster.of(BASE, nodes=4, profile=mine, links=links), plan)
        for links in (None, half)
    )
    begin = "collectives: logs of nccl-tests were read"
    assert not [line for line in same.assumptions if line.startswith(begin)]
    (line,) = (
        line for line in other.assumptions if line.startswith(begin)
    )  # the logs tell nothing of the links inside
    assert "for 400 GB/s of cluster.links.inter_bytes_per_s_per_node, here it is 200 GB/s" in line
    (tmp_path / "mine/profile.json").write_text(
        (tmp_path / "mine/profile.json").read_text().replace('"inter_bytes_per_s_per_node"', '"host_bytes_per_s"')
    )
    with pytest.raises(InputError, match="collectives_links"):
        load_profile(mine)


def test_logs_on_top_of_others_are_read_for_the_same_links(tmp_path):
    """The second log's network is that of the first, which a device file has told slower than the catalog's."""
    slower = {"inter_bytes_per_s_per_node": {"value": 320e9, "source": "ours"}, "name": "own", "like": BASE}
    held = {k: v for k, v in asdict(device(BASE)).items() if v is not None}
    (tmp_path / "own.json").write_text(json.dumps(held | slower))
    between = made("all_reduce", (8,) * 4, parameters(), noise=0.0)
    first, second = (
        calibrate_links(wrote(tmp_path, between), tmp_path / out, base).profile
        for out, base in (("one", str(tmp_path / "own.json")), ("two", str(tmp_path / "one")))
    )
    assert first.collectives["inter_efficiency"] == pytest.approx(1.25 * parameters()["inter_efficiency"], rel=0.02)
    assert second.collectives["inter_efficiency"] == pytest.approx(first.collectives["inter_efficiency"], rel=1e-3)
    assert second.collectives_links == first.collectives_links == {"inter_bytes_per_s_per_node": 320e9}


def test_the_command_tells_errors_and_the_job(tmp_path, monkeypatch):
    paths = wrote(tmp_path, made("all_gather", (8,), parameters(**SLOWER)), made("all_reduce", (8, 8), parameters()))
    given = [str(p) for p in paths]
    table = CliRunner().invoke(cli.app, ["--from", *given, "--base", BASE, "--out", str(tmp_path / "mine")])
    assert table.exit_code == 0 and "2 x 8" in table.stdout and "all_gather" in table.stdout
    assert f"cluster: {{device: {BASE}, profile: {tmp_path / 'mine'}}}" in table.stderr
    told = CliRunner().invoke(cli.app, ["--from", *given, "--base", BASE, "--out", str(tmp_path / "again"), "--json"])
    data = json.loads(told.stdout)
    assert data["parameters"]["intra_efficiency_gather"]["value"] == pytest.approx(0.7, rel=0.05)
    assert [e["operation"] for e in data["errors"]] == ["all_gather", "all_reduce"]
    (tmp_path / "runs.csv").write_text("id,source\n")
    with pytest.raises(InputError, match="logs of nccl-tests alone"):
        cli.calibrate(first=[*paths, tmp_path / "runs.csv"], base=BASE, out=tmp_path / "x")
    with pytest.raises(InputError, match="--base tells how far"):
        cli.calibrate(first=paths, against=BASE, out=tmp_path / "x")


def test_rates_that_the_device_does_not_have_are_told(tmp_path):
    """All-gathers over NVLink 4 as logs of an A100; the base's own rates are nobody's fault."""
    gathers = wrote(tmp_path, made("all_gather", (8,), parameters(intra_efficiency_gather=0.85)))
    given = ["--from", str(gathers[0]), "--out"]
    of_a100, of_h100 = (
        CliRunner().invoke(cli.app, [*given, str(tmp_path / base), "--base", base]).stderr
        for base in ("a100-sxm-80gb", BASE)
    )
    assert "inside a node gathers reach 128\u00a0% of the 300 GB/s that the links are said to have" in of_a100
    assert of_a100.count("another device") == 1 and "another device" not in of_h100


def test_timings_of_several_logs_lie_side_by_side():
    logs = [made("all_gather", (8,), parameters()), made("all_reduce", (8, 8), parameters())]
    t = timings(logs, device(BASE))
    assert isinstance(t, Timings) and len(t.size) == 2 * len(SIZES)
    assert own_links.predict(t.where(t.n == 8), device(BASE), parameters()) == pytest.approx(logs[0].seconds, rel=0.1)


def test_a_published_log_gives_the_shipped_profiles_switch(tmp_path):
    """NVIDIA's own log of eight H100, to which the shipped profile was fitted (`calibration.published.collectives`)."""
    with reference("collectives/allreduce_h100.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["n_gpus"] == "8"]
    sizes, seconds = ([float(row[c]) * f for row in rows] for c, f in (("size_bytes", 1), ("out_of_place_us", 1e-6)))
    path = tmp_path / "published.log"
    path.write_text(nccl.log("all_reduce", (8,), sizes, seconds))
    found = fitted(read_logs(path), load_profile(BASE), device(BASE)).profile.collectives
    assert found[SWITCH] == pytest.approx(load_profile(BASE).collectives[SWITCH], rel=0.02)
    assert found["intra_alpha"] == pytest.approx(load_profile(BASE).collectives["intra_alpha"], rel=0.1)
