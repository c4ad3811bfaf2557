"""Products of rows that do not begin at multiples of 16 bytes, in a step: a vocabulary that nobody padded."""

from dataclasses import replace

import pytest

from sim.costs.kernels import narrow
from sim.costs.profile import load_profile
from sim.costs.spread import family_sigmas
from sim.engine.placed import stage_costs
from sim.engine.step import simulate
from sim.specs import Cluster, Model, Plan
from sim.specs.catalog import model
from sim.specs.table import LayerTable
from sim.tuner.score import score_members
from sim.tuner.space import build_space
from tests.costs.test_traced import kernel, one

GPT = replace(model("gpt2-xl"), vocab=50304)
PLAN = Plan(global_batch=32, micro_batch=4, framework="torch")
H200, A100 = Cluster.of("h200-sxm-141gb", nodes=1), Cluster.of("a100-sxm-80gb", nodes=1)


def step(vocab: int, cluster: Cluster = H200, **changed: object):
    return simulate(replace(GPT, vocab=vocab), cluster, PLAN.but(**changed))


@pytest.mark.parametrize(
    ("sizes", "odd", "even"),
    [((64,), 0, 0), ((64, 50257), 1, 0), ((50258,), 0, 1), ((50260, 64), 0, 1), ((3, 6), 1, 0)],
)
def test_the_worst_row_decides(sizes, odd, even):
    assert narrow(*sizes) == {"odd": odd, "even": even}


def test_an_unpadded_vocabulary_is_slower_and_padding_it_pays():
    padded, even, odd = (step(vocab).step_time_s for vocab in (50304, 50258, 50257))
    assert 1.03 * padded < even and 1.03 * even < odd < 1.3 * padded


def test_megatron_pads():
    plain, padded = (step(vocab, framework="megatron").step_time_s for vocab in (50257, 50304))
    assert plain == pytest.approx(padded, rel=1e-3)


def test_each_rank_has_rows_of_its_own_part():
    """128,264 columns are a multiple of eight, a quarter of them is not."""
    models = [replace(model("llama3-8b"), vocab=vocab) for vocab in (128256, 128264)]
    times = {tp: [simulate(m, H200, PLAN.but(tp=tp)).step_time_s for m in models] for tp in (1, 4)}
    assert times[1][0] == pytest.approx(times[1][1], rel=1e-3)
    assert times[4][1] > 1.02 * times[4][0]


def test_a_traced_product_is_known_by_its_sizes():
    """3.6 and 6.7 times as long, where nothing else is in the way; what comes in samples lies in no row."""

    def seconds(n: int, k: int, rows: int = 8192) -> float:
        made = one([kernel(m=(0, rows), n=(n, 0), k=(k, 0), batch=(1, 0), count=1)])
        network = Model.from_table(LayerTable(name="t", dtype="bfloat16", batches=[1, 2, 3], layers=[made]))
        values = stage_costs(network, H200, Plan(global_batch=64).on(network, H200), load_profile(H200.profile))
        return values["forward_compute"].item()

    plain = seconds(8192, 8192)
    assert seconds(8194, 8192) / plain == pytest.approx(3.6, rel=0.05)
    assert seconds(8192, 8191) / plain == pytest.approx(6.7, rel=0.05)
    assert seconds(8192, 8192, rows=8191) == pytest.approx(plain, rel=0.02)


def test_what_rows_cost_is_told_and_where_nobody_knows_it():
    known, unknown = ([x for x in step(50257, on).assumptions if "no multiple of 16" in x] for on in (H200, A100))
    assert "take longer for it, up to 6.7 times: a size padded to a multiple of 8 would not" in known[0]
    assert "count like others" in unknown[0]
    assert [line.split(",")[0] for line in known + unknown] == ["products with rows of 50257 elements"] * 2
    assert step(50257, A100).step_time_s == pytest.approx(step(50304, A100).step_time_s, rel=1e-3)


def test_rows_that_nothing_counts_are_told_where_they_matter():
    wide = replace(GPT, ffn=6402, hidden=1600)
    (line,) = (x for x in simulate(wide, H200, PLAN).assumptions if "no multiple of 16" in x)
    assert line.startswith("products with rows of 6402 elements") and "count like others" in line
    assert not [x for x in simulate(GPT, H200, PLAN).assumptions if "no multiple of 16" in x]
    assert not [x for x in step(50257, A100, framework="megatron").assumptions if "no multiple of 16" in x]


def test_their_own_error_counts():
    profile, kernels = load_profile("h200-sxm-141gb"), step(50257).kernels
    blind = replace(profile, models=[replace(m, held_out={}) for m in profile.models])
    assert family_sigmas(profile, kernels)["gemm"] > 1.05 * family_sigmas(blind, kernels)["gemm"]
    aligned = step(50304).kernels
    assert family_sigmas(profile, aligned) == family_sigmas(blind, aligned)


def test_a_search_counts_them_as_a_step_does():
    knobs = {"micro_batch": [1, 4], "zero": [1], "recompute": ["none"], "framework": "torch"}
    of = build_space(replace(GPT, vocab=50257), H200, 32, knobs)
    found = score_members(of)
    for row in range(0, len(found.step_time_s), max(1, len(found.step_time_s) // 12)):
        at = (row, 0, 0, 0)
        if of.allowed[at]:
            exact = simulate(of.model, of.cluster, of.plan(*at)).step_time_s
            assert found.step_time_s[at] == pytest.approx(exact, rel=0.02)
