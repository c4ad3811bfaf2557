"""Ablation: a term switched off is gone, the others stay; the table comes back as it was written."""

from dataclasses import replace

import pytest

from sim.costs.run_level import run_level
from sim.engine.batch import Asked, Batch
from sim.specs.fields import InputError
from sim.validation.ablation import SWITCHED_OFF, ablation, read_ablation, write_ablation
from sim.validation.table import read_runs
from sim.validation.translate import translate
from tests.oracle import reference
from tests.validation.runs import write

PLAIN = {"tp": "1", "pp": "1", "dp": "8"}
USES = {
    "launch": {},
    "small-messages": {},
    "both-tiers": {"gpus": "32", "tp": "16", "dp": "2"},
    "in-switch": {"device": "h100-sxm-80gb", "tp": "8", "dp": "1"},
    "straggler": {},
    "framework": {"fsdp_shard": "8", "zero_stage": "3"},
    "fsdp-overlap": {"fsdp_shard": "8", "zero_stage": "3"},
    "contention": {},
    "tp-overlap": {"tp": "8", "dp": "1", "hidden": "8192", "heads": "64"},
    "data-parallel": {},
    "distributed-optimizer": {},
    "cp-ep-sp": {"tp": "2", "dp": "2", "cp": "2", "sequence_parallel": "1"},
    "low-precision": {"device": "h100-sxm-80gb", "precision": "fp8"},
    "fused-loss": {"model": "MPT-1b"},
    "ring": {"dp": "4", "cp": "2", "fsdp_shard": "4", "zero_stage": "3", "attention": "flash"},
    "ends": {},
    "power": {"device": "h100-sxm-96gb-500w"},
    "recompute": {"recompute": "full"},
    "memory-bound": {},
    "attention": {},
    "misaligned": {"attention": "eager", "hidden": "2400", "heads": "16"},
}


def seconds(asked, change=None):
    return float(Batch([asked], "walked", change)(run_level()).step_time_s[0])


def asked(tmp_path, cells):
    case = translate(read_runs(write(tmp_path / "runs.csv", PLAIN | cells))[0])
    return Asked(case.model, case.cluster, case.placed)


@pytest.mark.parametrize("term", SWITCHED_OFF)
def test_every_term_is_felt_where_it_is_used(tmp_path, term):
    one = asked(tmp_path, USES[term])
    assert abs(seconds(one, SWITCHED_OFF[term].without) / seconds(one) - 1) > 1e-5


def test_without_tensor_parallel_overlap_nothing_runs_in_pieces(tmp_path):
    """As without sequence parallelism, of whose traffic the pieces are."""
    one = asked(tmp_path, USES["tp-overlap"] | {"sequence_parallel": "1"})
    plan = one.placed.plan
    pieces, slow = (
        replace(one, placed=plan.but(tp_comm_overlap=on, tp_overlap=on).on(one.model, one.cluster))
        for on in (True, False)
    )
    change = SWITCHED_OFF["tp-overlap"].without
    assert seconds(pieces) < seconds(pieces, change) == pytest.approx(seconds(slow), rel=1e-9)
    whole = SWITCHED_OFF["cp-ep-sp"].without
    assert seconds(pieces, whole) == pytest.approx(seconds(one, whole), rel=1e-9)


@pytest.mark.parametrize(
    "term", ["both-tiers", "tp-overlap", "cp-ep-sp", "low-precision", "fused-loss", "ring", "power", "misaligned"]
)
def test_a_term_is_nothing_where_it_is_not_used(tmp_path, term):
    one = asked(tmp_path, {})
    assert seconds(one, SWITCHED_OFF[term].without) == pytest.approx(seconds(one), rel=1e-9)


def test_walked_is_what_is_compiled(tmp_path):
    one = asked(tmp_path, {"tp": "8", "dp": "1"})
    assert seconds(one) == pytest.approx(float(Batch([one], "approximate")(run_level()).step_time_s[0]))


@pytest.mark.slow
def test_the_table_comes_back(tmp_path):
    cases = [translate(row) for row in read_runs(write(tmp_path / "runs.csv", PLAIN, PLAIN | {"source": "=A1"}))]
    rows = list(ablation([*cases, replace(cases[0], row=replace(cases[0].row, use_for="memory", memory_kind="allocated",
                                                                peak_memory_bytes=1e6))]))  # fmt: skip
    assert len(rows) == 2 * (1 + len(SWITCHED_OFF)) and {row.n for row in rows} == {1}
    write_ablation(rows, tmp_path / "out.csv")
    again = read_ablation(tmp_path / "out.csv")
    assert [(r.term, r.source) for r in again] == [(r.term, r.source) for r in rows]
    assert ",'=A1," in (tmp_path / "out.csv").read_text()  # no formula of a spreadsheet
    assert [r.mape for r in again] == pytest.approx([r.mape for r in rows], rel=1e-3)
    (tmp_path / "out.csv").write_text("term,words\n")
    with pytest.raises(InputError, match="term,words"):
        read_ablation(tmp_path / "out.csv")


@pytest.mark.slow
def test_what_matters_on_real_runs():
    """Without the head's work a deep pipeline of a small model is off; nothing else of it uses two tiers."""
    cases = [translate(row) for row in read_runs(reference("runs/zero_bubble_2401_10241.csv"))]
    errors = {row.term: row.mape_debiased for row in ablation(cases)}
    assert errors["ends"] > errors[""] + 1 and errors["both-tiers"] == pytest.approx(errors[""])
