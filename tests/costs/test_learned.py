"""Learned corrections: what their file may hold, what they change of a prediction, and what they leave alone."""

import json
from dataclasses import asdict
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from sim.cli.kinds import recognised
from sim.costs.fitted import Z80
from sim.costs.learned import FILE, Group, Learned, factors, least_factor, profile_hash, read_learned
from sim.costs.profile import Profile, load_profile, read_profile
from sim.engine.batch import Asked, Batch
from sim.engine.step import Step, simulate
from sim.report.figures import breakdown, difference
from sim.report.html import save_html
from sim.specs import InputError
from sim.specs.fields import read
from sim.specs.files import load_mapping
from sim.specs.schema import file_schema
from sim.tuner.tune import tune
from tests.calibration.execute.cases import SMALL, cluster, plan, profile

TIMES = (1.3, 1.2, 1.25, 1.35)
KEPT = {"kind": "pipeline", "processes": 2, "precision": "fp32"}


def run(n: int, ratio: float, predicted_s: float = 0.01, **changed: Any) -> dict[str, Any]:
    """Return an executed plan as the file holds it."""
    fixed = {"id": f"{n:016x}", "date": f"2026-11-{n + 1:02}", "what": "a plan", "torch": "2.13.0", **KEPT}
    return fixed | {"predicted_s": predicted_s, "measured_s": predicted_s * ratio} | changed


def raw(sha: str = "0" * 64, predicted_s: float = 0.01, **changed: Any) -> dict[str, Any]:
    """Return a file with one correction of pipelines on two processes."""
    one = {**KEPT, "n": 4, "factor": 1.25, "interval80": [1.2, 1.3], "scatter_log": 0.05}
    runs = [run(n, ratio, predicted_s) for n, ratio in enumerate(TIMES)]
    return {"schema_version": 1, "profile_sha256": sha, "corrections": [one], "runs": runs} | changed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The profile of a made-up core, which has learned about pipelines on two processes."""
    made = profile(tmp_path / "core")
    predicted_s = pipeline(made).step_time_s
    learn(made, raw(predicted_s=predicted_s))
    return made


def learn(folder: Path, data: dict[str, Any]) -> None:
    """Write what a profile has learned, for its own fit."""
    sha = profile_hash(load_mapping(folder / "profile.json"))
    (folder / FILE).write_text(json.dumps(data | {"profile_sha256": sha}))


def pipeline(folder: Path, **changed: Any) -> Step:
    """Return the step of a pipeline on two processes."""
    return simulate(SMALL, cluster(folder, 2), plan(**{"pp": 2, "schedule": "1f1b"} | changed))


def test_a_file_is_read_as_it_stands(tmp_path):
    held = read(Learned, raw())
    assert held.corrections[0].group == Group("pipeline", 2, "fp32")
    assert held.corrections[0].error_log == pytest.approx(log(1.3 / 1.2) / (2 * Z80))
    (tmp_path / FILE).write_text(json.dumps(raw()))
    assert read_learned(tmp_path, "0" * 64) == held
    assert read_learned(tmp_path, "1" * 64).off == "the profile was fitted anew since"
    assert read_learned(tmp_path / "nowhere", "0" * 64) is None


def changed(place: str, value: Any) -> dict[str, Any]:
    """Return the file with one value put at a path of keys and numbers."""
    data = json.loads(json.dumps(raw()))
    *parents, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    held = data
    for part in parents:
        held = held[part]
    held[last] = value
    return data


HOSTILE = [
    ("schema_version", 2),
    ("profile_sha256", "../../etc"),
    ("surplus", 1),
    ("off", "x" * 300),
    ("corrections", {}),
    ("corrections.0.n", 5),
    ("corrections.0.n", 2),
    ("corrections.0.n", True),
    ("corrections.0.kind", "teleport"),
    ("corrections.0.processes", 0),
    ("corrections.0.factor", 1.4),
    ("corrections.0.factor", 0.9),
    ("corrections.0.factor", -1.0),
    ("corrections.0.factor", "1.25"),
    ("corrections.0.factor", float("nan")),
    ("corrections.0.factor", float("inf")),
    ("corrections.0.interval80", [1.3, 1.2]),
    ("corrections.0.interval80", [1.26, 1.3]),
    ("corrections.0.interval80", [1.2]),
    ("corrections.0.scatter_log", -0.1),
    ("corrections.0.code", "__import__('os')"),
    ("runs.0.id", "no hash"),
    ("runs.0.id", f"{1:016x}"),
    ("runs.0.date", "yesterday"),
    ("runs.0.what", "\x1b[2J"),
    ("runs.0.measured_s", 0.0),
    ("runs.0.measured_s", 10.0),
    ("runs.0.predicted_s", None),
    ("runs.0.precision", "bf16"),
    ("runs", []),
    ("runs", [run(n, 1.25) for n in range(1_001)]),
]


@pytest.mark.parametrize(("place", "value"), HOSTILE, ids=lambda x: str(x)[:30])
def test_what_is_wrong_is_refused_with_its_place(folder, place, value):
    learn(folder, changed(place, value))
    if place == "profile_sha256":
        (folder / FILE).write_text(json.dumps(changed(place, value)))
    with pytest.raises(InputError) as caught:
        load_profile(str(folder))
    assert FILE in str(caught.value) or "NaN" in str(caught.value) or "control" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"{", b'{"runs": ' + b"[" * 90 + b"]" * 90 + b"}"])
def test_what_is_no_file_of_corrections_is_refused(folder, content):
    (folder / FILE).write_bytes(content)
    with pytest.raises(InputError):
        load_profile(str(folder))


def test_it_is_checked_like_any_file():
    assert recognised(raw()) == "learned"
    assert file_schema(Learned)["properties"].keys() == raw().keys() | {"off"}
    assert "learned" not in file_schema(Profile)["properties"]


def test_two_corrections_of_one_group_are_refused():
    with pytest.raises(InputError, match="every group once"):
        read(Learned, raw(corrections=raw()["corrections"] * 2))


def test_a_profile_file_holds_none(folder):
    with pytest.raises(InputError, match="no such key"):
        read_profile(load_mapping(folder / "profile.json") | {"learned": raw()}, "profile.json")


def test_the_correction_is_a_line_of_its_own(folder):
    step = pipeline(folder)
    bare = pipeline(profile(folder.parent / "bare"))
    assert step.step_time_s == pytest.approx(1.25 * bare.step_time_s)
    assert step.uncorrected_s == pytest.approx(bare.step_time_s)
    assert step.breakdown_s["learned"] == pytest.approx(0.25 * bare.step_time_s)
    assert sum(step.breakdown_s.values()) == pytest.approx(step.step_time_s)
    assert {k: v for k, v in step.breakdown_s.items() if k != "learned"} == {
        k: v for k, v in bare.breakdown_s.items() if k != "learned"
    }
    (said,) = [text for text in step.assumptions if "learned correction" in text]
    assert "x1.25 (80 % interval 1.2 to 1.3) from 4 executed plans, pipeline on 2 processes in fp32" in said
    assert "2026-11-01 to 2026-11-04" in said


def test_fitted_numbers_and_memory_stay(folder):
    held, bare = load_profile(str(folder)), load_profile(str(profile(folder.parent / "bare")))
    assert held == bare
    assert held.values == bare.values
    assert pipeline(folder).peak_memory_bytes == pipeline(folder.parent / "bare").peak_memory_bytes
    (folder / FILE).unlink()
    assert pipeline(folder).step_time_s == pipeline(folder.parent / "bare").step_time_s


def test_the_interval_holds_the_corrections_own_error(folder):
    step, bare = pipeline(folder), pipeline(profile(folder.parent / "bare"))
    error = step.correction.error_log
    assert step.sigma_log == pytest.approx((max(bare.sigma_log, 0.05) ** 2 + error**2) ** 0.5)
    wide = raw(predicted_s=bare.step_time_s)
    wide["corrections"][0]["scatter_log"] = 1.0
    learn(folder, wide)
    assert pipeline(folder).sigma_log == pytest.approx((1 + error**2) ** 0.5)


def test_a_step_beyond_the_executed_ones_is_less_certain_and_says_so(folder):
    near = pipeline(folder)
    learn(folder, raw(predicted_s=near.uncorrected_s / 5))
    far = pipeline(folder)
    assert far.step_time_s == near.step_time_s
    assert far.sigma_log > near.sigma_log
    assert far.sigma_log >= log(1.25)
    assert "this step lies beyond" in " ".join(far.assumptions)
    assert "this step lies beyond" not in " ".join(near.assumptions)


@pytest.mark.parametrize(
    "other",
    [
        {"pp": 1, "tp": 2, "schedule": "none"},
        {"pp": 1, "dp": 2, "schedule": "none"},
        {"dp": 2},
        {"pp": 1, "dp": 1, "schedule": "none"},
    ],
)
def test_other_plans_are_outside_and_say_so(folder, other):
    ranks = other.get("tp", 1) * other.get("dp", 1) * other.get("pp", 2)
    given = {"pp": 2, "schedule": "1f1b"} | other
    steps = [simulate(SMALL, cluster(f, ranks), plan(**given)) for f in (folder, profile(folder.parent / "bare"))]
    assert steps[0].step_time_s == steps[1].step_time_s
    assert steps[0].correction is None
    (said,) = [text for text in steps[0].assumptions if "no learned correction for" in text]
    assert "pipeline on 2 processes in fp32 (x1.25, 4 plans)" in said


def test_a_profile_that_was_fitted_anew_forgets_aloud(folder):
    data = load_mapping(folder / "profile.json") | {"date": "another day"}
    (folder / "profile.json").write_text(json.dumps(data))
    step = pipeline(folder)
    assert step.correction is None
    assert any("not applied: the profile was fitted anew" in text for text in step.assumptions)


def test_corrections_can_be_switched_off_in_their_file(folder):
    learn(folder, raw(off="by hand"))
    assert pipeline(folder).correction is None
    assert "not applied: by hand" in " ".join(pipeline(folder).assumptions)


def test_groups_of_arrays_are_those_of_plans():
    held = read(Learned, raw())
    degrees = {
        "zero": 0,
        "tp": [1, 2, 1, 1, 1],
        "pp": [2, 1, 2, 1, 2],
        "dp": [1, 1, 1, 2, 2],
        "cp": [1] * 5,
        "ep": [1, 1, 2, 1, 1],
    }
    assert factors(held, degrees, ["fp32"] * 5).tolist() == [1.25, 1, 1, 1, 1]
    assert factors(held, degrees, ["bf16"] * 5).tolist() == [1] * 5
    assert factors(None, degrees, ["fp32"] * 5) == 1.0
    assert least_factor(held, 2) == least_factor(None, 2) == 1.0
    faster = raw(runs=[run(n, 1 / ratio) for n, ratio in enumerate(TIMES)])
    faster["corrections"][0] |= {"factor": 0.8, "interval80": [0.75, 0.85]}
    assert least_factor(read(Learned, faster), 2) == 0.8


def test_tables_and_searches_know_the_correction(folder):
    bare = profile(folder.parent / "bare")
    step = pipeline(folder)
    asked = [Asked(SMALL, cluster(f, 2), step.placed) for f in (folder, bare)]
    times = Batch(asked, "walked")(step.level).step_time_s
    assert times[0] == pytest.approx(1.25 * times[1])
    alone = {"precision": ["fp32"], "unequal_stages": [False], "recompute": ["none"], "zero": [0], "micro_batch": [2]}
    knobs = alone | {"sequence_parallel": [False], "virtual_stages": [1]}
    kept = plan(dp=None)
    found = [tune(SMALL, cluster(f, 2), 8, knobs, plan=kept, top=3) for f in (folder, bare)]
    for n, factor in ((0, 1.25), (1, 1.0)):
        for one in found[n].plans:
            assert bool(one.step.correction) == (factor > 1 and one.step.plan.pp == 2)
    assert found[0].gap == 0.0
    seen = {repr(one.step.plan): one.step for one in found[0].plans}
    shared = [(seen[repr(o.step.plan)], o.step) for o in found[1].plans if repr(o.step.plan) in seen]
    assert shared
    for with_it, without in shared:
        assert with_it.uncorrected_s == pytest.approx(without.step_time_s)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, "one process"),
        ({"dp": 2, "zero": 1}, "data parallel"),
        ({"dp": 2, "zero": 2}, "sharded"),
        ({"dp": 2, "tp": 2}, "tensor parallel"),
        ({"dp": 2, "pp": 2}, "pipeline"),
    ],
)
def test_what_a_plan_is_an_example_of(folder, given, kind):
    one = plan(**given)
    processes = one.tp * one.pp * one.dp
    placed = one.on(SMALL, cluster(folder, processes))
    assert Group.of(placed) == Group(kind, processes, "fp32")
    assert str(Group.of(placed)) == (f"{kind} on {processes} processes in fp32" if given else f"{kind} in fp32")


def test_it_is_drawn_and_told(folder, tmp_path):
    step = pipeline(folder)
    slower = raw(runs=[run(n, 1 / ratio, step.uncorrected_s) for n, ratio in enumerate(TIMES)])
    slower["corrections"][0] |= {"factor": 0.8, "interval80": [0.75, 0.85]}
    learn(folder, slower)
    less = pipeline(folder)
    assert less.breakdown_s["learned"] < 0
    figure = breakdown([step, less], ["more", "less"])
    assert "learned from executed plans" in [trace.name for trace in figure.data]
    assert figure.layout.xaxis.range[0] < 0
    assert difference(less, step).data
    save_html(step, tmp_path / "page.html")
    assert "the learned correction itself" in (tmp_path / "page.html").read_text()


def test_a_correction_writes_and_reads_back():
    held = read(Learned, raw())
    assert read(Learned, json.loads(json.dumps(asdict(held)))) == held
    assert held.corrections[0].sigma_log(False) < held.corrections[0].sigma_log(True) == pytest.approx(log(1.25))
    assert exp(held.runs[0].log) == pytest.approx(1.3)
