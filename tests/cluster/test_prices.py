import numpy as np
import pytest

from sim.cluster import ClusterJob, Rounds, policy, simulate
from sim.cluster.prices import PriceTable
from sim.specs.fields import InputError
from tests.cluster.toys import Fixed, speeds

HOUR = 3_600.0


def table(rows, times=None, types=("fast", "slow")):
    times = HOUR * np.arange(len(rows)) if times is None else np.array(times, dtype=float)
    return PriceTable(types, times, np.array(rows, dtype=float))


def test_who_holds_a_device_pays_the_price_of_the_moment():
    jobs = [ClusterJob(job_type="net", steps=int(2 * 2.5 * HOUR))]
    rounds = Rounds(switch_s=0.0)
    found = simulate(
        jobs, speeds(), {"fast": 1, "slow": 1}, Fixed([1, 0]), rounds, usd_per_hour=table([[1, 1], [4, 1], [2, 1]])
    )
    assert found.paid_usd == pytest.approx([1 + 4 + 2 * 0.5])
    assert found.cost_usd == pytest.approx(6.0)


def test_a_policy_by_cost_follows_the_prices():
    jobs = [ClusterJob(job_type="net", steps=int(6 * HOUR))]
    prices = table([[1.0, 5.0], [9.0, 0.1], [9.0, 0.1]])
    by_cost = policy("max_sum_throughput_normalized_by_cost_perf")
    by_cost.strict = True  # else the faster device is used, which is idle
    found = simulate(jobs, speeds(), {"fast": 1, "slow": 1}, by_cost, Rounds(switch_s=0.0), usd_per_hour=prices)
    assert found.used_s[0] == pytest.approx([HOUR, 4 * HOUR], rel=0.15)
    assert found.cost_usd == pytest.approx(1.4, rel=0.15)


def test_one_price_is_what_constant_prices_are():
    jobs = [ClusterJob(job_type="net", steps=9_000, arrival_s=900.0 * n) for n in range(6)]
    run = (jobs, speeds(), {"fast": 1, "slow": 2}, policy("fifo_perf"))
    flat = simulate(*run, usd_per_hour={"fast": 3.0, "slow": 1.0})
    metered = simulate(*run, usd_per_hour=table([[1.0, 3.0]], types=("slow", "fast")))
    assert metered.cost_usd == pytest.approx(flat.cost_usd)
    assert metered.makespan_s == flat.makespan_s


def test_tables_that_are_none():
    with pytest.raises(InputError, match="ascend"):
        table([[1, 1], [1, 1]], [2, 1])
    with pytest.raises(InputError, match="above 0"):
        table([[1, 0]])
    with pytest.raises(InputError, match="a column a type"):
        table([[1]])
    with pytest.raises(InputError, match=r"usd_per_hour\.slow"):
        simulate([], speeds(), {"slow": 1}, policy("fifo"), usd_per_hour=table([[1]], types=("fast",)))
