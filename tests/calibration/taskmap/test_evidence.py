"""What evidence says of itself, and that its file is read as it was written."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from calibration.taskmap import evidence, tune
from calibration.taskmap.contraction import FORWARD
from calibration.taskmap.evidence import EVERYWHERE, anywhere, drawn, gather
from calibration.taskmap.native import compiler
from calibration.taskmap.processor import Processor, processor
from calibration.taskmap.results import Results, Shape, held, read_results
from sim.specs.fields import InputError
from tests.full import fully

WIDE = Processor(cores=2, lanes=16, registers=32, cache_bytes=2**20)
SHAPE = Shape(
    contraction="forward", sizes={"m": 2, "n": 3, "k": 5}, flop=60.0, predicted_s=[3.0, 1.0, 2.0],
    measured_s=[4.0, 3.0, 2.0], chosen=1, ranked=1, tuning_s=1.0, exhaustive_s=9.0, library_s=6.0,
)  # fmt: skip


def test_a_shape_by_hand():
    assert (SHAPE.best, SHAPE.rank, SHAPE.lost, SHAPE.of_library) == (2, 1, 0.5, 2.0)
    assert (SHAPE.flop_per_s, SHAPE.label) == (20.0, "forward 2x3x5")
    assert (held([SHAPE], 2), held([SHAPE], 1)) == (1.0, 0.0)
    assert held([SHAPE, replace(SHAPE, predicted_s=[1.0, 2.0, 0.5])], 1) == 0.5


def test_sizes_are_drawn_once_for_all():
    sizes = list(drawn(12, 3))
    assert sizes == list(drawn(12, 3)) != list(drawn(12, 4))
    assert all(4e6 < 2 * np.prod(list(each.values())) < 6e8 for each in sizes)
    assert all(value % 64 == 0 for value in sizes[1].values())


def test_what_is_drawn_anywhere_is_a_program():
    draw = Random(0)
    found = {anywhere(WIDE, draw) for _ in range(200)}
    assert len(found) > 190
    assert all(schedule.program(FORWARD).workers == WIDE.lanes for schedule in found)
    assert EVERYWHERE > 1000 * tune.PROBES


@fully
@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
def test_everything_is_measured_written_and_read(tmp_path, monkeypatch):
    few = evidence.schedules(processor())[:3]
    for module in (evidence, tune):
        monkeypatch.setattr(module, "schedules", lambda machine: few)
    monkeypatch.setattr(tune, "LEAST_S", 0.0)
    monkeypatch.setattr(evidence, "PATIENCE_S", 0.0)
    monkeypatch.setattr(evidence, "IMAGES", evidence.IMAGES[1:2])
    told = []
    made = gather(tmp_path / "kernels.json", 1, ["kernels", "networks"], tmp_path, told.append)
    found = read_results(tmp_path / "kernels.json")
    assert isinstance(found, Results)
    assert [shape.contraction for shape in found.shapes] == ["forward", "dgrad", "wgrad", made.shapes[3].contraction]
    assert [len(shape.measured_s) for shape in found.shapes] == [3] * 4
    assert all(min(shape.measured_s) == shape.measured_s[shape.best] for shape in found.shapes)
    assert [network.kernels for network in found.networks] == [4, 9]
    assert all(network.error < 1e-4 for network in found.networks)
    assert found.schedule(0) == few[0]
    assert any("learned in" in line for line in told)
    again = gather(tmp_path / "kernels.json", 1, ["networks"], tmp_path, told.append)
    assert again.shapes == found.shapes
    assert len(again.networks) == 2


def test_a_wrong_file_is_refused(tmp_path):
    (tmp_path / "wrong.json").write_text('{"command": "x"}')
    with pytest.raises(InputError, match=r"wrong\.json"):
        read_results(tmp_path / "wrong.json")
