"""The ranked plans as a table: plans that differ look different, what they share is said once, the order is shown."""

from dataclasses import replace

import pytest
from rich.console import Console

from sim.cli.tune import _table
from sim.report import ranking_table
from sim.report.numbers import probability
from sim.report.per_stage import on_host, recomputing, runs
from sim.report.ranked import ranked
from sim.report.text import answer_tuned, next_words, plan_words
from sim.specs import Cluster, Model, Offload, Plan, StagePlan
from sim.tuner.tune import Tuned, tune

MODEL = Model(name="small", layers=9, hidden=2048, heads=16, vocab=50_304, seq=1024)
CLUSTER = Cluster.of("l4", nodes=1, gpus_per_node=4)
HALF = Offload(optimizer=0.5)


@pytest.fixture(scope="module")
def unequal() -> Tuned:
    """A search whose best plans have stages of different numbers of layers."""
    return tune(MODEL, CLUSTER, 64, {"tp": [1], "pp": [4]}, target="any", top=6)


def staged(*stages: StagePlan) -> Plan:
    """Return a plan of these stages."""
    return Plan(stages=stages, global_batch=64)


def test_values_that_repeat_are_counted() -> None:
    assert runs([13] * 6 + [12, 10]) == "13x6 12 10" and runs([True, False]) == "on off"


def test_recompute_of_stages_names_kinds_and_layers() -> None:
    full, some, none = (
        StagePlan(layers=5, recompute="full"),
        StagePlan(layers=4, recompute="selective", recompute_layers=3),
        StagePlan(layers=3),
    )
    assert recomputing(staged(full, full)) == "full" and recomputing(staged(none, none)) == "none"
    assert recomputing(staged(none, some, none, none)) == "selective 0 3 0x2"
    assert recomputing(staged(full, some, some, none)) == "full 5, selective 3x2 0"
    assert recomputing(Plan(recompute="full", recompute_layers=3, global_batch=8)) == "full 3"


def test_a_plan_of_unequal_stages_is_said_once_for_all_of_them() -> None:
    plan = staged(
        *[StagePlan(layers=4, recompute="full", recompute_layers=3, offload=HALF)] * 2,
        StagePlan(layers=1, offload=HALF),
    )
    assert on_host(plan, "optimizer") == "50" and on_host(plan, "weights") == "0"
    assert plan_words(plan, 1) == (
        "pp 3, unequal stages: layers 4x2 1, tp 1, dp 1, micro-batch 1, ZeRO-0, recompute full 3x2 0, "
        "optimizer on host 50 %"
    )


@pytest.mark.parametrize(
    "change",
    [{"layers": 3}, {"tp": 2}, {"zero": 1}, {"recompute": "full"}, {"recompute_layers": 1}, {"offload": HALF}],
    ids=lambda change: next(iter(change)),
)
def test_stages_that_differ_make_rows_that_differ(unequal: Tuned, change: dict[str, object]) -> None:
    """A plan beside one of which a stage differs in one thing."""
    first = unequal.best
    own = StagePlan(layers=2, recompute="selective", sequence_parallel=False)
    last = StagePlan(layers=3, sequence_parallel=False)
    stages = (own, replace(own, **change), own, replace(last, layers=5 - change.get("layers", 2)))
    plans = [first.plan.but(stages=(own,) * 3 + (last,)), first.plan.but(stages=stages)]
    steps = [replace(first.step, placed=replace(first.step.placed, plan=plan)) for plan in plans]
    made = ranked(replace(unequal, plans=tuple(replace(first, step=step) for step in steps)))
    one, other = ([row[name] for name in made.names if name != "rank"] for row in made.rows)
    assert one != other


def test_columns_differ_and_the_rest_is_said_once(unequal: Tuned) -> None:
    made = ranked(unequal)
    assert len({tuple(row[n] for n in made.names if n != "rank") for row in made.rows}) == len(made.rows)
    assert {"layers", "micro_batch"} <= set(made.names) and not {"tp", "pp", "zero"} & set(made.names)
    assert "All: tp 1, pp 4, dp 1, ZeRO 0" in made.notes[1] and "24.2 GB" in made.notes[1]
    assert made.notes[1].endswith("; peaks are allocated on the fullest pipeline rank.")
    assert "unequal stages" in made.notes[2] and str(ranking_table(unequal)).endswith(made.notes[2])
    assert len(ranked(replace(unequal, plans=unequal.plans[:1])).rows) == 1


@pytest.mark.parametrize("width", [80, 100])
def test_no_cell_of_the_terminal_is_cut(unequal: Tuned, width: int) -> None:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as held:
        console.print(_table(ranked(unequal), "plans", width))
    lines = held.get().splitlines()
    assert max(map(len, lines)) <= width and "…" not in held.get()
    heads, words = " ".join(lines[:5]), held.get()
    assert all(word in heads for word in ("layers", "P(best)", "step time", "(80\u00a0%)"))
    assert all(row[name] in words for row in ranked(unequal).rows for name in ("layers", "step_time", "p_best"))


def test_a_long_list_of_stages_wraps_where_there_is_no_room(unequal: Tuned) -> None:
    made = ranked(unequal)
    values = " ".join(map(str, range(10, 60)))
    long = replace(made, rows=tuple({**row, "layers": values} for row in made.rows))
    console = Console(width=100)
    with console.capture() as held:
        console.print(_table(long, "plans", 100))
    assert max(map(len, held.get().splitlines())) <= 100 and "…" not in held.get()
    assert all(held.get().count(f" {n} ") for n in range(10, 60))


def test_what_ranks_is_shown_and_rises(unequal: Tuned) -> None:
    shown = [float(row["over_best"].removesuffix("\u00a0%")) for row in ranked(unequal).rows]
    assert shown[0] == 0 and shown == sorted(shown) and shown[-1] > 0
    assert "event engine" in ranked(unequal).notes[0]
    by_memory = replace(unequal, objective="memory_headroom")
    assert ranked(by_memory).notes[0] == "Ranked by free memory." and ranked(by_memory).names[1] == "memory"
    assert "over_best" not in ranked(by_memory).names
    assert ranked(replace(unequal, objective="cost")).names[1] == "price"


def test_a_next_plan_that_only_contention_makes_slower_says_so(unequal: Tuned) -> None:
    first, second = unequal.plans[:2]
    turned = replace(unequal, plans=(replace(second, contended_s=2.0), replace(first, contended_s=2.1)))
    assert "less (5.0\u00a0% longer with contention)" in next_words(turned) and next_words(turned) in answer_tuned(
        turned
    )
    assert "contention" not in next_words(replace(turned, objective="memory_headroom"))


@pytest.mark.parametrize(("share", "words"), [(1.0, "> 99 %"), (0.99, "99 %"), (0.414, "41 %"), (0.005, "< 1 %")])
def test_draws_prove_nothing_beyond_doubt(share: float, words: str) -> None:
    assert probability(share).replace("\u00a0", " ") == words


@pytest.mark.slow
def test_why_says_that_other_knobs_are_those_of_equal_stages() -> None:
    """Where plans of unequal stages are ranked too."""
    model = Model(layers=8, hidden=2048, heads=16, vocab=50_304, seq=1024)
    for also, words in ((True, "best with equal stages and another "), (False, "best with another ")):
        knobs = {"tp": [1], "pp": [4], "unequal_stages": [also, False]}
        found = tune(model, CLUSTER, 64, knobs, target="any", top=20)
        told = [line for one in found.plans if not one.plan.stages for line in one.why]
        assert any(line.startswith(f"{words}micro-batch") for line in told)


def test_an_order_that_was_interrupted_is_not_called_the_event_engines(unequal: Tuned) -> None:
    cut = replace(unequal, plans=tuple(replace(plan, contended_s=None) for plan in unequal.plans))
    assert "event engine (with contention)" in ranked(unequal).notes[0]
    assert ranked(cut).notes[0].startswith("Ranked by step time on the path engine: interrupted before")
    assert "contention" not in next_words(cut)
