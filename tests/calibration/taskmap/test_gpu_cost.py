"""Costs of block schedules: by hand for one block, waves, what grows, and that a fit finds what made the times."""

from dataclasses import replace

import numpy as np
import pytest

from calibration.taskmap.contraction import FORWARD
from calibration.taskmap.gpu import of_catalog
from calibration.taskmap.gpu_cost import FITTED, START, BlockCosts, fit, reads
from calibration.taskmap.gpu_space import BlockSchedule, block_schedules

H100, T4 = of_catalog("h100-sxm-80gb"), of_catalog("t4")
EVERY = block_schedules(H100, 2)
TRUE = dict(zip(FITTED, (0.8, 9e-7, 1e-7, 5e-9, 1.5e11, 4e10, 0.8, 8e-6), strict=True))
LARGE = BlockSchedule(128, 256, 64, 8, 3, 8)


def seconds(schedule, m, n, k, gpu=H100):
    return BlockCosts(FORWARD, gpu, 2, TRUE).seconds([schedule], {"m": m, "n": n, "k": k})[0]


def by_hand(gpu, schedule, steps, step, filling):
    """One block on one SM; step, filling: seconds of a step and until the first one, of (products, loading)."""
    products = 2 * 128 * 256 * 64 / (0.8 * gpu.fp16_flop_per_s / gpu.sms)
    loading = 64 * 2 * (128 + 256) / 4e10
    of_a, of_b = reads(schedule, gpu)
    computing = max(products, 64 * 2 * (128 * of_a + 256 * of_b) / 1.5e11)
    if not schedule.bulk:
        computing += 5e-9 * 64 * 2 * (128 + 256) / 16 / (32 * 4)  # 16 bytes a thread, four warps at a time
    memory, stored = 0.8 * gpu.memory_bytes_per_s, 128 * 256 * 2
    working = steps * (step(computing, loading) + 1e-7) + filling(computing, loading) + stored * gpu.sms / memory
    traffic = ((128 + 256) * 64 * steps * 2 + stored) / memory
    return 8e-6 + (working**4 + traffic**4) ** 0.25


@pytest.mark.parametrize("bulk", [False, True])
def test_seconds_of_one_block_by_hand(bulk):
    one = replace(LARGE, bulk=bulk)
    wanted = by_hand(H100, one, 10, lambda made, loaded: max(made, loaded, 9e-7 / 2), lambda _, loaded: 9e-7 + loaded)
    assert seconds(one, 128, 256, 640) == pytest.approx(wanted)
    assert seconds(one, 100, 200, 640) == pytest.approx(wanted, rel=1e-3)  # the whole block works


def test_one_stage_loads_and_multiplies_in_turns():
    single = replace(LARGE, stages=1, depth=64)
    wanted = by_hand(T4, single, 10, lambda computing, loading: 9e-7 + computing + loading, lambda *_: 0.0)
    assert seconds(single, 128, 256, 640, T4) == pytest.approx(wanted)


def test_a_block_more_than_there_are_sms_is_a_wave_more():
    """One SM then works on two, and all others wait."""
    grids = ((12, 10), (12, 11), (7, 19), (12, 22))
    waves = [seconds(LARGE, 128 * down, 256 * across, 16_384) - TRUE["launch_s"] for down, across in grids]
    assert waves[0] == pytest.approx(waves[1], rel=0.001)
    assert waves[2] == pytest.approx(2 * waves[1], rel=0.001)
    assert waves[3] == pytest.approx(waves[2], rel=0.001)


def test_larger_products_cost_no_less():
    costs, rng = BlockCosts(FORWARD, H100, 2, START), np.random.default_rng(0)
    for _ in range(100):
        sizes = dict(zip("mnk", (int(x) for x in rng.integers(16, 6_000, 3)), strict=True))
        grown = sizes | {name: sizes[name] + int(rng.integers(1, 3_000)) for name in rng.choice(list("mnk"), 2)}
        assert (costs.seconds(EVERY, grown) >= costs.seconds(EVERY, sizes) * (1 - 1e-9)).all()


def test_copies_ahead_and_in_bulk_and_groups_never_cost_more():
    bulk = replace(LARGE, bulk=True)
    for better, worse in ((LARGE, replace(LARGE, stages=2)), (LARGE, replace(LARGE, group=1)), (bulk, LARGE)):
        assert seconds(better, 16_384, 16_384, 16_384) <= seconds(worse, 16_384, 16_384, 16_384)
    cached, streamed = (replace(LARGE, group=group) for group in (8, 1))
    assert seconds(cached, 65_536, 65_536, 256) < seconds(streamed, 65_536, 65_536, 256)


def test_who_reads_shared_memory():
    assert LARGE.grid == (2, 4)
    assert reads(LARGE, of_catalog("a100-sxm-80gb")) == (4, 2)
    assert reads(LARGE, H100) == (1, 2)
    assert reads(replace(LARGE, rows=64), H100) == (2, 1)
    assert reads(BlockSchedule(256, 128, 64, 8, 3, 8), H100) == (1, 4)
    assert reads(BlockSchedule(32, 128, 64, 4, 3, 1), H100) == (4, 1)  # too few rows for wgmma
    assert reads(LARGE, of_catalog("b200")) == (1, 1)


def test_a_fit_finds_what_made_the_times():
    true, start = (BlockCosts(FORWARD, H100, 2, fitted) for fitted in (TRUE, START))
    some = [dict(zip("mnk", each, strict=True)) for each in ((4096, 4096, 4096), (500, 700, 8192), (8192, 8192, 128))]
    measured = [(s, sizes, true.seconds([s], sizes)[0]) for n, sizes in enumerate(some) for s in EVERY[n::9]]
    found, held_out = fit(start, measured), {"m": 2048, "n": 12_288, "k": 4096}
    assert found.seconds(EVERY, held_out) == pytest.approx(true.seconds(EVERY, held_out), rel=0.05)
    assert start.seconds(EVERY, held_out) != pytest.approx(true.seconds(EVERY, held_out), rel=0.05)
