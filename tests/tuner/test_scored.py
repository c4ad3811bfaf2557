"""Scores of whole spaces whose pipelines may have chunks of different layers."""

import numpy as np
import pytest

from sim.engine.step import simulate
from sim.specs import Cluster
from sim.specs.catalog import model
from sim.tuner import rows
from sim.tuner.rows import scored
from sim.tuner.score import score_members
from sim.tuner.space import Space, build_space


def space(name: str, **knobs: list[object]) -> Space:
    return build_space(model(name), Cluster.of("a100-sxm-40gb", nodes=2), 64, knobs)


def sample(of: Space, n: int) -> list[tuple[int, int, int, int]]:
    every = np.argwhere(of.allowed & (of.rows["pp"] > 2)[:, None, None, None])
    return [tuple(i) for i in np.random.default_rng(1).permutation(every)[:n].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["time", "memory"])
def test_an_encoder_decoders_scores_are_those_of_the_engine(objective: str) -> None:
    """By the mean of its chunks plans that fit were left out, and those that do not were kept."""
    of = space("t5-11b", zero=[1], recompute=["none", "full"])
    found, mean = scored(of), score_members(of)
    off, flips = [], 0
    for at in sample(of, 40):
        step = simulate(of.model, of.cluster, of.plan(*at))
        exact, rough = (
            (s.step_time_s[at] / step.step_time_s, s.peak_memory_bytes[at] / step.peak_memory_bytes)
            for s in (found, mean)
        )
        assert exact[objective == "memory"] == pytest.approx(1, rel=0.01)
        assert found.fits[at] == (step.fits == "yes")
        off.append(abs(rough[objective == "memory"] - 1))
        flips += bool(mean.fits[at] != found.fits[at])
    assert max(off) > 0.05 and flips


def test_equal_chunks_are_scored_as_they_were() -> None:
    of = space("llama3-8b", zero=[1], recompute=["none"])
    found, mean = scored(of), score_members(of)
    assert (found.step_time_s == mean.step_time_s).all() and (found.fits == mean.fits).all()


def test_of_many_plans_the_fastest_and_the_smallest_are_scored_by_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a search of millions does not take minutes."""
    of = space("t5-11b", zero=[1], recompute=["none", "full"])
    every, mean = scored(of), score_members(of)
    monkeypatch.setattr(rows, "NEAR", 5)
    some = scored(of)
    exact = some.step_time_s != mean.step_time_s
    assert 5 <= exact.sum() <= 10 < (every.step_time_s != mean.step_time_s).sum()
    assert (some.step_time_s[exact] == every.step_time_s[exact]).all()
    uneven = of.allowed & (every.step_time_s != mean.step_time_s)
    assert exact[np.where(uneven, mean.peak_memory_bytes, np.inf) == mean.peak_memory_bytes[uneven].min()].any()
