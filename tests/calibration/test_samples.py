"""Which implementation of a kernel the simulator reads."""

import pytest

from calibration.samples import preference, takes_cudnn
from sim.costs.profile import Fingerprint

H200 = {"torch": "2.11.0+cu130", "cudnn": "91900"}


@pytest.mark.parametrize(
    ("name", "versions", "taken"),
    [
        ("NVIDIA H200", H200, True),
        ("NVIDIA B200", H200, True),
        ("NVIDIA H100 80GB HBM3", {"torch": "2.10.0+cu128", "cudnn": "91002"}, False),
        ("NVIDIA H200", {"torch": "2.9.1+cu130", "cudnn": "91900"}, False),
        ("NVIDIA A100-SXM4-80GB", H200, False),
        ("NVIDIA H200", {}, False),
    ],
)
def test_cudnns_attention_comes_first_where_pytorch_takes_it(name: str, versions: dict[str, str], taken: bool) -> None:
    held = Fingerprint(name=name, versions=versions)
    assert takes_cudnn(held) is taken
    assert (min(("flash", "cudnn", "math"), key=lambda how: preference(how, held)) == "cudnn") is taken
