"""Rows by closed forms: equal to the tuner's scores, and refused as one plan would be."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.plan import RECOMPUTE
from sim.specs.rules import RULES
from sim.specs.spread import Spread
from sim.sweep.evaluate import Evaluate, _array
from sim.sweep.grid import Grid
from sim.sweep.numbering import Column
from sim.sweep.outcome import IMPOSSIBLE, OK
from sim.sweep.simulated import rule_broken
from sim.tuner.score import score_members
from sim.tuner.space import build_space
from tests.sweep.conftest import AXES, BASE, SMALL

MIXED = {"groups": [{"device": "h100-sxm-80gb"}, {"device": "a100-sxm-80gb"}]}
KINDS = {
    "plain": {},
    "mixed cluster": {"cluster": MIXED},
    "experts": {"model": SMALL | {"experts": 8, "experts_per_token": 2, "moe_ffn": 1024}},
    "fp8, offloaded": {
        "plan": {"global_batch": 64, "precision": "fp8", "offload": {"optimizer": 0.5, "activations": 0.5}}
    },
    "torch's order": {"plan": {"global_batch": 64, "framework": "torch", "rank_order": "tp-cp-pp-dp"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_tuners_scores(kind):
    grid = Grid(**(BASE | KINDS[kind]), axes=AXES)
    found = Evaluate(grid).outcome(0, grid.size)
    parts = Evaluate(grid).sections
    model, cluster, plan = (parts[name].at(()) for name in ("model", "cluster", "plan"))
    kept = {name: getattr(plan, name) for name in ("precision", "offload", "framework", "rank_order")}
    knobs = {path.removeprefix("plan."): values for path, values in AXES.items()}
    space = build_space(
        model, cluster, 64, knobs | {"ep": [1]}, {k: v for k, v in kept.items() if k not in plan.derived}
    )
    scores = score_members(space)
    seen = 0
    for row, sp in product(range(len(space.rows["tp"])), (0, 1)):
        for again, zero in product(range(len(space.recompute)), range(3)):
            shape = {name: int(space.rows[name][row]) for name in ("tp", "pp", "virtual_stages", "micro_batch")}
            if bool(sp) != (shape["tp"] > 1) or not space.allowed[row, again, zero, sp]:
                continue
            each = [*shape.values(), knobs["zero"][zero], RECOMPUTE[space.recompute[again]]]
            number = np.ravel_multi_index(
                [v.index(x) for v, x in zip(AXES.values(), each, strict=True)], [*map(len, AXES.values())]
            )
            assert found.outcome[number] == OK
            for name in ("step_time_s", "peak_memory_bytes"):
                assert found.numbers[name][number] == pytest.approx(
                    getattr(scores, name)[row, again, zero, sp], rel=1e-9
                )
            assert (found.numbers["fits"][number] == 2) == scores.fits[row, again, zero, sp]
            seen += 1
    assert seen > 30


def test_rows_agree_with_single_plans(small):
    """Refused by the same rule; memory and rates as the engine has them."""
    found = Evaluate(small).outcome(0, small.size)
    model, cluster = Model(**SMALL), Cluster(**BASE["cluster"])
    for number in range(0, small.size, 7):
        own = {
            p.removeprefix("plan."): c.values[c.index[0]]
            for p, c in small.numbering.columns(number, number + 1).items()
        }
        plan = Plan(global_batch=64, **own)
        broken = rule_broken(model, cluster, plan)
        assert (found.outcome[number] == IMPOSSIBLE) == bool(broken)
        if broken:
            assert found.reasons[found.reason[number]] == broken
            with pytest.raises(InputError):
                plan.on(model, cluster)
            continue
        step = simulate(model, cluster, plan)
        row = {name: column[number] for name, column in found.numbers.items()}
        assert row["peak_memory_bytes"] == pytest.approx(step.peak_memory_bytes, rel=1e-6)
        assert row["step_time_s"] == pytest.approx(step.step_time_s, rel=0.05)
        faster = step.step_time_s / row["step_time_s"]
        assert row["mfu"] == pytest.approx(step.mfu * faster, rel=1e-6)
        assert row["tokens_per_s_per_gpu"] == pytest.approx(step.tokens_per_s_per_gpu * faster, rel=1e-6)
        assert row["usd_per_1e9_tokens"] == pytest.approx(step.usd_per_1e9_tokens / faster, rel=1e-6)


NUMBERS = {
    "cluster.links.intra_bytes_per_s": (1e10, 1e12),
    "cluster.links.inter_bytes_per_s_per_node": (1e9, 1e12),
    "cluster.links.latency_s": (1e-7, 1e-3),
    "cluster.memory_bytes": (1e9, 2e11),
    "cluster.usd_per_gpu_hour": (0.1, 20.0),
}


@pytest.mark.slow
@given(st.fixed_dictionaries({path: st.floats(*ends) for path, ends in NUMBERS.items()}))
def test_numbers_that_rows_state_count_as_those_of_a_cluster(values):
    """The short way (a column) and the long one (a cluster of its own) come to the same."""
    axes = {"plan.tp": [1, 8], "plan.pp": [1, 2], "plan.zero": [0, 3]}
    direct = Grid(**BASE, axes={path: [value] for path, value in values.items()} | axes)
    links = {p.removeprefix("cluster.links."): v for p, v in values.items() if ".links." in p}
    own = {p.removeprefix("cluster."): v for p, v in values.items() if ".links." not in p}
    stated = Grid(**(BASE | {"cluster": BASE["cluster"] | own | {"links": links}}), axes=axes)
    one, other = (Evaluate(g).outcome(0, g.size) for g in (direct, stated))
    assert (one.outcome == OK).all()
    for name, column in one.numbers.items():
        np.testing.assert_allclose(column, other.numbers[name], rtol=1e-6)


@pytest.mark.parametrize("clock", [1.0, 2.0])
def test_utilisation_is_that_of_a_step_of_the_same_time(clock):
    grid = Grid(**BASE | {"cluster": BASE["cluster"] | {"multipliers": {"clock": clock}}}, axes={"plan.tp": [2]})
    found = Evaluate(grid).outcome(0, 1)
    parts = Evaluate(grid).sections
    step = simulate(parts["model"].at(()), parts["cluster"].at(()), parts["plan"].at(()).but(tp=2))
    assert found.numbers["mfu"][0] * found.numbers["step_time_s"][0] == pytest.approx(
        step.mfu * step.step_time_s, rel=1e-6
    )


def test_settings_that_cannot_be_have_their_reason():
    axes = {"cluster.device": ["a100-sxm-80gb", "h100-sxm-80gb"], "plan.precision": ["bf16", "fp8"], "plan.tp": [1, 2]}
    grid = Grid(**BASE, axes=axes)
    found = Evaluate(grid).outcome(0, grid.size)
    assert found.outcome.reshape(2, 2, 2).tolist() == [[[OK, OK], [IMPOSSIBLE, IMPOSSIBLE]], [[OK, OK], [OK, OK]]]
    assert found.counts() == (6, 2, 0, 0)
    assert "plan.precision: a precision that" in found.reasons[found.reason[2]]


@pytest.mark.parametrize("engine", ["analytic", "path"])
def test_pieces_are_refused_where_nothing_is_cut(engine):
    """Not as one plan that cannot even be written: the rows beside it have numbers."""
    axes = {"plan.tp": [1, 2], "plan.sequence_parallel": [True, False], "plan.tp_comm_overlap": [True, False]}
    grid = Grid(**BASE | {"model": "llama3-8b"}, axes=axes, engine=engine)
    found = Evaluate(grid).outcome(0, grid.size)
    assert found.outcome.reshape(2, 4).tolist() == [[IMPOSSIBLE, IMPOSSIBLE, OK, OK], [OK, OK, IMPOSSIBLE, OK]]
    assert found.reasons[found.reason[6]] == "tp_comm_overlap without sequence parallelism"
    assert found.numbers["step_time_s"][4] < found.numbers["step_time_s"][5]


@pytest.mark.parametrize(
    ("schedule", "chunks", "far"),
    [
        ("gpipe", 1, 0.03), ("looped-bfs", 2, 0.03), ("1f1b", 1, 0.09), ("zb-h1", 1, 0.09), ("zb-h2", 1, 0.16),
        ("interleaved", 2, 0.2),
    ],
)  # fmt: skip
def test_the_slowest_link_of_a_pipeline_is_what_all_messages_wait_for(schedule, chunks, far):
    """Of four and eight ranks on two nodes one pair is apart: not the mean of all links, which is up to 7 times as
    fast, paces what follows each other. Orders in which forwards and backwards alternate have longer cycles too."""
    axes = {"plan.pp": [4, 8], "cluster.links.inter_bytes_per_s_per_node": [1e8, 1e9]}
    plan = {"global_batch": 64, "schedule": schedule, "virtual_stages": chunks}
    given = BASE | {"model": "llama3-8b", "plan": plan}
    grids = [Grid(**given, axes=axes, engine=engine) for engine in ("analytic", "path")]
    closed, walked = (Evaluate(grid).outcome(0, grid.size).numbers["step_time_s"] for grid in grids)
    assert closed == pytest.approx(walked, rel=far)


def test_models_and_clusters_of_several_shapes_in_one_block():
    axes = {"model": ["llama3-8b", "gpt3-175b"], "cluster.nodes": [1, 4], "plan.tp": [4, 8], "model.seq": [2048, 4096]}
    grid = Grid(**(BASE | {"model": None}), axes=axes)
    whole = Evaluate(grid).outcome(0, grid.size)
    for n in range(grid.size):
        alone = Evaluate(grid).outcome(n, n + 1)
        assert alone.numbers["step_time_s"][0] == pytest.approx(whole.numbers["step_time_s"][n], rel=1e-12)
    assert len(set(whole.numbers["step_time_s"].tolist())) == grid.size


def test_an_error_of_the_program_is_said_of_its_rows(small, monkeypatch):
    evaluate = Evaluate(small)
    monkeypatch.setattr(type(evaluate.analytic), "__call__", lambda *_: 1 / 0)
    found = evaluate.outcome(0, 10)
    assert found.counts() == (0, 0, 10, 0)
    assert found.reasons == ("ZeroDivisionError: division by zero",)


def test_every_rule_is_a_rule_for_columns_too():
    """One row of every rule's own breaking: whatever a single plan says, columns of it say."""
    cluster, model = Cluster(**BASE["cluster"]), Model(**SMALL)
    for rule in RULES:
        one = Spread.of(Plan(global_batch=64), cluster)
        many = replace(one, **{k: np.full(3, getattr(one, k)) for k in ("tp", "pp", "dp", "zero", "micro_batch")})
        assert np.broadcast_to(rule.broken(model, many), 3).tolist() == [bool(rule.broken(model, one))] * 3


def test_a_block_takes_no_more_of_a_long_axis_than_it_holds(monkeypatch):
    """Else a sweep is the slower the longer its longest axis is, and so is its report."""
    latencies = {"min": 1e-6, "max": 1e-4, "count": 3_000}
    small = {"field": "cluster.links.latency_s", "at_most": 5e-5}
    grid = Grid(**BASE, axes={"plan.zero": [0, 1], "cluster.links.latency_s": latencies}, filters=[small])
    taken, numbers = [], Column.numbers
    monkeypatch.setattr(Column, "numbers", lambda self: (taken.append(len(self.values)), numbers(self))[1])
    monkeypatch.setattr(
        "sim.sweep.evaluate._array", lambda values, old=_array: (taken.append(len(values)), old(values))[1]
    )
    found, whole = Evaluate(grid).outcome(1_480, 1_500), Evaluate(grid).outcome(0, 3_000)
    assert taken[:2] == [20, 20] and found.counts() == (5, 0, 0, 15)
    assert np.array_equal(found.numbers["step_time_s"], whole.numbers["step_time_s"][1_480:1_500], equal_nan=True)
