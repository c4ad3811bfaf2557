"""What is measured of recurrent layers: by hand, on two tiny layers, written and read."""

from dataclasses import replace

import pytest

from calibration.host import HostStopwatch
from calibration.kernels.family import Machine
from calibration.layers import evidence
from calibration.layers.evidence import gather
from calibration.layers.layouts import CHOICES
from calibration.layers.lstm import Sizes
from calibration.layers.lstm_bench import ONCE, Where, drawn, probes
from calibration.layers.lstm_results import Layer, held, read_recurrences, words
from calibration.taskmap.native import compiler
from sim.specs.fields import InputError

LAYER = Layer(
    cell="gru", seq=2, batch=3, inputs=5, hidden=4, predicted_s=[3.0, 1.0, 2.0, 4.0], measured_s=[8.0, 5.0, 4.0, 9.0],
    default_s=15.0, library_s=2.5, error=1e-7,
)  # fmt: skip


def test_a_layer_by_hand():
    assert (LAYER.picked, LAYER.lost, LAYER.of_default, LAYER.of_library) == (1, 0.25, 3.0, 0.5)
    assert LAYER.label == "gru 2 x 3, 5 to 4"
    good = replace(LAYER, measured_s=[8.0, 4.1, 4.0, 9.0])
    assert (held([LAYER]), held([good]), held([LAYER, good])) == (0.0, 1.0, 0.5)
    assert words([1.0, 4.0]) == "2.00 in the geometric mean, 1.00 to 4.00"


@pytest.mark.parametrize("gpu", [False, True])
def test_sizes_are_drawn_once_for_all_and_none_is_a_probe(gpu):
    made = list(drawn(12, gpu))
    assert made == list(drawn(12, gpu)) != list(drawn(12, gpu, seed=1))
    assert {cell for cell, _ in made} == {"lstm", "gru"}
    assert all(sizes.hidden % 32 == 0 for _, sizes in made[1::2])
    assert not {sizes for _, sizes in made} & {sizes for cell in ("lstm", "gru") for sizes in probes(cell, gpu)}


@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
def test_everything_is_measured_written_and_read(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "probes", lambda cell, gpu: (Sizes(3, 2, 8, 8), Sizes(2, 8, 4, 16)))
    told = []
    where = Where(Machine("cpu", 2**30), HostStopwatch(), method=ONCE)
    tiny = [("lstm", Sizes(3, 2, 5, 7)), ("gru", Sizes(2, 3, 4, 8, 3))]
    monkeypatch.setattr(evidence, "drawn", lambda number, gpu: iter(tiny))
    made = gather(tmp_path / "recurrent.json", 2, where, told.append)
    found = read_recurrences(tmp_path / "recurrent.json")
    assert found.choices == ["rows", "rows by step", "columns", "columns by step"]
    assert [(layer.cell, layer.hidden) for layer in found.layers] == [("lstm", 7), ("gru", 8)]
    assert all(layer.error < 1e-5 and layer.default_s > 0 < layer.library_s for layer in found.layers)
    assert all(len(layer.measured_s) == len(CHOICES) for layer in found.layers)
    assert [costs.cell for costs in found.costs] == ["lstm", "gru"]
    assert len(told) == 4 and "of 2 picks within 5\u00a0% of the fastest choice" in made.lines()[3]


def test_a_wrong_file_is_refused(tmp_path):
    (tmp_path / "wrong.json").write_text('{"command": "x"}')
    with pytest.raises(InputError, match=r"wrong\.json"):
        read_recurrences(tmp_path / "wrong.json")
