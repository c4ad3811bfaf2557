"""Public files are recognised by header; units and conventions of each are turned into those of the forms."""

from pathlib import Path

import pytest

from calibration.published.tables import FORMATS, read_public
from sim.specs.fields import InputError

HEADER = {f.name: f.header for f in FORMATS}


def csv(folder: Path, name: str, *rows: str) -> Path:
    path = folder / f"{name}.csv"
    path.write_text("\n".join((HEADER.get(name, name), *rows)) + "\n", "utf-8")
    return path


def test_gemm_time_follows_from_the_achieved_rate(tmp_path: Path) -> None:
    row = "X,matmul,1,1000,2000,500,TN,False,bf16,,,,,,,0.5,200,100,here"
    samples = read_public([csv(tmp_path, "bf16 efficiencies", row)]).of("X", "gemm", "forward")
    assert samples.seconds.tolist() == pytest.approx([2e9 / 100e12])
    assert samples.family == ("500x1000x2000",)


def test_the_three_gemms_of_a_layer_are_one_family(tmp_path: Path) -> None:
    rows = [
        f"X,matmul,1,{shape},{layout},False,bf16,,,,,,,0.5,200,100,here"
        for shape, layout in (("4096,512,1024", "TN"), ("4096,1024,512", "NN"), ("512,1024,4096", "NT"))
    ]
    found = read_public([csv(tmp_path, "bf16 efficiencies", *rows)])
    assert len({found.of("X", "gemm", d).family for d in ("forward", "dgrad", "wgrad")}) == 1


def test_attention_counts_half_the_flop_in_the_same_time(tmp_path: Path) -> None:
    row = "X,sdp_bwd,1,,,,,,,,4096,8,8,128,128,1,200,100,here"
    samples = read_public([csv(tmp_path, "bf16 efficiencies", row)]).of("X", "attention", "backward")
    full = 2.5 * 2 * 8 * 4096**2 * 256
    assert samples.seconds.tolist() == pytest.approx([full / 100e12])
    assert {k: v.tolist() for k, v in samples.inputs.items()} == {"flop": [full / 2], "seq": [4096], "rows": [32768]}


def test_vector_bytes_count_reads_and_writes(tmp_path: Path) -> None:
    rows = ("X,add,fp32,fwd,10,100,1,here", "X,ln,fp32,fwd,10,100,1,here")
    found = read_public([csv(tmp_path, "fp32 vector kernels", *rows)])
    assert found.of("X", "elementwise", "any").inputs["bytes"].tolist() == [12_000]
    assert found.of("X", "norm", "any").inputs["bytes"].tolist() == [8_000]


def test_attention_backward_is_the_difference(tmp_path: Path) -> None:
    text = "H,attention,{},128,1,FlashAttention-2,1024,1,2048,{},fp16,here,convention"
    path = csv(tmp_path, "attention rates", text.format("fwd", 100), text.format("fwd+bwd", 100))
    found = read_public([path])
    forward, backward = (found.of("H", "attention", d) for d in ("forward", "backward"))
    assert forward.seconds.tolist() == pytest.approx([2 * 2048 * 1024**2 / 100e12])
    assert backward.seconds.tolist() == pytest.approx([2.5 * forward.seconds[0]])


def test_a_kernel_in_two_files_is_refused(tmp_path: Path) -> None:
    row = "X,ln,fp32,fwd,1000,500,1.0,here"
    paths = [csv(tmp_path, "fp32 vector kernels", row), tmp_path / "more.csv"]
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(InputError, match="--from: got 'norm any on X in two files'; allowed: each kernel in one file"):
        read_public(paths)


def test_all_reduces_of_a_device_in_two_files_are_refused(tmp_path: Path) -> None:
    name = "all-reduce by size"
    cells = {"n_gpus": "8", "size_bytes": "1024", "out_of_place_us": "20", "source_ref": "here"}
    row = ",".join(cells.get(column, "1") for column in HEADER[name].split(","))
    paths = [csv(tmp_path, name, row), tmp_path / "more.csv"]
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(InputError, match="--from: got 'all-reduces of H100 in two files'; allowed: each device's"):
        read_public(paths)


def test_files_of_no_use_are_set_aside_with_a_reason(tmp_path: Path) -> None:
    found = read_public([csv(tmp_path, "fp32 GEMM")])
    assert "bf16" in found.set_aside["fp32 GEMM.csv"]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("some,other,header", "1,2,3", "fp32 vector kernels"),
        ("fp32 vector kernels", "X,add,fp32,fwd,10,100,fast,here", ":2.latency_ms"),
        ("fp32 vector kernels", "X,add,fp32,fwd,10,100,-1,here", "a positive number"),
        ("fp32 vector kernels", "X,conv,fp32,fwd,10,100,1,here", "one of add"),
        ("fp32 vector kernels", "X,add,fp32", "allowed: 8, as the header has"),
        ("bus bandwidths", "here,here,ring,[1]", "a JSON object"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, row: str, message: str) -> None:
    path = csv(tmp_path, name, row)
    with pytest.raises(InputError, match=message.replace("[", r"\[")) as caught:
        read_public([path])
    assert path.name in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        read_public([Path("nowhere.csv")])
