"""Three entities on nine devices beside the published figures."""

import gzip
import json
import random
import re

import numpy as np
import pytest

from sim.cluster.hierarchical_study import JOBS, TYPES, hierarchical_study, random_speeds
from tests.oracle import reference

MODELS = [
    *(f"ResNet-18 (batch size {size})" for size in (16, 32, 64, 128, 256)),
    *(f"ResNet-50 (batch size {size})" for size in (16, 32, 64, 128)),
    *(f"Transformer (batch size {size})" for size in (16, 32, 64, 128, 256)),
    *(f"LM (batch size {size})" for size in (5, 10, 20, 40, 80)),
    *(f"Recommendation (batch size {size})" for size in (512, 1024, 2048, 4096, 8192)),
    "A3C",
    "CycleGAN",
]
"""Types of jobs in the order in which the published notebook draws from them."""
DECIMALS = 6e-4
"""Three decimals, and one value whose fourth is 5."""


def speeds(at_random: bool):
    if at_random:
        return random_speeds()
    with gzip.open(reference("cluster/inputs/simulation_throughputs.json.gz"), "rt") as file:
        rates = json.load(file)
    draw = random.Random(0)
    drawn = [MODELS[draw.choice(range(len(MODELS)))] for _ in range(JOBS)]
    return np.array([[rates[name][str((model, 1))]["null"] for name in TYPES] for model in drawn])


def published(inside: str, at_random: bool) -> dict[str, list[list[float]]]:
    """Return the vectors of the notebook by policy, one a step."""
    outputs = json.loads(reference("cluster/hierarchical_published.json").read_text())["outputs"]
    mine = (f"'{inside}'", f"random_throughputs={at_random}")
    text = "".join(one["text"] for one in outputs if all(part in one["source_call"] for part in mine))
    found = re.findall(r"^(Perf|Perf-agnostic): \[([^\]]*)\]", text, re.MULTILINE)
    return {name: [[float(x) for x in each.split()] for of, each in found if of == name] for name, _ in found}


@pytest.mark.slow
@pytest.mark.parametrize("at_random", [True, False])
@pytest.mark.parametrize("inside", ["fairness", "fifo"])
def test_all_published_vectors_to_three_decimals(inside, at_random):
    study = hierarchical_study(speeds(at_random), inside, gavel_parity=True)
    for name, levels in (("Perf", study.aware), ("Perf-agnostic", study.agnostic)):
        vectors = published(inside, at_random)[name]
        assert len(vectors) == 72
        for vector, level in zip(vectors, levels, strict=True):
            assert level[: len(vector)] == pytest.approx(vector, abs=DECIMALS)
            assert not level[len(vector) :].any()


@pytest.mark.slow
def test_the_clean_study_leaves_no_device_idle_that_a_job_could_use():
    """Two jobs on nine devices: each has the fastest type, where the published study leaves the first at 0.88."""
    clean, published_one = (hierarchical_study(random_speeds(), gavel_parity=parity) for parity in (False, True))
    assert clean.aware[4, 0] == pytest.approx(clean.aware[0, 0])
    assert published_one.aware[4, 0] < 0.9 * clean.aware[4, 0]
    assert (clean.of_entities(clean.aware) >= 0).all()
    last = clean.of_entities(clean.aware)[-1]
    assert last / last[0] == pytest.approx([1, 2, 3], rel=1e-6)
    assert clean.aware.sum() > clean.agnostic.sum()
