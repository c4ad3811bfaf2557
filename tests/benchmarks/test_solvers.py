"""The inter-stage optimum with its certificate at the sizes of the tuner's specification, run by `make bench`."""

from time import process_time

import pytest

from sim.tuner.solvers.exact import exact
from tests.benchmarks.table import Speed
from tests.tuner.solvers.chains import table

SIZES = [(4, 32, 5, 20), (8, 64, 9, 20), (16, 64, 5, 20), (16, 64, 12, 20), (32, 96, 6, 20)]
"""Stages, layers, length choices, points of a cell."""


@pytest.mark.parametrize("microbatches", ["two", "4 per stage", "32 per stage"])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes)))
@pytest.mark.parametrize("n", [1, 20])
def test_certified_optimum(benchmark, speeds, sizes, n, microbatches):
    """The frontiers are there; everything else, graph included, is timed, in CPU seconds."""
    many = {"two": 2, "4 per stage": 4 * sizes[0], "32 per stage": 32 * sizes[0]}[microbatches]
    chains = iter([table(*sizes, seed, many) for seed in range(4)])
    spent = []

    def run(chain):
        begin = process_time()
        found = exact(chain, n=n)
        spent.append(process_time() - begin)
        return found

    found = benchmark.pedantic(run, setup=lambda: ((next(chains),), {}), rounds=3, warmup_rounds=1)
    benchmark.extra_info["cpu_s"] = spent[1:]
    assert found.certified
    assert len(found.choices) == n
    if n == 1 and sizes == (16, 64, 12, 20):
        what = f"tuner: certified optimum, 16 stages, 64 layers, {many} microbatches"
        speeds[what] = Speed(min(spent[1:]), "CPU s", "< 1 CPU s")
    assert min(spent[1:]) < 1
