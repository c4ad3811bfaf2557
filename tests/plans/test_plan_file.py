"""The plan file: what it says, and that a changed one is refused by the field."""

import copy
import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.plans.facts import runs
from sim.plans.plan_file import load_plan, plan_data, save_plan
from sim.plans.plan_schema import plan_schema
from sim.specs import Cluster, InputError, Job, Plan, StagePlan
from sim.specs.catalog import models

MODEL, CLUSTER = models["llama3-8b"], Cluster.of("h100-sxm-80gb", nodes=2)
STEP = sim.simulate(MODEL, CLUSTER, Plan(tp=2, pp=4, virtual_stages=2, global_batch=32, zero=1))


@pytest.fixture
def changed(tmp_path):
    """Return the error of a plan file after a change."""

    def error(change, step=STEP):
        data = plan_data(step, date="2026-08-31")
        change(data)
        (tmp_path / "plan.json").write_text(json.dumps(data))
        with pytest.raises(InputError) as caught:
            load_plan(tmp_path / "plan.json")
        return caught.value

    return error


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(data):
        for key in path:
            data = data[key]
        data[last] = value

    return change


def test_it_says_what_was_simulated():
    data = plan_data(STEP, date="2026-08-31")
    assert data["order"]["ranks"] == STEP.timeline.schedule.texts()
    assert [stage["layers"] for stage in data["stage_map"]] == [4] * 8
    assert [stage["ranks"] for stage in data["stage_map"]] == ["0-3", "4-7", "8-11", "12-15"] * 2
    assert data["prediction"]["step_time_s"] == STEP.step_time_s
    assert [rank["peak_memory_bytes"] for rank in data["prediction"]["ranks"]] == [m.peak_bytes for m in STEP.memory]
    assert data["provenance"]["date"] == "2026-08-31"
    assert data["provenance"]["trainsim"] == sim.__version__


def test_messages_are_the_boundary():
    """A hidden state of 2 bytes an element, split over tensor-parallel ranks or not."""
    whole = 8192 * 4096 * 2
    assert plan_data(STEP)["prediction"]["message_bytes"] == [whole / 2] * 7
    for split, sent in ((True, whole / 2), (False, whole)):  # with sequence parallelism no rank has more than its part
        alone = sim.simulate(MODEL, CLUSTER, STEP.plan.but(scatter_gather=False, sequence_parallel=split))
        assert plan_data(alone)["prediction"]["message_bytes"] == [sent] * 7
    turned = sim.simulate(MODEL, CLUSTER, STEP.plan.but(schedule="zbv"))
    assert plan_data(turned)["prediction"]["message_bytes"] == [whole / 2] * 3 + [0] + [whole / 2] * 3


def test_traffic_is_of_every_group():
    """Pipeline messages are those of the boundaries; of ZeRO-1 every rank sends half of its gradients and weights."""
    told = plan_data(STEP)["prediction"]
    sent = {(one["rank"], one["what"]): (one["messages"], one["sent_bytes"]) for one in told["traffic"]}
    assert sent[1, "pp send 1>2"] == (2 * told["messages"], 2 * told["messages"] * told["message_bytes"][1])
    assert sent[0, "pp send 0>3"] == (told["messages"], told["messages"] * told["message_bytes"][3])
    block = next(iter(MODEL.blocks))
    held = 8 * (block.split_parameters / 2 + block.repeated_parameters)
    assert sent[1, "dp exchange"] == (1, 4 * held / 2)
    assert sent[1, "dp all_gather"] == (1, 2 * held / 2)
    halves = 2 * 8 * told["messages"]  # of layers, for all microbatches
    assert sent[1, "tp reduce_scatter"] == (2 * halves, 2 * halves * 8192 * 4096 * 2 / 2)
    assert sent[1, "tp all_gather"][0] == 3 * halves


def test_pytorch_gathers_no_input_twice():
    """It keeps what it gathered; all else that tensor parallelism sends of a model without biases is the same."""
    sent = []
    for framework in ("megatron", "torch"):
        step = sim.simulate(MODEL, CLUSTER, STEP.plan.but(framework=framework, schedule="1f1b", virtual_stages=1))
        told = plan_data(step)["prediction"]
        sent.append({one["what"]: one for one in told["traffic"] if one["rank"] == 1} | {"n": told["messages"]})
    theirs, ours = sent
    assert theirs["tp all_gather"]["messages"] - ours["tp all_gather"]["messages"] == 2 * 8 * ours["n"]
    assert all(theirs[what] == ours[what] for what in ("tp reduce_scatter", "tp all_reduce"))


def test_traffic_that_is_not_known_is_left_out(tmp_path):
    """Of experts and of context parallelism nothing is said; a file of version 1 says nothing of any plan."""
    spread = sim.simulate(MODEL, CLUSTER, STEP.plan.but(cp=2))
    assert plan_data(spread)["prediction"]["traffic"] == []
    old = plan_data(STEP)
    old["schema_version"] = 1
    del old["prediction"]["traffic"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert load_plan(tmp_path / "old.json").record.prediction.traffic == ()


def test_the_memory_law_gives_the_peak():
    law, rank = plan_data(STEP)["memory_law"], STEP.memory[0]
    most = law["in_flight"][0] * max(law["saved_bytes"]) + law["temporary_bytes"][0] + law["workspace_bytes"]
    assert law["fixed_bytes"][0] < rank.peak_bytes <= law["fixed_bytes"][0] + most


CHANGES = {
    "schema_version": put("schema_version", 3),
    "order.ranks.1": lambda data: put("order", "ranks", 1, data["order"]["ranks"][1].replace("F0", "F1", 1))(data),
    "order.ranks.3": lambda data: data["order"]["ranks"].pop(),
    "order.sha256": put("order", "sha256", "0" * 64),
    "order.schedule": put("order", "schedule", "gpipe"),
    "order.microbatches": put("order", "microbatches", 7),
    "degrees.dp": put("degrees", "dp", 3),
    "stage_map.2.layers": put("stage_map", 2, "layers", 5),
    "stage_map.5.ranks": put("stage_map", 5, "ranks", "0-7"),
    "stage_map": lambda data: data["stage_map"].pop(),
    "prediction.step_time_s": put("prediction", "step_time_s", "fast"),
    "prediction.ranks.0.peak_memory_bytes": put("prediction", "ranks", 0, "peak_memory_bytes", -1),
    "provenance.date": put("provenance", "date", "yesterday"),
    "provenance.by": put("provenance", "by", "me"),
    "memory_law": lambda data: data.pop("memory_law"),
    "extra": put("extra", 1),
    "plan.tp": put("plan", "tp", 3),
    "plan": lambda data: data.pop("plan"),
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_is_told_by_its_path(changed, path):
    assert changed(CHANGES[path]).path == path


def test_a_hash_alone_is_enough_and_is_checked(tmp_path, changed):
    data = plan_data(STEP)
    del data["order"]["ranks"]
    (tmp_path / "short.json").write_text(json.dumps(data))
    assert load_plan(tmp_path / "short.json").record.order.ranks == ()

    def both(data):
        del data["order"]["ranks"]
        put("order", "sha256", "1" * 64)(data)

    assert changed(both).path == "order.sha256"


SEARCHED = sim.simulate(MODEL, CLUSTER, Plan(tp=2, pp=4, schedule="zb-2p", global_batch=32))


def test_a_searched_order_is_the_numbers_own(changed):
    def swap(data):
        first = data["order"]["ranks"][0].split()
        data["order"]["ranks"][0] = " ".join([*first[:-2], first[-1], first[-2]])

    assert changed(swap, SEARCHED).path == "order.ranks.0"


def test_a_searched_order_of_other_numbers_stays_readable(tmp_path, changed):
    data = plan_data(SEARCHED)
    other = sim.simulate(MODEL, CLUSTER, SEARCHED.plan.but(schedule="zb-1p"))
    theirs = {"ranks": other.timeline.schedule.texts(), "sha256": plan_data(other)["order"]["sha256"]}
    data["order"] |= theirs
    data["provenance"]["profiles"][0]["sha256"] = "0" * 64
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert list(load_plan(tmp_path / "old.json").record.order.ranks) == theirs["ranks"]

    def half(data):
        data["provenance"]["profiles"][0]["sha256"] = "0" * 64
        data["order"] |= theirs | {"ranks": theirs["ranks"][:2]}

    assert changed(half, SEARCHED).path == "order.sha256"


def test_a_job_file_is_a_plan_file_without_the_rest(tmp_path):
    (tmp_path / "job.yaml").write_text("model: llama3-8b\ncluster: {device: l4}\nplan: {global_batch: 8}\n")
    found = load_plan(tmp_path / "job.yaml")
    assert found.record is None
    assert found.job == Job.load(tmp_path / "job.yaml")


def test_a_file_from_before_other_products_were_known_is_read_as_the_librarys(tmp_path):
    data = plan_data(STEP, date="2026-08-31")
    assert data["plan"].pop("product_kernel") == "library"
    (tmp_path / "plan.json").write_text(json.dumps(data))
    found = load_plan(tmp_path / "plan.json")
    assert (found.job.plan.product_kernel, found.record.prediction.step_time_s) == ("library", STEP.step_time_s)


def test_unequal_stages_and_two_copies(tmp_path):
    parts = (StagePlan(layers=20, tp=2, dp=4, micro_batch=2), StagePlan(layers=12, dp=8, zero=3))
    for plan in (Plan(global_batch=32, stages=parts), Plan(pp=4, schedule="dualpipe", global_batch=32)):
        path = save_plan(sim.simulate(MODEL, CLUSTER, plan), tmp_path / "plan.json")
        assert load_plan(path).job.plan.stages == plan.stages
    with pytest.raises(InputError, match=r"path: got .*; allowed: a file name that ends in \.json"):
        save_plan(STEP, tmp_path / "plan.yaml")  # whose reader takes 32 KB: orders are longer
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0, 1, 2], "0-2"),
        ([4], "4"),
        ([0, 4, 8], "0-8:4"),
        ([0, 1, 4, 5], "0-1,4-5"),
        (list(range(0, 900, 3)), "0-897:3"),
    ],
)
def test_runs(ranks, text):
    assert runs(ranks) == text


def test_too_many_runs_are_left_out():
    assert runs([rank for rank in range(900) if rank % 3]) == ""


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
PATHS = st.lists(st.integers(0, 30), min_size=1, max_size=4)
WHOLE = plan_data(STEP, date="2026-08-31")


def test_a_date_that_is_none_is_refused():
    with pytest.raises(InputError, match="date: got 'yesterday'; allowed: a date such as"):
        plan_data(STEP, date="yesterday")


@given(at=PATHS, value=VALUES)
def test_whatever_is_changed_is_one_error_or_none(tmp_path_factory, at, value):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    data = copy.deepcopy(WHOLE)
    held = data
    for n in at[:-1]:
        keys = list(held) if isinstance(held, dict) else range(len(held))
        inner = held[keys[n % len(keys)]]
        if not isinstance(inner, dict | list) or not inner:
            break
        held = inner
    keys = list(held) if isinstance(held, dict) else range(len(held))
    held[keys[at[-1] % len(keys)]] = value
    path.write_text(json.dumps(data))
    try:
        load_plan(path)
    except InputError as error:
        assert len(str(error)) < 2_000


def test_the_schema_says_what_a_plan_file_holds():
    schema = plan_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    checked = jsonschema.Draft202012Validator(schema)
    assert checked.is_valid(json.loads(json.dumps(WHOLE)))
    assert not checked.is_valid(WHOLE | {"extra": 1})
    assert not checked.is_valid({key: value for key, value in WHOLE.items() if key != "order"})
