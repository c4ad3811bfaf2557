from dataclasses import replace

import numpy as np
import pytest

from sim.cluster import ClusterJob, Rounds, policy
from sim.market.jobs import Moves
from sim.market.offers import Market
from sim.market.together import rent_together
from sim.specs.fields import InputError
from tests.market.toys import HOUR, hours, offer, priced

SPEED = {("net", 1): {"v100": 1.0, "k80": 0.25}}
BY_COST = "max_sum_throughput_normalized_by_cost_perf"
A, B, K = offer("us-east-1a"), offer("us-west-2a"), offer("us-east-1a", "k80")


def run(jobs, name=BY_COST, instances=1, grid=None, moves=None):
    market = Market((priced(*[1.0] * 6, *[8.0] * 30, of=A), priced(*[2.0] * 36, of=B), priced(*[0.4] * 36, of=K)))
    grid = grid or hours(market, 36)
    return rent_together(jobs, SPEED, grid, instances, policy(name), moves or Moves.free(), Rounds(round_s=360.0))


def job(length_h=4.0, arrival_s=0.0):
    return ClusterJob(job_type="net", steps=int(length_h * HOUR), arrival_s=arrival_s)


def test_one_job_takes_what_is_cheapest_for_what_it_does():
    found = run([job()])
    assert dict(zip(found.types, found.used_s[0].tolist(), strict=True))[A.name] == pytest.approx(4 * HOUR)
    assert found.cost_usd == pytest.approx(4.0)


def test_saving_makes_training_longer_as_it_does_alone():
    moves = replace(Moves.free(), overhead=0.5)
    assert run([job(2.0)], moves=moves).makespan_s == pytest.approx(3 * HOUR)
    assert run([job(2.0)], moves=moves).cost_usd == pytest.approx(3.0)


def test_what_moves_cost_is_paid_by_every_job():
    moves = replace(Moves.free(), usd=9.0)
    free, paid = (run([job(), job()], instances=2, moves=known) for known in (Moves.free(), moves))
    assert paid.cost_usd == pytest.approx(free.cost_usd + 2 * 9.0)


def test_a_job_leaves_when_prices_change():
    found = run([job(10.0)])
    used = dict(zip(found.types, found.used_s[0].tolist(), strict=True))
    assert used[A.name] == pytest.approx(6 * HOUR, rel=0.05)
    assert used[A.name] + used[B.name] + used[K.name] > 9 * HOUR
    assert found.cost_usd < 6 * 1 + 4 * 8


def test_where_there_is_not_enough_the_next_is_rented():
    one, two = run([job()]), run([job(), job()])
    assert two.cost_usd > 2 * one.cost_usd
    assert run([job(), job()], instances=2).cost_usd == pytest.approx(2 * one.cost_usd)
    assert run([job(), job()], instances={A.name: 2}).cost_usd == pytest.approx(2 * one.cost_usd)


def test_instances_of_offers_that_there_are_not_are_refused():
    with pytest.raises(InputError, match=r"instances\.aws nowhere: got 'aws nowhere'; allowed: one of aws us-east-1a"):
        run([job()], instances={A.name: 1, "aws nowhere": 2})


def test_by_cost_is_cheaper_than_without():
    jobs = [job(3.0, 1_000.0 * n) for n in range(5)]
    assert run(jobs).cost_usd < run(jobs, "max_sum_throughput_perf").cost_usd


def test_offers_that_come_and_go_are_left_out():
    market = Market((priced(1.0, of=A), priced(1.0, of=B)))
    found = run([job()], grid=hours(market, 20, {A: HOUR * np.array([[0.0, 2.0]])}))
    assert found.types == (B.name,)
    assert any("left out: 1 offer not there" in line for line in found.assumptions)
    with pytest.raises(InputError, match="model"):
        run([ClusterJob(job_type="other", steps=1)])


def test_offers_of_one_name_are_refused():
    """Else the devices of one would be taken for as many of the other."""
    slow = replace(A, device="k80")
    with pytest.raises(InputError, match=f"prices: got '{A.name}'; allowed: a name of its own"):
        run([job()], grid=hours(Market((priced(2.0, of=A), priced(0.1, of=slow))), 5))
