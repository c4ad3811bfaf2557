"""The section sharing: what contradicts itself, and paths relative to the job."""

from typing import get_args

import pytest

from sim.cluster import POLICIES
from sim.specs import InputError, Job, Sharing
from sim.specs.fields import read
from sim.specs.job import read_sections
from sim.specs.sharing import PolicyName

JOB = {"model": "gpt2", "cluster": {"device": "h100-sxm-80gb"}}
SHARED = {"workload": "a.yaml", "devices": {"h100-sxm-80gb": 8}, "every_hours": 2.0}


def test_the_names_of_policies_are_those_of_the_cluster():
    assert get_args(PolicyName) == tuple(POLICIES)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"every_hours": None}, "sharing.every_hours: got None; allowed: exactly one of trace and every_hours"),
        ({"trace": "b"}, "sharing.every_hours: got 2.0; allowed: exactly one of trace and every_hours"),
        ({"every_hours": 0.0}, "sharing.every_hours: got 0.0; allowed: a number from 0.001"),
        ({"workload": ""}, "sharing.workload: got ''; allowed: the path of a file"),
        ({"devices": {}}, "sharing.devices: got {}; allowed: a mapping of types"),
        ({"devices": {"a100": 0}}, "sharing.devices.a100: got 0; allowed: a whole number from 1"),
        ({"policy": "fair"}, "sharing.policy: got 'fair'; allowed: one of allox"),
        ({"weight": 0.0}, "sharing.weight: got 0.0; allowed: a number from 1e-06"),
    ],
)
def test_what_is_wrong_is_said(change, words):
    with pytest.raises(InputError) as error:
        read(Sharing, {key: value for key, value in (SHARED | change).items() if value is not None}, "sharing")
    assert str(error.value).startswith(words)


def test_it_needs_a_training(tmp_path):
    _, problems = read_sections(JOB | {"sharing": SHARED}, tmp_path)
    assert [str(problem) for problem in problems] == ["training: missing; required with sharing: tokens or steps"]


def test_paths_are_relative_to_the_job(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "model: gpt2\ncluster: {device: h100-sxm-80gb}\ntraining: {steps: 9}\n"
        "sharing: {workload: a.yaml, trace: sub/b.trace, devices: {h100-sxm-80gb: 8}}\n"
    )
    made = Job.load(tmp_path / "job.yaml")
    assert (made.sharing.workload, made.sharing.trace) == (str(tmp_path / "a.yaml"), str(tmp_path / "sub" / "b.trace"))
    assert made.around.sections == {"training": made.training, "sharing": made.sharing}
