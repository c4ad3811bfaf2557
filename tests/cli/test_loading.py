"""`trainsim loading predict`: a job or the section alone, as text and as JSON."""

import json

import pytest

SECTION = (
    "{dataset: imagenet-1k, prep_s: 0.004, workers: 24, cores: 24, topology: staged, cache: lru, cache_bytes: 1.2e11}"
)
JOB = """
model: vit-b
cluster: {device: v100-sxm-32gb, nodes: 2}
plan: {dp: 16, global_batch: 1024, micro_batch: 64, framework: torch}
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        (tmp_path / "job.yaml").write_text(text)
        return tmp_path / "job.yaml"

    return write


def test_a_section_alone(trainsim, file):
    for text in (SECTION, f"loading: {SECTION}"):
        code, out, _ = trainsim("loading", "predict", file(text), "--compute-samples-per-s", 8000, "--json")
        data = json.loads(out)
        assert code == 0
        assert data["bottleneck"] == "prep"
        assert data["samples_per_s"] == pytest.approx(6000)
        assert data["recommended_cores"] == 32
        assert data["what_if"] == []
        assert data["fetch_stall_fraction"] + data["prep_stall_fraction"] == pytest.approx(0.25)


def test_a_job_says_how_fast_training_is(trainsim, file):
    job = file(JOB + f"loading: {SECTION}")
    step = json.loads(trainsim("simulate", job, "--json")[1])
    code, out, _ = trainsim("loading", "predict", job, "--json", "--what-if", "cores")
    data = json.loads(out)
    assert code == 0
    assert data["compute_samples_per_s"] == pytest.approx(1024 / step["step_time_s"] / 2)
    assert [row["value"] for row in data["what_if"]] == sorted(row["value"] for row in data["what_if"])
    assert {"hit_fraction", "epoch_s", "recommended_cache_bytes"} <= set(data)


def test_events_stand_beside_the_law(trainsim, file):
    small = SECTION.replace("imagenet-1k", "{samples: 20000, sample_bytes: 1e5}").replace("1.2e11", "1e9")
    arguments = ("loading", "predict", file(small), "--compute-samples-per-s", 4000, "--engine", "events")
    data = json.loads(trainsim(*arguments, "--json")[1])
    assert data["events"]["samples_per_s"] == pytest.approx(data["samples_per_s"], rel=0.03)
    text = trainsim(*arguments)[1]
    assert "Simulated:" in text and "samples/s of" in text


def test_what_has_no_bound_is_null(trainsim, file):
    data = json.loads(
        trainsim("loading", "predict", file("{dataset: imagenet-1k}"), "--compute-samples-per-s", 10, "--json")[1]
    )
    assert data["prep_samples_per_s"] is None


@pytest.mark.parametrize(
    "text, more, said",
    [
        (SECTION, [], "--compute-samples-per-s: missing"),
        (SECTION, ["--compute-samples-per-s", "-1"], "--compute-samples-per-s: got -1"),
        (SECTION, ["--compute-samples-per-s", "1", "--epochs", "1"], "--epochs: got '1'"),
        (SECTION, ["--compute-samples-per-s", "1", "--epochs", "5"], "--epochs: got 5; allowed: left out without"),
        (JOB, [], "loading: missing"),
        ("{dataset: nothing}", [], "dataset: got 'nothing'"),
        ("loading: {dataset: nothing}", [], "loading.dataset: got 'nothing'"),
        (f"{{modle: vit-b, loading: {SECTION}}}", ["--compute-samples-per-s", "1"], "modle: got 'vit-b'"),
    ],
)
def test_bad_input_is_told(trainsim, file, text, more, said):
    code, _, err = trainsim("loading", "predict", file(text), *more)
    assert code == 2
    assert said in " ".join(err.split())


@pytest.mark.parametrize("rate", ["0", "inf", "1e13"])
def test_rates_that_cannot_be_are_refused(trainsim, file, rate):
    code, _, err = trainsim("loading", "predict", file("{dataset: imagenet-1k}"), "--compute-samples-per-s", rate)
    assert (code, err.startswith("error: --compute-samples-per-s: got ")) == (2, True)
    assert err.endswith("allowed: a number above 0, at most 1e+12 samples/s\n")
