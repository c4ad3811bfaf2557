"""Checkpoints at the shell: the contract's fields, words, and what is refused."""

import json

import pytest
import yaml

from tests.oracle import ROOT

JOB = ROOT / "notebooks" / "jobs" / "llama3-405b-checkpoints.yaml"
SMALL = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-sxm-80gb"},
    "plan": {"tp": 8, "global_batch": 64},
    "checkpointing": {"storage": "nvme", "contention": 0.2, "failures": {"device_mtbf_s": 1e6, "spares": 1}},
}


@pytest.fixture
def small(tmp_path):
    def written(**changes):
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(SMALL | changes))
        return path

    return written


def test_plan_prints_the_contract(trainsim, small):
    code, out, _ = trainsim("checkpointing", "plan", small(), "--json")
    data = json.loads(out)
    assert code == 0
    assert set(data) >= {
        "k", "steps_between", "overhead_percent", "recovery_s", "lost_work_s", "goodput", "snapshot", "state_bytes",
        "persist_s", "reload_s", "iteration_s", "policies", "why", "assumptions",
    }  # fmt: skip
    assert data["k"] == data["steps_between"]
    assert 0 < data["overhead_percent"] <= 3.5
    assert [row["policy"] for row in data["policies"]] == [
        "checkfreq", "checkfreq-rule", "checkfreq-released", "young", "daly", "best",
    ]  # fmt: skip
    assert data["mtbf_s"] == 1e6 / 8
    assert data["state_bytes"] == 14 * 8_030_261_248


def test_simulate_prints_the_contract(trainsim, small):
    arguments = ("checkpointing", "simulate", small(), "--hours", 5_000, "--seeds", 10, "--json")
    code, out, _ = trainsim(*arguments)
    data = json.loads(out)
    assert code == 0
    assert set(data) >= {
        "k", "overhead_percent", "recovery_s", "goodput", "goodput_interval", "checkpoints", "failures", "samples",
    }  # fmt: skip
    assert data["goodput_interval"][0] < data["goodput"] < data["goodput_interval"][1]
    law = json.loads(trainsim("checkpointing", "plan", small(), "--json")[1])
    assert data["goodput"] == pytest.approx(law["goodput"], rel=0.02)
    assert trainsim(*arguments)[1] == out


def test_a_number_of_steps(trainsim, small):
    data = json.loads(trainsim("checkpointing", "simulate", small(), "--steps", 500, "--seeds", 1, "--json")[1])
    assert data["samples"][0]["steps"] == 500


def test_the_published_run_of_16384_gpus_is_plausible(trainsim):
    """More than 90 % of the time was effective training (arXiv 2407.21783, section 3.3.4); 419 failures in 54 days."""
    data = json.loads(trainsim("checkpointing", "simulate", JOB, "--hours", 54 * 24, "--seeds", 5, "--json")[1])
    assert 0.9 < data["goodput"] < 1
    assert data["failures"] == pytest.approx(419, rel=0.1)


def test_words(trainsim, small):
    _, out, _ = trainsim("checkpointing", "plan", small())
    text = " ".join(out.split())
    assert "Save every" in text and "the snapshot is made" in text and "young: every" in text
    assert "Assumed: storage outlives the node that wrote to it" in text
    kept = SMALL["checkpointing"]
    bare = small(checkpointing={name: kept[name] for name in kept if name != "contention"})
    told = " ".join(trainsim("checkpointing", "plan", bare)[1].split())
    assert "Assumed: checkpointing.contention = 0 (writing a snapshot does not slow training; not measured)" in told
    _, out, _ = trainsim("checkpointing", "simulate", small(), "--seeds", 2)
    assert "Goodput" in out and "in four runs of five" in " ".join(out.split())
    assert "Assumed: failures strike at random" in out


@pytest.mark.parametrize(
    "changes, arguments, words",
    [
        ({"plan": None}, ("plan",), "plan"),
        ({"checkpointing": {"every": "often"}}, ("plan",), "checkpointing.every: got 'often'"),
        ({}, ("plan", "--writers", "all"), "--writers: got 'all'; allowed: one of balanced, first-replica"),
        ({}, ("simulate", "--steps", "5", "--hours", "1"), "--hours: got 1.0; allowed: left out with --steps 5"),
        ({}, ("simulate", "--seeds", "0"), "--seeds: got '0'"),
        (
            {"checkpointing": {"snapshot": "device", "state_bytes": 8e11}},
            ("plan",),
            "checkpointing.snapshot: got 'device'",
        ),
        (
            {"checkpointing": {"failures": {"device_mtbf_s": 1}}},
            ("simulate",),
            "checkpointing.failures: got 'one every",
        ),
    ],
)
def test_bad_input_is_refused(trainsim, small, changes, arguments, words):
    command, *rest = arguments
    code, out, err = trainsim("checkpointing", command, small(**changes), *rest)
    assert (code, out) == (2, "")
    assert words in err
