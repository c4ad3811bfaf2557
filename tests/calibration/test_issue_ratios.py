"""What Megatron-Core's and compiled layers take to issue beside plain ones."""

import sys
from shutil import which

import pytest
import typer

from calibration.issue_ratios import HEIGHTS, WAYS, main, measure, ratios
from sim.costs.layers.issue import EXPERTS_ISSUE, MEGATRON_ISSUE
from sim.specs.fields import InputError


def test_ratios_are_of_layers_and_of_what_is_there_without_them():
    """Forward 4 and backward 2 times as long a layer, and ends 3 times: 2 + 1 beside 0.5 + 0.5."""
    layer = {(True, "forward"): 1.0, (True, "backward"): 2.0}
    layer |= {(False, "forward"): 4.0, (False, "backward"): 4.0}
    ends = {(True, way): 0.5 for way in WAYS} | {(False, "forward"): 2.0, (False, "backward"): 1.0}
    seconds = {(*key, n): n * layer[key] + ends[key] for key in layer for n in HEIGHTS}
    assert ratios(seconds) == pytest.approx({"forward": 4.0, "backward": 2.0, "ends": 3.0})
    assert set(ratios(seconds)) == set(MEGATRON_ISSUE) == {*EXPERTS_ISSUE, "ends"}


def test_without_megatron_core_it_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron.core", None)
    with pytest.raises(InputError, match="megatron-core"):
        measure()


def test_another_network_is_refused():
    with pytest.raises(InputError, match=r"megatron, megatron-fused, megatron-experts, compiled"):
        measure("torchscript")


def test_the_command_says_so_without_a_traceback(capsys):
    with pytest.raises(typer.Exit) as caught:
        main("torchscript")
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err.startswith("error: network: got 'torchscript'; allowed: megatron,")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.skipif(which("g++") is None, reason="needs a C++ compiler")
def test_a_layer_compiled_for_itself_still_takes_its_wrappers(monkeypatch):
    monkeypatch.setattr("calibration.issue_ratios.HEIGHTS", (1, 3))
    monkeypatch.setattr("calibration.issue_ratios.ROUNDS", 10)
    found = measure("compiled")
    assert 0.1 < found["forward"] < 10 and 0.1 < found["backward"] < 10
