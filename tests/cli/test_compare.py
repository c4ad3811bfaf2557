"""`trainsim compare`: what its table says of the searches, and what of a job it leaves unread."""

import json
from dataclasses import replace

from sim.engine.step import simulate
from sim.specs import Job
from sim.tuner.ways import RIVALS, Found
from sim.tuner.ways_table import ComparedRow, read_compared, write_compared

MODEL = {"layers": 4, "hidden": 256, "heads": 4, "vocab": 1024, "seq": 128}


def _had(folder, tune, slowest=1, **beside):
    """Return a job and the table of its searches, the last of which found `slowest` micro-batches of one sample."""
    job, table = folder / "small.json", folder / "table.csv"
    parts = {"model": MODEL, "cluster": {"device": "l4", "gpus_per_node": 1}}
    job.write_text(json.dumps(parts | {"tune": {"global_batch": 8, **tune}, **beside}))
    rows = []
    for micro_batch, way in zip([8] * (len(RIVALS) - 1) + [8 // slowest], RIVALS, strict=True):
        job_with = folder / "plan.json"
        job_with.write_text(json.dumps(parts | {"plan": {"global_batch": 8, "micro_batch": micro_batch}}))
        held = Job.load(job_with)
        step = simulate(held.model, held.cluster, held.plan, "events")
        rows.append(ComparedRow.of("small", "l4", 1, 8, Found(way, step.plan, step.step_time_s, 1_370_828, 1.5)))
    write_compared(rows, table)
    return job, table, [row.step_time_s for row in rows]


def test_every_search_stands_beside_the_best_one(trainsim, tmp_path):
    job, table, times = _had(tmp_path, {}, slowest=8)
    code, out, err = trainsim("compare", job, "--out", table)
    assert code == 0 and not err and f"written: {table}" in out
    lines = [line.split() for line in out.splitlines() if line.strip().startswith("small ")]
    assert [line[1] for line in lines] == list(RIVALS)
    over = 100 * (times[-1] / times[0] - 1)
    assert over > 10 and f"+{over:.0f}\u00a0%" in out and out.count("+0.0\u00a0%") == len(RIVALS) - 1
    assert "1\u2009370\u2009828" in out


def test_what_no_search_reads_is_said(trainsim, tmp_path):
    knobs = {"knobs": {"tp": [1], "zero": [0, 1]}, "objective": "cost", "target": "torchtitan"}
    job, table, _ = _had(tmp_path, knobs)
    code, _, err = trainsim("compare", job, "--out", table)
    assert code == 0
    assert err.strip().endswith("tune.knobs.tp, tune.knobs.zero, tune.objective, tune.target")
    job, table, _ = _had(tmp_path, {"target": "any"})  # as every search has it
    assert trainsim("compare", job, "--out", table)[2] == ""


def test_what_every_search_chooses_anew_is_said(trainsim, tmp_path):
    plan = {"overlap_dp": True, "zero": 1, "offload": {"optimizer": 0.5}, "recompute": "none"}
    job, table, _ = _had(tmp_path, {}, plan=plan)
    code, _, err = trainsim("compare", job, "--out", table)
    assert code == 0 and err.strip().endswith(": plan.offload, plan.zero")


def test_rows_of_other_settings_are_refused(trainsim, tmp_path):
    """On one device nothing is reduced: no step time tells the rows apart."""
    job, table, _ = _had(tmp_path, {}, plan={"overlap_dp": False})
    code, _, err = trainsim("compare", job, "--out", table)
    assert code == 2 and "plan.overlap_dp true" in err and "the job has false now" in err


def test_rows_of_another_command_stay(trainsim, tmp_path, monkeypatch):
    job, table, _ = _had(tmp_path, {})
    (*others, own) = read_compared(table)
    table.unlink()

    def searched(model, cluster, batch, ways, plan):
        (way,) = ways
        write_compared([replace(row, job="another") for row in others], table)  # as one that runs beside does
        yield Found(way, own.parsed(), own.step_time_s, 1, 1.0)

    monkeypatch.setattr("sim.cli.compare.compared", searched)
    assert trainsim("compare", job, "--out", table)[0] == 0
    rows = [(row.job, row.way) for row in read_compared(table)]
    assert sorted(rows) == sorted([*(("small", way) for way in RIVALS), *(("another", row.way) for row in others)])


def test_all_jobs_are_read_before_any_is_searched(trainsim, tmp_path, monkeypatch):
    job, _, _ = _had(tmp_path, {})
    monkeypatch.setattr("sim.cli.compare.compared", None)
    code, out, err = trainsim("compare", job, tmp_path / "missing.yaml")
    assert code == 2 and not out and "missing.yaml: got 'no such file'" in err
