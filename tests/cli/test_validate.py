"""`trainsim validate`: the contract's keys, the options, and what is refused."""

import json

import pytest

from sim.cli.output import console
from sim.validation.ablation import read_ablation
from sim.validation.accuracy import read_accuracy
from tests.oracle import reference
from tests.validation.runs import write


@pytest.fixture
def validate(trainsim):
    return lambda *arguments: trainsim("validate", *arguments)


def test_json_has_exactly_the_contracts_keys(validate, tmp_path) -> None:
    path = write(tmp_path / "runs.csv", {}, {"use_for": "parity"}, {"device": "abacus"})
    code, out, _ = validate(path, "--json")
    found = json.loads(out)
    assert code == 0 and set(found) == {"rows", "summary", "skipped", "not_scored", "run_level"}
    assert set(found["rows"][0]) == {
        "id", "predicted_step_time_s", "interval80_s", "measured_step_time_s", "predicted_peak_memory_bytes",
        "measured_peak_memory_bytes", "memory_kind", "memory_rank", "predicted_oom", "measured_oom", "assumptions",
    }  # fmt: skip
    assert "vocab = 51200 (GPT-2's, padded)" in found["rows"][0]["assumptions"]
    assert (found["rows"][0]["memory_kind"], found["rows"][0]["memory_rank"]) == ("allocated", "max")
    assert set(found["summary"]) == {"time", "memory", "oom", "oom_of_runs"}
    assert set(found["summary"]["time"]) == {
        "n", "mape", "median", "p90", "bias", "mape_debiased", "pairwise_order", "mean_regret", "coverage80",
        "median_width", "baselines",
    }  # fmt: skip
    assert set(found["summary"]["time"]["baselines"]) == {"constant_mfu", "constant_mfu_bubble"}
    assert set(found["summary"]["memory"]) == {"n", "mape", "median", "max", "coverage80"}
    assert set(found["summary"]["oom"]) == set(found["summary"]["oom_of_runs"]) == {"tp", "fp", "fn", "tn"}
    assert [r["id"] for r in found["skipped"]] == ["site-3"] and [r["id"] for r in found["not_scored"]] == ["site-2"]


def test_several_tables_are_one_answer_and_one_derived_table(validate, tmp_path) -> None:
    first = write(tmp_path / "first.csv", {})
    second = write(tmp_path / "second.csv", {"id": "other", "step_time_s": "1"})
    code, out, _ = validate(first, second, "--json", "--table", tmp_path / "out.csv")
    assert code == 0 and json.loads(out)["summary"]["time"]["n"] == 2
    assert [(row.source, row.id) for row in read_accuracy(tmp_path / "out.csv")] == [
        ("first", "site-1"),
        ("second", "other"),
    ]


def test_tables_of_one_name_in_two_folders_are_told_apart(validate, tmp_path) -> None:
    files = [tmp_path / folder / "runs.csv" for folder in ("may", "june")]
    for n, file in enumerate(files):
        file.parent.mkdir()
        write(file, {"id": f"run-{n}"})
    code, out, _ = validate(*files, "--csv", tmp_path / "out.csv")
    names = [str(file) for file in files]
    assert code == 0 and all(f"{name}: 1 predicted" in out.replace("\n", "") for name in names)
    assert [row.source for row in read_accuracy(tmp_path / "out.csv")] == names


@pytest.mark.slow
def test_names_in_brackets_are_names(validate, tmp_path) -> None:
    file = write(tmp_path / "runs[red].csv", {"source": "[/x] lab"})
    assert "runs[red]" in validate(file)[1].replace("runs[red]:", "")
    code, out, _ = validate(file, "--ablation", tmp_path / "out.csv")
    heading = [line.split() for line in out.splitlines()]
    assert code == 0 and ["[/x]"] in heading and ["table", "lab"] in heading  # on lines of their own


def test_tables_without_step_times_are_told(validate, tmp_path) -> None:
    memory = {"use_for": "memory", "peak_memory_bytes": "5e10", "memory_kind": "allocated", "step_time_s": ""}
    times = ({"use_for": "time?", "id": f"ranked-{tp}", "tp": tp, "step_time_s": tp} for tp in "12")
    ranked = write(tmp_path / "ranked.csv", *times)
    code, out, _ = validate(write(tmp_path / "held.csv", memory), ranked, "--exam")
    assert code == 0 and "held: no step times or orders to compare" in out and " ranked " in out
    terms = tmp_path / "terms.csv"
    code, _, err = validate(tmp_path / "held.csv", "--ablation", terms)
    assert code == 2 and "--ablation: got ['held']; allowed: tables with step times" in err and not terms.exists()


def test_a_profile_replaces_the_devices(validate, tmp_path) -> None:
    path = write(tmp_path / "runs.csv", {})
    own, other = (
        json.loads(validate(path, "--json", *extra)[1])["rows"][0]["predicted_step_time_s"]
        for extra in ((), ("--profile", "h100-sxm-80gb"))
    )
    assert other < own


@pytest.mark.slow
def test_a_site_removes_its_bias_and_says_how(validate, tmp_path) -> None:
    path = write(tmp_path / "runs.csv", {"step_time_s": "0.6"})
    site = write(tmp_path / "site.csv", {"id": "earlier", "step_time_s": "0.601"})
    alone, fitted = (json.loads(validate(path, "--json", *more)[1]) for more in ((), ("--site", site)))
    assert abs(alone["rows"][0]["predicted_step_time_s"] - 0.6) > 0.05
    assert fitted["rows"][0]["predicted_step_time_s"] == pytest.approx(0.6, rel=0.04)  # one row against the prior
    assert list(fitted["run_level"]) == ["site"] and len(fitted["run_level"]["site"]["parameters"]) <= 12


def test_the_table_for_people(validate, tmp_path) -> None:
    memory = {"use_for": "memory", "peak_memory_bytes": "5e10", "memory_kind": "allocated"}
    large = {"hidden": "16384", "heads": "128"}
    code, out, _ = validate(write(tmp_path / "mine.csv", {}, memory, large, {"device": "abacus"}, {"use_for": ""}))
    assert code == 0 and "step time" in out and "peak memory" in out and "regret" in out
    assert "mine: 3 predicted (1 out of memory), 1 skipped, 1 not for scoring" in out
    assert "1 x device: got 'abacus'" in out and "1 x use_for is blank" in out
    assert "among runs of one `group`" in out and "--csv FILE writes them run by run" in out
    assert f"written: {tmp_path}" in validate(tmp_path / "mine.csv", "--csv", tmp_path / "a.csv")[1]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_heading_and_no_number_is_cut(validate, tmp_path, monkeypatch, width) -> None:
    monkeypatch.setattr(console, "width", width)
    runs = ({"group": "a"}, {"group": "a", "tp": "2", "dp": "4", "step_time_s": "1e-4"})  # errors of many digits
    code, out, _ = validate(write(tmp_path / "zero_bubble_2401_10241.csv", *runs))
    lines = out.splitlines()
    assert code == 0 and "…" not in out and max(map(len, lines)) <= width
    for word in ("table", "runs", "mean", "bias", "p90", "order", "regret", "in 80", "width", "MFU", "bubble"):
        assert any(word in line for line in lines[: lines.index(next(x for x in lines if "no bias:" in x))]), word


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_where_no_run_can_be_predicted_it_says_why_and_fails(validate, tmp_path, option) -> None:
    code, out, err = validate(write(tmp_path / "mine.csv", {"device": "abacus"}, {"device": "abacus"}), *option)
    assert code == 2 and "device: got 'abacus'" in out
    assert err.endswith("error: RUNS: got '2 of 2 rows skipped'; allowed: at least one run that can be predicted\n")


def test_names_are_no_markup(validate, tmp_path) -> None:
    path = write(tmp_path / "runs[final]:x:.csv", {"source": "[/x]"})
    out = validate(path)[1]
    assert " runs[final]:x: " in out and "runs[final]:x:: 1 predicted" in out
    code, out, _ = validate(path, "--ablation", tmp_path / "terms.csv")
    assert code == 0 and "[/x]" in out


def test_verdicts_are_printed_where_no_memory_was_measured(validate, tmp_path) -> None:
    missed = {"use_for": "oom", "oom": "1", "step_time_s": ""}
    code, out, _ = validate(write(tmp_path / "mine.csv", missed, missed))
    (line,) = (line for line in out.splitlines() if line.startswith(" mine "))
    assert code == 0 and line.split() == ["mine", "0", "-", "-", "-", "-", "0", "2", "0"]


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        (("--profile", "nothing"), "--profile"),
        (("--site", "RUNS"), "--site"),
        (("--table", "RUNS"), "--csv"),
        (("--site", "RUNS"), "--site: got 'site-1'; allowed: ids that no run of RUNS has"),
        (("RUNS",), "RUNS: got 'site-1'; allowed: every run once over all tables"),
    ],
)
def test_bad_options_are_refused(validate, tmp_path, extra: tuple[str, ...], word: str) -> None:
    path = write(tmp_path / "runs.csv", {})
    arguments = [path if e == "RUNS" else e for e in extra]
    again = [write(tmp_path / "again.csv", {})] if extra == ("RUNS",) else []
    code, out, err = validate(path, *(again or arguments))
    assert code == 2 and not out and word in err


def test_a_run_of_the_site_is_known_by_what_ran_too(validate, tmp_path) -> None:
    """Whatever its id, its notes and what stands beside it; one that took another time is another run."""
    path = write(tmp_path / "runs.csv", {"step_time_s": "1.9"}, {})
    same = {"id": "earlier", "notes": "again", "step_time_s": "2"}
    code, out, err = validate(path, "--site", write(tmp_path / "site.csv", {"id": "a", "tp": "2"}, same))
    assert code == 2 and not out
    assert "--site: got 'earlier'; allowed: runs that are not in RUNS, as site-2 of RUNS is of the same device" in err
    for other in ({"step_time_s": "2.01"}, {"micro_batch": "2"}, {"use_for": "oom"}):
        site = write(tmp_path / "site.csv", {"id": "a", "tp": "2"}, same | other)
        assert validate(path, "--site", site)[0] == 0, other


def test_the_sites_runs_are_not_written_over(validate, tmp_path) -> None:
    path, site = write(tmp_path / "runs.csv", {}), write(tmp_path / "site.csv", {"id": "earlier"})
    before = site.read_bytes()
    code, out, err = validate(path, "--site", site, "--csv", site)
    assert code == 2 and not out and "--csv" in err and site.read_bytes() == before


def test_a_bad_cell_exits_2_with_its_place(validate, tmp_path) -> None:
    code, out, err = validate(write(tmp_path / "runs.csv", {"gpus": "many"}))
    assert code == 2 and not out and "runs.csv:2:gpus" in err


@pytest.mark.slow
def test_parity_and_layer_times_are_not_scored(validate) -> None:
    found = json.loads(validate(reference("runs") / "vtrain_single.csv", "--json")[1])
    assert len(found["not_scored"]) == 1120 and not found["rows"] and found["summary"]["time"]["mape"] is None
    layers = json.loads(validate(reference("runs") / "korthikanti_2205_05198.csv", "--json")[1])
    assert len(layers["not_scored"]) == 5 and layers["summary"]["time"]["n"] == 8


def test_runs_that_a_site_cannot_be_fitted_to_are_told(validate, tmp_path) -> None:
    path, site = write(tmp_path / "runs.csv", {}), write(tmp_path / "site.csv", {"id": "earlier", "device": "H99"})
    code, out, err = validate(path, "--site", site)
    assert code == 2 and not out and "--site: 1 of 1 row skipped" in err and "1 x device: got 'H99'" in err


@pytest.mark.parametrize(("device", "told"), [("h100", True), ("a100", False)])
def test_a_site_of_other_devices_is_told(validate, tmp_path, device, told) -> None:
    path = write(tmp_path / "runs.csv", {"device": "a100-sxm-80gb"})
    site = write(tmp_path / "site.csv", {"id": "earlier", "device": f"{device}-sxm-80gb", "step_time_s": "2.1"})
    code, out, err = validate(path, "--site", site)
    assert code == 0 and "fitted to runs of the site (1)" in out
    assert ("--site: its runs are of h100-sxm-80gb, none of a100-sxm-80gb" in err) == told


@pytest.mark.parametrize(("factor", "told"), [(1000, True), (0.001, True), (3, False)])
def test_times_of_another_unit_are_asked_about(validate, tmp_path, factor, told) -> None:
    alone = json.loads(validate(write(tmp_path / "first.csv", {}), "--json")[1])["rows"][0]
    time = str(factor * alone["predicted_step_time_s"])
    _, out, _ = validate(write(tmp_path / "runs.csv", {"step_time_s": time}))
    assert ("is step_time_s in seconds?" in out) == told
    assert " 0.000" not in out.split("regret")[1].split("peak memory")[0]  # of one run a constant is exact


def test_the_exam_prints_both_columns_beside_the_goals(validate, tmp_path) -> None:
    path = write(tmp_path / "torchtitan.csv", {"group": "a"}, {"group": "b", "tp": "2", "dp": "4"}, {"device": "H99"})
    code, out, _ = validate(path, "--exam", "--json")
    (entry,), (left,) = json.loads(out)["exam"], json.loads(out)["skipped"]
    assert left["id"] == "site-3" and left["reason"].startswith("device: got 'H99'")
    assert code == 0 and entry["name"] == "torchtitan" and entry["goal"]["site"] == 7
    assert entry["elsewhere"]["time"]["n"] == entry["site"]["time"]["n"] == 2
    code, out, _ = validate(path, "--exam")
    assert code == 0 and "12/8" in out and "calculon" in out and "1 of 3 rows skipped" in out and "H99" in out


def test_an_ablation_is_written_and_printed(validate, tmp_path) -> None:
    path = write(tmp_path / "runs.csv", {}, {"tp": "2", "dp": "4"})
    code, out, _ = validate(path, "--ablation", tmp_path / "out.csv")
    assert code == 0 and "power limits" in out
    assert {row.n for row in read_ablation(tmp_path / "out.csv")} == {2}


@pytest.mark.parametrize("option", ["--exam", "--ablation"])
def test_the_exam_takes_no_other_run_level(validate, tmp_path, option) -> None:
    path = write(tmp_path / "runs.csv", {})
    given = ["--exam"] if option == "--exam" else [option, tmp_path / "out.csv"]
    code, _, err = validate(path, *given, "--profile", "h100-sxm-80gb")
    assert code == 2 and f"nothing beside {option}" in err
    assert validate(path, "--ablation", path)[0] == 2
