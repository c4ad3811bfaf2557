"""Megatron-LM's PTD-P (arXiv 2104.04473) as published and as simulated, with parameters that never saw its runs."""

import csv
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from sim.costs.run_level import run_level
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Links, Model, Plan
from sim.validation.table import read_runs
from sim.validation.throughput import achieved, flop_with_recompute, throughputs
from tests.oracle import ROOT, reference

TABLE = ROOT / "notebooks" / "data" / "ptdp.csv"
BATCHES = (12, 24, 36, 48, 60, 96, 144)
SPLITS = (2, 4, 8, 16, 32)


def gpt(layers: int, hidden: int, heads: int) -> Model:
    return Model(
        name="gpt", layers=layers, hidden=hidden, heads=heads, vocab=51200, seq=2048, dropout=0.1, attention="eager"
    )


GPT3 = gpt(96, 12288, 96)


@cache
def step(model, nodes, engine="path", gigabytes=200, **plan):
    cluster = Cluster.of("a100-sxm-80gb", nodes=nodes, links=Links(inter_bytes_per_s_per_node=gigabytes * 1e9))
    era = {"overlap_dp": False, "precision": "fp16", "recompute": "full", "sequence_parallel": False}
    return simulate(model, cluster, Plan(**era | plan), engine, run_level("PTD-P (arXiv 2104.04473)"))


def rate(*args, **plan):
    return achieved(step(*args, **plan))


@pytest.fixture(scope="module")
def rows():
    return throughputs(read_runs(TABLE))


def test_table_1_is_the_reference_row_by_row():
    runs = reference("runs/ptdp_2104_04473.csv").read_text().splitlines()
    assert TABLE.read_text().splitlines()[: len(runs)] == runs


def test_table_2_is_the_reference():
    with reference("pipelines/published_numbers.csv").open() as file:
        told = {row["id"]: row["figure"] for row in csv.DictReader(file)}
    held = [row for row in read_runs(TABLE) if row.group]
    for at, key in enumerate(("MG-10", "MG-11", "MG-12")):
        assert " / ".join(f"{row.tflops_per_gpu:.0f}" for row in held[3 * at : 3 * at + 3]) == told[key]


def test_step_times_are_the_papers_formula():
    for run in read_runs(TABLE):
        flop = flop_with_recompute(gpt(run.layers, run.hidden, run.heads), run.global_batch)
        assert flop / run.gpus / run.tflops_per_gpu / 1e12 == pytest.approx(run.step_time_s, rel=1e-3)


def test_a_run_without_time_and_throughput_is_named():
    bare = replace(read_runs(TABLE)[0], tflops_per_gpu=None, step_time_s=None, use_for="")
    with pytest.raises(InputError, match=r"ptdp_2104_04473-0001\.tflops_per_gpu: missing; required"):
        throughputs([bare])


def test_nothing_was_fitted_to_the_paper():
    level = run_level("PTD-P (arXiv 2104.04473)")
    assert "PTD-P" not in level.source
    assert "PTD-P" in run_level().source


def test_weak_scaling(rows):
    scaling = [row for row in rows if not row.scheme]
    assert len(scaling) == 10
    assert all(row.inside for row in scaling)
    assert np.mean([abs(row.error) for row in scaling]) < 0.04
    largest = scaling[-1]
    assert largest.gpus * largest.predicted.value == pytest.approx(502e15, rel=0.1)


@pytest.mark.parametrize("batch", [32, 128])
def test_tensor_parallelism_fills_a_server(batch):
    model = gpt(32, 20480, 128)
    found = {tp: rate(model, 8, tp=tp, pp=64 // tp, global_batch=batch) for tp in SPLITS}
    assert max(found, key=found.get) == 8
    assert found[16] > found[32]
    assert found[2] < found[4]
    assert found[32] < 0.8 * found[8]


@pytest.mark.parametrize("batch", [32, 128, 512])
def test_a_small_model_wants_data_parallelism(batch):
    model = gpt(32, 3840, 32)
    for degree in ("pp", "tp"):
        found = [rate(model, 8, global_batch=batch, **{degree: n}) for n in SPLITS]
        assert found == sorted(found, reverse=True)
    across = rate(model, 8, global_batch=batch, tp=16)
    assert across < 0.7 * rate(model, 8, global_batch=batch, tp=8)


def test_the_best_microbatch_lies_between():
    model = gpt(32, 15360, 128)
    for batch, best in ((128, (1, 2)), (512, (2, 4))):
        found = {b: rate(model, 8, tp=8, pp=8, global_batch=batch, micro_batch=b) for b in (1, 2, 4, 8)}
        assert max(found, key=found.get) in best
        assert found[8] < max(found.values())


def on_96(chunks, batch, parts=True, **more):
    knobs = {"tp": 8, "pp": 12, "virtual_stages": chunks, "global_batch": batch, "scatter_gather": parts, **more}
    return step(GPT3, 12, "events", **knobs)


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving_gains_most_at_small_batches(chunks):
    gains = [on_96(1, b).step_time_s / on_96(chunks, b).step_time_s - 1 for b in BATCHES]
    assert gains == sorted(gains, reverse=True)
    assert min(gains[:3]) > 0.10  # published: 10+ %, closing with the batch
    assert 0 < gains[-1] < 0.06
    assert all(on_96(chunks, b).peak_memory_bytes < 1.1 * on_96(1, b).peak_memory_bytes for b in BATCHES)


def test_messages_hardly_meet_on_a_link():
    for chunks in (2, 8):
        path = step(GPT3, 12, tp=8, pp=12, virtual_stages=chunks, global_batch=60, scatter_gather=False)
        assert 0.9999 < on_96(chunks, 60, False).step_time_s / path.step_time_s < 1.01


@pytest.mark.slow
@pytest.mark.parametrize(("chunks", "low", "high"), [(2, 0.012, 0.03), (4, 0.03, 0.06), (8, 0.07, 0.12)])
def test_scatter_gather_gains_what_messages_cost(chunks, low, high):
    """Published: up to 11 %. That needs ranks that wait; messages beside compute are paid for at the ends only."""
    pairs = [(on_96(chunks, b, False), on_96(chunks, b)) for b in BATCHES]
    gains = [a.step_time_s / b.step_time_s - 1 for a, b in pairs]
    still = [[on_96(chunks, b, p, blocking_sends=True).step_time_s for b in BATCHES] for p in (False, True)]
    waited = [a / b - 1 for a, b in zip(*still, strict=True)]
    assert low < gains[0] < high
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] < 0.15 * gains[0]
    assert all(1.5 * low < gain < 2 * high for gain in waited)  # both ends of a message stand still


def test_beside_zero_3(rows):
    ours = [row for row in rows if row.scheme == "PTD-P"]
    zero = [row for row in rows if row.scheme == "ZeRO-3"]
    assert all(row.inside and abs(row.error) < 0.06 for row in ours)
    for three in (ours[:3], ours[3:], zero):
        assert [r.predicted.value for r in three] == sorted((r.predicted.value for r in three), reverse=True)
    # Known miss: ZeRO-3 is predicted faster than it was, up to three times; only the order at the largest size holds.
    assert all(1.2 < 1 + row.error < 3.0 for row in zero)
    assert ours[2].predicted.value > zero[2].predicted.value


def test_a_slower_network_would_explain_zero_3(rows):
    for row, micro_batch in zip([r for r in rows if r.scheme == "ZeRO-3"], (4, 2, 1), strict=True):
        plan = {"zero": 3, "global_batch": 1536, "micro_batch": micro_batch}
        slow, fast = (rate(GPT3, row.gpus // 8, gigabytes=g, **plan) for g in (25, 65))
        assert slow < row.published < fast
