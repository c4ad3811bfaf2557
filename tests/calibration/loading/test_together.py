"""Counts of real caches, and jobs and nodes beside each other."""

import pytest

from calibration.loading.bench import Setting, opened
from calibration.loading.calibrate import Calibration
from calibration.loading.together import count_misses, part, share_work


def test_misses_of_minio_are_exact(images):
    found = count_misses(images, "minio", 0.4, 3)
    assert found.samples == len(images)
    kept = round(found.share * found.samples)
    assert found.misses == [len(images)] + [len(images) - kept] * 2
    assert found.expected == pytest.approx(len(images) - kept)


@pytest.mark.slow
def test_lru_is_as_its_law_says(images):
    found = count_misses(images, "lru", 0.5, 8)
    later = found.misses[1:]
    assert found.misses[0] == len(images)
    assert sum(later) / len(later) == pytest.approx(found.expected, rel=0.15)


def test_nodes_with_one_cache_read_storage_once(images):
    found = part(images, nodes=2, epochs=4, share=0.6)
    assert found.together_reads == len(images)
    assert found.apart_reads > 1.5 * len(images)


@pytest.mark.slow
def test_coordinated_jobs_are_faster_where_preparation_decides():
    setting = Setting(files=32, scale=384.0, batch=4, cached=1.0, trainer_s=0.001, cores=1)
    with opened(setting) as bench:
        known = Calibration(0.0015, 0.0001, 0.0, 1e9, 0.0, setting.trainer_s)
        # Others may take the core while one half of a try is measured, hardly in each of them.
        tries = (share_work(bench, setting, 2, known, timed=30) for _ in range(4))
        found = next((one for one in tries if one.speedup > 1.2), None)
    assert found is not None
    assert found.predicted_speedup == pytest.approx(2, rel=0.2)
