"""Plans with Tempo's layers: bytes by the paper's formulas, time by the bytes moved, on every way to a time."""

from dataclasses import replace

import pytest

from sim.costs.run_level import level_of
from sim.engine.allocations import replay_allocator
from sim.engine.batch import Asked, Batch
from sim.engine.step import simulate
from sim.report.text import plan_words
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models
from sim.sweep.evaluate import Evaluate
from sim.sweep.grid import Grid
from sim.tuner.staged import search_stages
from sim.tuner.tune import tune
from tests.costs.hosts import hostless
from tests.costs.test_memory import block_bytes, gpt, llama

CLUSTER = Cluster.of("a100-sxm-40gb", nodes=1)
EAGER = Model(layers=8, hidden=1024, heads=16, vocab=30_000, seq=512, dropout=0.1, attention="eager")
FLASH = Model(layers=8, hidden=1024, heads=16, vocab=30_000, seq=512, dropout=0.1)
SIZES = ("layers", "hidden", "heads", "vocab", "seq", "dropout", "attention")


def less(model, b, **given):
    """Return what a layer keeps less with Tempo's layers, in bytes."""
    return block_bytes(model, b, **given)[0] - block_bytes(model, b, tempo=1, **given)[0]


@pytest.mark.parametrize(("precision", "e"), [("bf16", 2), ("fp32", 4)])
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_bytes_of_the_paper(precision, e, attention):
    m, b = gpt(attention), 2
    s, h, a = m.seq, m.hidden, m.heads
    core = e * a * s * s * b if attention == "eager" else 0
    means = 2 * 4 * s * b
    assert less(m, b, precision=precision) == 4 * s * b * h * (e - 1) + 2 * s * b * h * e + core + means


@pytest.mark.parametrize(("native", "sp"), [(0, False), (0, True), (1, False), (1, True)])
def test_split_over_tensor_parallel_ranks(native, sp):
    """PyTorch's products keep inputs gathered from all ranks: the norm's own part of them is then one more tensor."""
    m, b, t = gpt(), 2, 2
    s, h, a = m.seq, m.hidden, m.heads
    norms = (4 * s * b * h * (not (native and sp)) + 2 * 4 * s * b) / (t if sp else 1)
    assert less(m, b, tp=t, sequence_parallel=sp, native=native) == norms + (4 * s * b * h + 2 * a * s * s * b) / t


def test_what_a_model_lacks_saves_nothing():
    m, b = gpt("eager", 0.0), 2
    s, h = m.seq, m.hidden
    assert less(m, b) == 8 * s * b * h + 2 * 4 * s * b
    assert less(llama(), b, statistics=1) == 0
    assert less(llama(gated_mlp=False), b, statistics=1) == m.seq * b * llama().ffn
    assert less(llama(norm="layernorm"), b) == 2 * 2 * s * b * h + 2 * 4 * s * b
    assert less(gpt("flash"), b, precision="fp8") == 4 * s * b * h + 2 * 4 * s * b


def test_beside_recompute():
    """Full recompute keeps the layer's input, whatever the layers save; that is then held beside what they save.

    Selective recompute makes the scores' tensors again; with fused attention a dense layer has nothing to make again.
    """
    b = 2
    for attention in ("eager", "flash"):
        m = gpt(attention)
        s, h = m.seq, m.hidden
        usual, tempo = (block_bytes(m, b, tempo=k) for k in (0, 1))
        full = block_bytes(m, b, recompute=2, tempo=1)
        assert full == (2 * s * b * h, tempo[0])
        selective = [block_bytes(m, b, recompute=1, tempo=k) for k in (0, 1)]
        if attention == "eager":
            assert selective[0][0] - selective[1][0] == 8 * s * b * h + 2 * 4 * s * b
            assert sum(selective[1]) == tempo[0]
        else:
            assert selective == [(kept, 0) for kept, _ in (usual, tempo)]
        torchs = block_bytes(m, b, recompute=1, native=1, tempo=1)
        assert torchs[0] == block_bytes(m, b, recompute=1, native=1)[0]
        assert usual[0] > tempo[0]


def plans(**given):
    return [Plan(**{"global_batch": 64, "micro_batch": 4} | given | {"tempo": on}) for on in (False, True)]


@pytest.mark.parametrize("engine", ["path", "events"])
@pytest.mark.parametrize("model", [EAGER, FLASH])
def test_a_step_takes_longer_by_the_bytes_moved(engine, model, tmp_path):
    """A byte of every activation there and back, and one more dropout of the scores at 2 e + 1 bytes."""
    cluster = replace(CLUSTER, profile=hostless(CLUSTER.device, tmp_path / "own"))
    usual, tempo = (simulate(model, cluster, p, engine) for p in plans())
    assert usual.peak_memory_bytes > tempo.peak_memory_bytes
    assert 0 < tempo.step_time_s / usual.step_time_s - 1 < 0.1
    once, again = ({o.name: o for o in s.operations} for s in (usual, tempo))
    scores, width = 4 * 16 * 512 * 512, 4 * 512 * 4096
    assert again["activation"].bytes - once["activation"].bytes == width
    assert again["activation dgrad"].bytes - once["activation dgrad"].bytes == width
    assert "attention dropout again" not in once
    if model is EAGER:
        assert again["attention dropout again"].bytes == 5 * scores
    assert set(again) - set(once) == ({"attention dropout again"} if model is EAGER else set())


@pytest.mark.parametrize("given", [{}, {"tp": 2, "pp": 2}, {"pp": 4, "recompute": "full"}, {"cp": 2}])
def test_closed_forms_and_sweeps_say_the_same(given):
    both = plans(**given)
    steps = [simulate(EAGER, CLUSTER, p) for p in both]
    asked = [Asked(EAGER, CLUSTER, p.on(EAGER, CLUSTER)) for p in both]
    for how in ("exact", "walked"):
        assert Batch(asked, how)(level_of(CLUSTER)).step_time_s == pytest.approx([s.step_time_s for s in steps])
    grid = Grid(
        model={name: getattr(EAGER, name) for name in SIZES},
        cluster={"device": CLUSTER.device, "nodes": 1},
        plan={"global_batch": 64, "micro_batch": 4} | given,
        axes={"plan.tempo": [False, True]},
    )
    numbers = Evaluate(grid).outcome(0, 2).numbers
    assert numbers["peak_memory_bytes"] == pytest.approx([s.peak_memory_bytes for s in steps])
    assert numbers["step_time_s"] == pytest.approx([s.step_time_s for s in steps], rel=0.02)


def test_the_allocators_replay_has_the_same_peak():
    for step in (simulate(EAGER, CLUSTER, p) for p in plans()):
        assert replay_allocator(step).allocated_peak_bytes == pytest.approx(step.peak_memory_bytes, rel=0.01)


KNOBS = {"tp": [1], "pp": [1, 2], "micro_batch": [2, 4, 8], "zero": [0], "virtual_stages": [1]}


@pytest.mark.slow
def test_the_tuner_lists_it_and_else_keeps_it():
    found = tune(EAGER, CLUSTER, 64, KNOBS | {"tempo": [False, True], "unequal_stages": [False]}, top=30)
    by_kind = [[p for p in found.plans if p.plan.tempo == on] for on in (False, True)]
    assert all(by_kind)
    assert found.evaluated == 2 * tune(EAGER, CLUSTER, 64, KNOBS | {"unequal_stages": [False]}, top=1).evaluated
    for plan in found.plans[:3]:
        assert plan.step.step_time_s == simulate(EAGER, CLUSTER, plan.plan).step_time_s
    kept = tune(EAGER, CLUSTER, 64, KNOBS | {"unequal_stages": [False]}, top=3, plan=plans()[1])
    assert {p.plan.tempo for p in kept.plans} == {True}


def test_it_saves_recompute_where_memory_is_short():
    """Larger micro-batches without recompute, which would not fit otherwise."""
    model = Model(layers=24, hidden=2048, heads=16, vocab=30_000, seq=1024, dropout=0.1, attention="eager")
    knobs = KNOBS | {"micro_batch": [1, 2, 4, 8, 16], "zero": [1], "unequal_stages": [False]}
    usual, both = (tune(model, CLUSTER, 128, knobs | {"tempo": on}, top=1) for on in ([False], [False, True]))
    assert both.best.plan.tempo
    assert both.best.step.step_time_s < usual.best.step.step_time_s
    assert any("another setting of Tempo's layers (off)" in why for why in both.best.why)


def test_unequal_stages_have_it_all_or_none():
    knobs = {"tp": [1], "pp": [2], "cp": [1], "ep": [1], "micro_batch": [2], "zero": [0], "recompute": ["none"]}
    knobs |= {f"offload_{name}": [0.0] for name in ("optimizer", "activations", "weights", "gradients")}
    found = [search_stages(EAGER, CLUSTER, 64, knobs | {"tempo": on}, {}).found[0] for on in ([False], [True])]
    assert [plan.tempo for _, plan in found] == [False, True]
    for seconds, plan in found:
        assert simulate(EAGER, CLUSTER, plan).step_time_s == pytest.approx(seconds, rel=0.05)
    either = search_stages(EAGER, CLUSTER, 64, knobs | {"tempo": [False, True]}, {}).found[0]
    assert either == min(found, key=lambda one: one[0])


def test_models_without_such_layers_are_refused():
    said = "plan.tempo: got True; allowed: false: this model has no LayerNorm, no GELU, and no stored scores"
    with pytest.raises(InputError) as told:
        simulate(models["llama3-8b"], Cluster.of("h100-sxm-80gb"), Plan(tp=8, global_batch=8, tempo=True))
    assert str(told.value).startswith(said)
    with pytest.raises(InputError, match=r"^tune.knobs.tempo: got True; allowed: false: this model"):
        tune(models["llama3-8b"], Cluster.of("h100-sxm-80gb"), 8, {"tempo": [False, True]})


def test_it_is_told():
    usual, tempo = plans()
    assert plan_words(tempo, 8) == plan_words(usual, 8) + ", Tempo's layers"
