"""Grid files: what they may say, and the one error for what they may not."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.profile import load_profile, profile_text
from sim.costs.run_level import SITE
from sim.specs import Cluster, InputError, Model, Plan
from sim.specs.catalog import models
from sim.specs.model_file import read_model
from sim.sweep.evaluate import Evaluate
from sim.sweep.filters import COMPARISONS, Filter
from sim.sweep.grid import Grid
from sim.sweep.outcome import FILTERED, OK
from sim.sweep.sections import changes
from tests.oracle import ROOT
from tests.sweep.conftest import AXES, BASE
from tests.traced import table

ONE = {"plan.tp": [1, 2]}
TWO = {"device": "h100-sxm-80gb", "nodes": 2}
BAD = [
    ({"axes": {}}, "axes: got {}"),
    ({"axes": {"plan.tpp": [1]}}, "axes.plan.tpp.0: got 1; allowed: no such key"),
    ({"axes": {"plan.tp": [1, 0]}}, "axes.plan.tp.1: got 0; allowed: a whole number from 1 to 4096"),
    ({"axes": {"plan.tp": [1, "two"]}}, "axes.plan.tp.1: got 'two'"),
    ({"axes": {"plan.tp": [1, 2, 1]}}, "axes.plan.tp: got [1, 2, 1]; allowed: every value once"),
    ({"axes": {"model.imbalance": [2, 2.0]}}, "axes.model.imbalance: got [2, 2.0]; allowed: every value once"),
    ({"axes": {"plan.tp": []}}, "axes.plan.tp: got []"),
    ({"axes": {"plan.tp": 4}}, "axes.plan.tp: got 4; allowed: a list of values, or"),
    ({"axes": {"plan.tp": {"min": 1, "max": 8}}}, "axes.plan.tp.count: missing; required without a sample"),
    ({"axes": {"plan.tp": {"min": 8, "max": 1, "count": 2}}}, "axes.plan.tp.max: got 1.0; allowed: above min = 8"),
    ({"axes": {"plan.tp": {"min": 0, "max": 8, "count": 2}}}, "axes.plan.tp.min: got 0"),
    ({"axes": {"plan.tp": {"min": 1, "max": 8, "count": 2, "scale": "cubic"}}}, "axes.plan.tp.scale: got 'cubic'"),
    ({"axes": {"cluster.links.latency_s": {"min": 0, "max": 1, "count": 3, "scale": "log"}}}, "above 0 on a log scale"),
    ({"axes": {"cluster.links.latency_s": [2.0]}}, "axes.cluster.links.latency_s.0: got 2.0; allowed: a number from 0"),
    ({"axes": {"cluster.device": ["h100-sxm-80gb", "h900"]}}, "axes.cluster.device.1: got 'h900'"),
    ({"axes": {"model": ["gpt3-175b", "gpt9"]}}, "axes.model.1: got 'gpt9'"),
    ({"axes": {"cluster.profile": ["h100-sxm-80gb", "h900"]}}, "axes.cluster.profile.1: got 'h900'; allowed: a folder"),
    ({"axes": {"cluster": [{"device": "h100-sxm-80gb", "profile": "x"}]}}, "axes.cluster.0.profile: got 'x'"),
    ({"axes": {"cluster": [{"groups": [TWO, TWO | {"profile": "x"}]}]}}, "axes.cluster.0.groups.1.profile: got 'x'"),
    ({"axes": {"model": [{"layers": "two"}]}}, "axes.model.0.layers: got 'two'; allowed: a whole number"),
    ({"axes": {"model.table": ["net.json"]}}, "model.name: got 'small'; allowed: left out beside table"),
    ({"axes": ONE, "cluster": {"device": "h100-sxm-80gb", "profile": "h900"}}, "cluster.profile: got 'h900'"),
    ({"axes": {"cluster.link.latency_s": [1e-6]}}, "axes.cluster.link.latency_s.0: got 1e-06; allowed: no such key"),
    ({"axes": {"plan.tp.x": [1]}}, "axes.plan.tp.x.0: got 1; allowed: a whole number"),
    ({"axes": {"cluster.groups.1.nodes": [1]}}, "axes.cluster.groups.1.nodes.0: got 1; allowed: a"),
    ({"axes": {"training.tokens": [1]}}, "axes.training.tokens: got [1]; allowed: a field of model, cluster, plan"),
    ({"axes": ONE, "filters": [{"field": "plan.tp"}]}, "filters.0: got []; allowed: one of at_most"),
    ({"axes": ONE, "filters": [{"field": "plan.tp", "at_most": 1, "at_least": 1}]}, "filters.0"),
    ({"axes": ONE, "filters": [{"field": "plan.tpx", "at_most": 1}]}, "filters.0.field: got 'plan.tpx'"),
    ({"axes": ONE, "filters": [{"field": "tp", "at_most": 1}]}, "filters.0.field: got 'tp'"),
    ({"axes": ONE, "filters": [{"field": "plan.tp", "at_most": "8"}]}, "filters.0.at_most: got '8'"),
    ({"axes": ONE, "filters": [{"field": "plan.tp", "at_most": "cluster.gpu"}]}, "at_most: got 'cluster.gpu'"),
    ({"axes": ONE, "filters": [{"field": "cluster.links.bandwidth", "at_most": 1}]}, "0.field: got 'cluster.links"),
    ({"axes": ONE, "filters": [{"field": "plan.tp", "at_most": "plan.offload.weigths"}]}, "got 'plan.offload.weigths'"),
    ({"axes": ONE, "filters": [{"field": "plan.offload", "at_most": 1}]}, "filters.0.field: got 'plan.offload'"),
    ({"axes": ONE, "filters": [{"field": "plan.recompute", "at_most": 1}]}, "0.field: got 'plan.recompute'"),
    ({"axes": ONE, "filters": [{"field": "plan.recompute", "equals": "nonne"}]}, "got 'nonne'; allowed: none, "),
    ({"axes": ONE, "filters": [{"field": "plan.tp", "is": 1}]}, "filters.0.is: got 1; allowed: no such key"),
    ({"axes": ONE, "sample": {"method": "sobol", "count": 3}}, "sample.method: got 'sobol'"),
    ({"axes": ONE, "sample": {"method": "random", "count": 0}}, "sample.count: got 0"),
    ({"axes": ONE, "engine": "guess"}, "engine: got 'guess'"),
    ({"axes": ONE, "objective": "luck"}, "objective: got 'luck'"),
    ({"axes": ONE, "plan": {}}, "plan.global_batch: missing; required"),
    ({"axes": ONE, "plan": 3}, "plan"),
    ({"axes": ONE, "plan": {"global_batch": 64, "zero": 7}}, "plan.zero: got 7; allowed: a whole number from 0 to 3"),
    ({"axes": ONE, "plan": {"global_batch": 64, "tpp": 2}}, "plan.tpp: got 2; allowed: no such key"),
    ({"axes": ONE, "plan": {"global_batch": 64, "offload": {"optimizer": 2}}}, "plan.offload.optimizer: got 2"),
    ({"axes": {"model.seq": [512]}, "model": "gpt9"}, "model: got 'gpt9'"),
    ({"axes": {"cluster.nodes": [1]}, "cluster": {"device": "h900"}}, "cluster.device: got 'h900'"),
    ({"axes": ONE, "model": None}, "model: missing; required"),
    ({"axes": ONE, "model": "gpt9"}, "model: got 'gpt9'"),
    ({"axes": ONE, "cluster": {"device": "h900"}}, "cluster.device: got 'h900'"),
    ({"axes": ONE, "job": "no-such-job.yaml"}, "no-such-job.yaml: got 'no such file'"),
    ({"axes": ONE, "job": {"model": "gpt2"}}, "job: got {'model': 'gpt2'}; allowed: the path of a job file; sections"),
    ({"axes": ONE, "axis": 3}, "axis: got 3; allowed: no such key"),
    ({"axes": {"plan.schedule": ["zbv"]}}, "plan.schedule: got 'zbv'; allowed: one of none, gpipe, 1f1b"),
    ({"axes": {"plan.stage_layers": [[6, 6]]}}, "axes.plan.stage_layers: got [[6, 6]]; allowed: left out with engine"),
    ({"axes": ONE, "plan": {"global_batch": 64, "stage_layers": [6, 6]}}, "plan.stage_layers: got [6, 6]; allowed: "),
    ({"axes": {"plan": [{"global_batch": 64}, {"global_batch": 64, "tp": 2}]}}, "axes.plan: got [{'global_batch': 64}"),
    ({"axes": {"plan": [{"global_batch": 64}]}}, "axes of a plan's fields, such as plan.tp, with engine analytic; "),
    ({"axes": {f"cluster.x{n}": [1] for n in range(65)}}, "axes: got"),
    ({"axes": {f"plan.{k}": {"min": 1, "max": 4096, "count": 4096} for k in ("tp", "pp", "cp", "etp")}}, "axes: got"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message[:50] for _, message in BAD])
def test_one_error_with_path_value_and_range(changes, message):
    with pytest.raises(InputError) as error:
        Grid.read({k: v for k, v in (BASE | changes).items() if v is not None}, Path())
    assert message in str(error.value)
    assert "; allowed: " in str(error.value) or ": missing; required" in str(error.value)


@pytest.mark.parametrize("plan", [{}, {"plan": {"zero": 1}}, {"plan": {"global_batch": 16}}])
def test_the_batch_is_that_of_other_commands_for_the_same_job(tmp_path, plan):
    """Where a job has `tune` too, its batch."""
    base = {key: BASE[key] for key in ("model", "cluster")}
    (tmp_path / "job.json").write_text(json.dumps(base | plan | {"tune": {"global_batch": 8}}))
    grid = Grid.read({"job": "job.json", "axes": {"plan.tp": [1, 2]}}, tmp_path)
    assert grid.plan == plan.get("plan", {}) | {"global_batch": 8}
    stated = Grid.read({"job": "job.json", "plan": {"global_batch": 32}, "axes": {"plan.tp": [1, 2]}}, tmp_path)
    assert stated.plan == {"global_batch": 32}


def test_what_axes_put_right_is_not_refused():
    model = {**BASE["model"], "head_dim": 64, "kv_heads": 12}
    grid = Grid(**(BASE | {"model": model}), axes={"model.heads": [16, 12]})
    assert Evaluate(grid).outcome(0, 2).counts() == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("axes", "possible"),
    [
        ({"model.heads": [16, 12], "model.hidden": [1024, 768]}, [True, True, False, True]),
        ({"model.kv_heads": [8, 3], "model.heads": [16, 12], "model.head_dim": [64]}, [True, False, False, True]),
        ({"plan.precision": ["fp32", "bf16"], "plan.gradient_dtype": ["fp32", "bf16"]}, [False, False, True, True]),
        ({"cluster.domain_gpus": [4, 8, 6], "cluster.gpus_per_node": [4, 8]}, [True, True, True, True, False, False]),
    ],
)
def test_values_that_go_with_others_than_the_first_are_no_mistake(axes, possible):
    grid = Grid(**BASE, axes=axes)
    assert (Evaluate(grid).outcome(0, grid.size).outcome == OK).tolist() == possible


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"model.hidden": [1000, 1002], "model.heads": [7, 11]}, "model.heads: got 7; allowed: a divisor of hidden = "),
        ({"cluster.domain_gpus": [6, 10], "cluster.gpus_per_node": [4, 8]}, "cluster.domain_gpus: got 6; allowed: a "),
        ({"plan.precision": ["fp32"], "plan.gradient_dtype": ["bf16"], "plan.tp": [1, 2]}, "plan.gradient_dtype: got "),
    ],
)
def test_axes_of_which_no_values_go_together_are_refused_at_once(axes, message):
    base = BASE | {"model": {"layers": 4, "hidden": 1000, "heads": 10, "vocab": 1000, "seq": 128}}
    with pytest.raises(InputError, match=message):
        Grid(**base, axes=axes)


def test_so_many_combinations_that_trying_them_takes_longer_are_left_to_the_sweep():
    axes = {"model.hidden": list(range(1001, 1202, 2)), "model.heads": list(range(1202, 1402, 2))}
    assert Evaluate(Grid(**BASE, axes=axes)).outcome(0, 9).counts()[1] == 9


def test_ranges_are_whole_where_the_field_is():
    axes = {
        "plan.tp": {"min": 1, "max": 8, "count": 4, "scale": "log"},
        "cluster.links.latency_s": {"min": 0, "max": 1, "count": 3},
    }
    found = Grid(**BASE, axes=axes).numbering.axes
    assert found[0].values == (1, 2, 4, 8)
    assert found[1].values == (0, 0.5, 1)
    one = Grid(**BASE, axes={"plan.tp": {"min": 2, "max": 2, "count": 1}}, engine="path")
    assert Evaluate(one).outcome(0, 1).counts()[OK] == 1  # 2, not 2.0
    drawn = Grid(**BASE, axes={"plan.tp": {"min": 1, "max": 8}}, sample={"method": "random", "count": 9})
    assert drawn.numbering.axes[0].whole


def test_a_job_is_the_base_and_its_files_are_found_beside_it(tmp_path):
    jobs = ROOT / "notebooks" / "jobs"
    (tmp_path / "grid.json").write_text(
        json.dumps({"job": str(jobs / "llama3-70b-64xh100.yaml"), "plan": {"global_batch": 64}, "axes": ONE})
    )
    grid = Grid.load(tmp_path / "grid.json")
    assert grid.model == str(jobs / "llama3-70b" / "config.json")
    assert grid.cluster == {"device": "h100-sxm-80gb", "nodes": 8}
    assert Evaluate(grid).outcome(0, 2).counts()[OK] == 2


def test_a_base_is_a_file_beside_the_grid(tmp_path):
    llama = (ROOT / "notebooks" / "jobs" / "llama3-70b" / "config.json").read_text()
    (tmp_path / "hf.json").write_text(llama)
    axes = {"model.seq": [4096, 8192]}
    (tmp_path / "grid.json").write_text(json.dumps({**BASE, "model": {"base": "hf.json", "layers": 4}, "axes": axes}))
    grid = Grid.load(tmp_path / "grid.json")
    assert grid.model == {"base": str(tmp_path / "hf.json"), "layers": 4}
    assert Evaluate(grid).outcome(0, 2).counts()[2] == 0


def test_a_profile_folder_that_cannot_be_read_is_refused_with_its_fault(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "profile.json").write_text('{"schema_version": 9}')
    axes = {"cluster.profile": ["h100-sxm-80gb", "own"]}
    with pytest.raises(InputError, match=r"axes.cluster.profile.1: got '.*own'; .*schema_version: got 9"):
        Grid.read(BASE | {"axes": axes}, tmp_path)


def test_a_damaged_site_of_a_profile_folder_is_refused_before_anything_is_stored(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "profile.json").write_text(profile_text(load_profile("h100-sxm-80gb")))
    for text, told in (("cut {", "well-formed"), ('{"schema_version": 2}', "allowed: 1, which this version")):
        (tmp_path / "own" / SITE).write_text(text)
        with pytest.raises(InputError, match=rf"axes.cluster.profile.1: got '.*own'; .*site.json.*{told}"):
            Grid.read(BASE | {"axes": {"cluster.profile": ["h100-sxm-80gb", "own"]}}, tmp_path)


def test_objects_and_files_give_the_same_grid():
    made = Grid(model=models["llama3-8b"], cluster=Cluster.of("h100-sxm-80gb"), plan=Plan(global_batch=8), axes=ONE)
    named = Grid(model="llama3-8b", cluster={"device": "h100-sxm-80gb"}, plan={"global_batch": 8}, axes=ONE)
    one, other = (Evaluate(g).outcome(0, 2) for g in (made, named))
    assert (one.numbers["step_time_s"] == other.numbers["step_time_s"]).all()
    assert made.cluster == named.cluster and made.plan == named.plan


def test_numbers_of_numpy_are_numbers():
    boxed = {"plan.tp": list(2 ** np.arange(3)), "plan.micro_batch": np.array([1, 2])}
    plan = {"global_batch": np.int64(64)}
    made, same = (
        Grid(**(BASE | {"plan": plan}), axes=boxed),
        Grid(**BASE, axes={"plan.tp": [1, 2, 4], "plan.micro_batch": [1, 2]}),
    )
    assert json.dumps(made.data()) == json.dumps(same.data())
    assert made.digest == same.digest


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks" / "jobs" / "sweeps").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_shipped_grids(path):
    grid = Grid.load(path)
    found = Evaluate(grid).outcome(0, min(grid.size, 40))
    assert found.counts()[OK] > 0
    assert found.counts()[2] == 0


@given(st.sampled_from(sorted(COMPARISONS)), st.integers(-2, 9))
def test_filters_are_what_they_say(comparison, constant):
    says = {
        "at_most": lambda a: a <= constant, "at_least": lambda a: a >= constant, "equals": lambda a: a == constant,
        "differs_from": lambda a: a != constant, "divides": lambda a: constant % a == 0,
        "multiple_of": lambda a: constant != 0 and a % constant == 0,
    }  # fmt: skip
    values = np.arange(1.0, 9.0)
    found = Filter(field="plan.tp", **{comparison: constant}).keeps(lambda path: values)
    assert found.tolist() == [says[comparison](a) for a in range(1, 9)]


def test_filters_compare_fields_of_objects_text_and_nothing():
    axes = {"cluster.device": ["h100-sxm-80gb", "l4"], "cluster.gpus_per_node": [4, 8], "plan.tp": [1, 2, 8]}
    rules = [
        {"field": "plan.tp", "at_most": "cluster.gpus_per_node"},
        {"field": "cluster.device", "differs_from": "l4"},
        {"field": "plan.tp", "divides": "model.heads"},
        {"field": "plan.recompute_layers", "at_least": 99},  # left out everywhere: nobody's concern
        {"field": "cluster.gpus", "at_most": 8},
    ]
    grid = Grid(**(BASE | {"cluster": {"nodes": 1}}), axes=axes, filters=rules)
    kept = Evaluate(grid).outcome(0, grid.size).outcome != FILTERED
    assert kept.reshape(2, 2, 3).tolist() == [[[True, True, False], [True] * 3], [[False] * 3] * 2]


@pytest.mark.parametrize("field", ["plan.dp", "plan.fsdp_shard"])
@pytest.mark.parametrize("engine", ["analytic", "path"])
def test_filters_know_the_degrees_that_are_left_out(field, engine):
    axes = {"cluster.nodes": [1, 2], "plan.tp": [2, 8]}
    plan = {"global_batch": 64, "zero": 1}
    grid = Grid(**BASE | {"plan": plan}, axes=axes, filters=[{"field": field, "at_least": 2}], engine=engine)
    assert (Evaluate(grid).outcome(0, 4).outcome == FILTERED).tolist() == [False, True, False, False]


def test_what_cannot_be_built_is_not_left_out_by_a_filter():
    grid = Grid(
        **BASE, axes={"cluster.links.oversubscription": [1.0, 2.0]}, filters=[{"field": "cluster.gpus", "at_most": 1}]
    )
    assert Evaluate(grid).outcome(0, 2).outcome.tolist() == [FILTERED, 1]


@pytest.mark.parametrize("comparison", ["equals", "differs_from"])
def test_what_cannot_be_built_is_not_left_out_by_its_text(comparison):
    axes, name = {"cluster.links.oversubscription": [1.0, 2.0]}, "h100-sxm-80gb"
    grid = Grid(**BASE, axes=axes, filters=[{"field": "cluster.device", comparison: name}])
    assert Evaluate(grid).outcome(0, 2).outcome.tolist() == [OK if comparison == "equals" else FILTERED, 1]


def test_a_grid_that_states_no_objective_ranks_what_compares():
    batch, plans = "plan.global_batch", [{"tp": 2, "global_batch": 16}, {"tp": 4, "global_batch": 64}]
    for axes in ({batch: [16, 64]}, {batch: {"min": 16, "max": 64, "count": 2}}, {"plan": plans}):
        path = Grid(**BASE, axes=axes, engine="path")
        assert path.data()["objective"] == path.ranked_by == "tokens_per_s_per_gpu", axes
    assert Grid(**BASE, axes=ONE | {batch: [16]}).ranked_by == "step_time"
    assert Grid(**BASE, axes={"plan": [plans[0]]}, engine="path").ranked_by == "step_time"
    both = {"axes": {batch: [16, 64]}}
    (usual, _), (stated, _) = (
        Evaluate(grid).outcome(0, 2).best(grid.ranked_by)
        for grid in (Grid(**BASE, **both), Grid(**BASE, **both, objective="step_time"))
    )
    assert (usual, stated) == (1, 0)


def test_digests_tell_grids_and_blocks_apart(small):
    longer = Grid(**BASE, axes={**AXES, "plan.tp": [*AXES["plan.tp"], 16]})
    other = Grid(**(BASE | {"plan": {"global_batch": 128}}), axes=AXES)
    assert len({g.digest for g in (small, longer, other)}) == 3
    digest = {id(g): g.block_digest(g.numbering.columns(0, 100)) for g in (small, longer, other)}
    assert digest[id(small)] == digest[id(longer)] != digest[id(other)]
    assert digest[id(small)] != small.block_digest(small.numbering.columns(1, 101))
    assert longer.extends(small.data()) and not small.extends(longer.data()) and not other.extends(small.data())


def test_a_file_that_changes_changes_the_digest(tmp_path):
    config = (ROOT / "notebooks" / "jobs" / "llama3-70b" / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    raw = BASE | {"model": "config.json", "axes": ONE}
    before = Grid.read(raw, tmp_path).digest
    assert before == Grid.read(raw, tmp_path).digest
    (tmp_path / "config.json").write_text(config.replace('"num_hidden_layers": 80', '"num_hidden_layers": 40'))
    assert Grid.read(raw, tmp_path).digest != before


@pytest.mark.parametrize("axes", [ONE, {"model": ["config.json"]}])
def test_a_file_beside_the_notebook_that_changes_changes_the_digest(tmp_path, monkeypatch, axes):
    config = (ROOT / "notebooks" / "jobs" / "llama3-70b" / "config.json").read_text()
    monkeypatch.chdir(tmp_path)
    found = []
    for layers in (80, 40):
        (tmp_path / "config.json").write_text(
            config.replace('"num_hidden_layers": 80', f'"num_hidden_layers": {layers}')
        )
        found.append(Grid(**(BASE | {"model": None if "model" in axes else "config.json"}), axes=axes).digest)
    assert found[0] != found[1]


def test_axes_inside_lists_sections_and_catalog_entries():
    groups = [{"device": "h100-sxm-80gb"}, {"device": "a100-sxm-80gb"}]
    axes = {"model": ["llama3-8b", "gpt3-175b"], "model.seq": [1024, 2048], "cluster.groups.1.nodes": [1, 3]}
    grid = Grid(cluster={"groups": groups}, plan={"global_batch": 96, "tp": 8}, axes=axes, engine="path")
    found = Evaluate(grid).outcome(0, grid.size)
    assert found.counts() == (8, 0, 0, 0)
    assert len(set(found.numbers["step_time_s"].tolist())) == 8
    assert isinstance(Evaluate(grid).sections["model"].at((("", "llama3-8b"), ("seq", 512))), Model)


def test_what_follows_from_a_field_follows_it_anew():
    """An object states more than a file would: its memory must not stay that of another device."""
    cluster, plan = Cluster.of("h100-sxm-80gb", nodes=2), Plan(global_batch=64, tp=4)
    axes = {"cluster.device": ["h100-sxm-80gb", "l4"], "plan.tp": [1, 8], "plan.pp": [1, 2]}
    grid = Grid(model=models["llama3-8b"], cluster=cluster, plan=plan, axes=axes)
    assert grid.cluster == {"device": "h100-sxm-80gb", "nodes": 2}
    assert grid.plan == {"global_batch": 64, "tp": 4}
    made = Evaluate(grid).sections["cluster"].at((("device", "l4"),))
    assert made.memory_bytes == Cluster.of("l4").memory_bytes
    assert Evaluate(Grid(**vars_of(grid))).outcome(0, 8).counts() == Evaluate(grid).outcome(0, 8).counts()


@pytest.mark.parametrize(
    ("base", "field", "value"),
    [("llama2-7b", "heads", 64), ("phi-2", "hidden", 5120), ("opt-6.7b", "seq", 4096), ("gpt2.json", "seq", 4096)],
)
def test_a_field_of_a_named_model_is_what_a_job_with_that_base_makes_it(tmp_path, base, field, value):
    config = json.loads((ROOT / "tests" / "specs" / "configs" / "gpt2.json").read_text())["config"]
    (tmp_path / "gpt2.json").write_text(json.dumps(config))
    named = str(tmp_path / base) if base.endswith(".json") else base
    grid = Grid(**(BASE | {"model": named}), axes={f"model.{field}": [value]})
    job, _ = read_model({"base": named, field: value}, tmp_path)
    assert Evaluate(grid).sections["model"].at(((field, value),)) == job


@pytest.mark.slow
def test_a_layer_table_takes_no_fields(tmp_path):
    table("gpt").save(tmp_path / "net.json")
    with pytest.raises(InputError, match=r"axes.model.seq.0: got 512; allowed: left out beside table"):
        Grid(**(BASE | {"model": str(tmp_path / "net.json")}), axes={"model.seq": [512], "model.layers": [4]})


def vars_of(grid):
    """Return what makes the same grid."""
    return {name: getattr(grid, name) for name in ("model", "cluster", "plan", "axes", "engine")}


def test_a_field_that_is_set_inside_an_axis_value_leaves_the_value_as_it_was():
    links = {"cluster.links": [{"latency_s": 1e-6}], "cluster.links.latency_s": [1e-5, 2e-5]}
    grid = Grid(**BASE, axes=links)
    Evaluate(grid).outcome(0, 2)
    assert grid.numbering.columns(1, 2)["cluster.links"].values == ({"latency_s": 1e-6},)


def test_a_field_counts_whether_its_axis_stands_before_or_after_that_of_what_it_is_in():
    """Where the whole was set last, the field's axis changed nothing, and nothing said so."""
    axes = {"plan.offload.optimizer": [0, 1], "plan.offload": [{"activations": 0.5}]}
    for each in (axes, dict(reversed(axes.items()))):
        grid = Grid(**BASE, axes=each)
        columns, plans = grid.numbering.columns(0, 2), Evaluate(grid).sections["plan"]
        assert [plans.at(changes(columns, row)).offload.optimizer for row in (0, 1)] == [0, 1]
