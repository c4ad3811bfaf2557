import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.predicted import JobType, is_workload, predicted_throughputs, read_workload
from sim.engine.step import simulate
from sim.specs import Cluster, InputError, Plan
from sim.specs.catalog import models

DEVICES = ("v100-sxm-16gb", "a100-sxm-80gb")
BERT = JobType(name="bert", model=models["bert-large"], gpus=(1, 4), plan=Plan(global_batch=32, micro_batch=4))
XL = JobType(name="xl", model=models["gpt2-xl"], gpus=(8,), plan=Plan(global_batch=64))


@pytest.fixture(scope="module")
def found():
    return predicted_throughputs([BERT, XL], DEVICES)


def test_steps_per_s_are_those_of_the_simulated_step(found):
    step = simulate(BERT.model, Cluster(device="a100-sxm-80gb", nodes=1, gpus_per_node=4), BERT.plan)
    assert found.throughputs.types == ("a100-sxm-80gb", "v100-sxm-16gb")  # fastest first
    assert found.throughputs.alone["bert", 4][0] == pytest.approx(1 / step.step_time_s)
    low, high = step.step_time_interval_s
    assert found.throughputs.interval["bert", 4][:, 0] == pytest.approx([1 / high, 1 / low])
    assert set(found.throughputs.alone) == {("bert", 1), ("bert", 4), ("xl", 8)}
    assert not found.throughputs.together


def test_what_does_not_fit_is_zero_with_the_reason(found):
    assert found.throughputs.alone["xl", 8][1] == 0
    assert found.throughputs.interval["xl", 8][:, 1].tolist() == [0, 0]
    assert list(found.impossible) == [(("xl", 8), "v100-sxm-16gb")]
    assert "GB of 17.2 GB" in found.impossible[("xl", 8), "v100-sxm-16gb"]


def test_prices_are_the_catalogs(found):
    assert found.usd_per_hour == {"v100-sxm-16gb": 0.55, "a100-sxm-80gb": 1.79}
    assert predicted_throughputs([BERT], ["l4"]).usd_per_hour == {}


def test_a_precision_that_a_device_lacks_is_zero():
    job = JobType(name="b", model=models["bert-large"], gpus=(1,), plan=Plan(global_batch=32, precision="fp8"))
    made = predicted_throughputs([job], ["h100-sxm-80gb", "v100-sxm-16gb"])
    assert made.throughputs.alone["b", 1][1] == 0
    assert "plan.precision" in made.impossible[("b", 1), "v100-sxm-16gb"]
    with pytest.raises(InputError, match="one of the devices"):
        predicted_throughputs([job], ["v100-sxm-16gb"])


def test_an_interrupted_search_is_no_throughput(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.tuner.tune.textbook", interrupt)
    job = JobType(name="b", model=models["bert-base"], gpus=(2,), global_batch=16)
    with pytest.raises(KeyboardInterrupt):
        predicted_throughputs([job], ["a100-sxm-80gb"])


def test_without_a_plan_the_best_one_counts():
    batch, plan = 16, Plan(global_batch=16)
    tuned = JobType(name="b", model=models["bert-base"], gpus=(2,), global_batch=batch)
    given_ = JobType(name="b", model=models["bert-base"], gpus=(2,), plan=plan)
    best, stated = (predicted_throughputs([job], ["a100-sxm-80gb"]).throughputs for job in (tuned, given_))
    assert best.alone["b", 2][0] >= stated.alone["b", 2][0]


def test_several_nodes_and_the_plans_own_number():
    own = JobType(name="b", model=models["bert-base"], plan=Plan(global_batch=24, tp=2, dp=6))
    assert own.gpus == (12,)
    assert predicted_throughputs([own], ["a100-sxm-80gb"]).throughputs.alone["b", 12][0] > 0


def test_contradictions():
    model = models["bert-base"]
    for stated, path in (
        ({}, "global_batch"),
        ({"plan": Plan(global_batch=8), "global_batch": 8}, "global_batch"),
        ({"plan": Plan(global_batch=8, dp=4), "gpus": (8,)}, "gpus"),
        ({"global_batch": 8, "gpus": (0,)}, "gpus.0"),
    ):
        with pytest.raises(InputError) as caught:
            JobType(name="b", model=model, **stated)
        assert caught.value.path == path
    for jobs, devices in (([], DEVICES), ([BERT], []), ([BERT, BERT], DEVICES), ([BERT], ["l4", "l4"])):
        with pytest.raises(InputError, match="each once"):
            predicted_throughputs(jobs, devices)
    with pytest.raises(InputError, match="device: got 'p100'"):
        predicted_throughputs([BERT], ["p100"])


FILE = """
devices: [v100-sxm-16gb, a100-sxm-80gb]
jobs:
  bert:
    model: bert-large
    gpus: [1, 4]
    plan: {global_batch: 32, micro_batch: 4}
  small:
    model: {layers: 2, hidden: 128, heads: 2}
    gpus: 2
    global_batch: 8
"""


def test_a_workload_file(tmp_path):
    (tmp_path / "w.yaml").write_text(FILE)
    jobs, devices = read_workload(tmp_path / "w.yaml")
    assert devices == DEVICES
    assert jobs[0] == BERT
    assert (jobs[1].name, jobs[1].gpus, jobs[1].model.hidden) == ("small", (2,), 128)


def test_a_workload_may_be_json_as_throughputs_are(tmp_path):
    work, measured = tmp_path / "work.json", tmp_path / "measured.json"
    job = {"model": "bert-large", "plan": {"global_batch": 32}}
    work.write_text(json.dumps({"devices": [DEVICES[0]], "jobs": {"bert": job}}))
    measured.write_text(json.dumps({"v100": {"('net', 1)": {"null": 2.0}}}))
    assert (is_workload(work), is_workload(measured), is_workload(tmp_path / "none.json")) == (True, False, False)
    assert read_workload(work)[0][0].name == "bert"


def test_all_that_is_wrong_with_a_file_is_told(tmp_path):
    (tmp_path / "w.yaml").write_text(
        FILE.replace("bert-large", "bert-huge").replace("gpus: 2", "gpus: 0").replace("devices:", "device:")
    )
    with pytest.raises(InputError) as caught:
        read_workload(tmp_path / "w.yaml")
    paths = [caught.value.path, *(error.path for error in caught.value.also)]
    assert paths == ["device", "devices", "jobs.bert.model", "jobs.small.gpus.0"]


@settings(max_examples=30)
@given(
    st.binary(max_size=60)
    | st.lists(st.sampled_from(FILE.splitlines()), max_size=9).map(lambda t: "\n".join(t).encode())
)
def test_any_other_file_is_read_or_an_input_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("w") / "w.yaml"
    path.write_bytes(raw)
    try:
        read_workload(path)
    except InputError:
        return
    assert b"devices" in raw
