"""Profiles as files: both versions, and everything that a file may hold instead of one."""

import json
from typing import Any

import pytest

from sim.catalog import folder
from sim.costs.profile import Profile, load_profile, read_profile
from sim.specs.fields import InputError
from sim.specs.files import load_mapping
from tests.specs.test_device_file import OWN

SHIPPED = json.loads((folder("profiles") / "a100-pcie-80gb" / "profile.json").read_text("utf-8"))


def raw(**changed: Any) -> dict[str, Any]:
    return json.loads(json.dumps(SHIPPED)) | changed


def model(n: int = 0, **changed: Any) -> dict[str, Any]:
    made = raw()
    made["models"][n] |= changed
    return made


def old() -> dict[str, Any]:
    """Return a file as version 1 wrote it."""
    made = raw(schema_version=1)
    for held in made["models"]:
        for name in ("size", "bins", "outside_slope"):
            held.pop(name, None)
        held["parameters"] = {k: v for k, v in held["parameters"].items() if k not in OPTIONAL}
        held["cross_validation"].pop("n")
    return made


OPTIONAL = ("waves", "tile_m", "tile_n", "units", "spill", "c1")


def test_version_1_is_read_with_its_terms_switched_off() -> None:
    profile = read_profile(old(), "p.json")
    assert (profile.schema_version, profile.measured, profile.fingerprint) == (1, False, None)
    assert profile.values["gemm_forward_waves"] == 0
    assert profile.values["gemm_forward_rate"] == SHIPPED["models"][0]["parameters"]["rate"]
    assert profile.model_of(("gemm", "forward")).half_width(1e12) == 0


def test_optional_kernels_fall_back_on_the_required_ones() -> None:
    profile = read_profile(raw(), "p.json")
    assert profile.values["gelu_forward_bandwidth"] == profile.values["elementwise_any_bandwidth"]
    own = next(m for m in raw()["models"] if m["op"] == "elementwise")
    made = raw()
    made["models"].append(own | {"op": "gelu", "direction": "forward", "parameters": {"bandwidth": 5e11, "t0": 1e-6}})
    assert read_profile(made, "p.json").values["gelu_forward_bandwidth"] == 5e11


def test_the_first_model_of_the_profiles_data_type_is_read() -> None:
    made = raw(dtype="bfloat16")
    first = made["models"][0]
    other = first | {"dtype": "float32", "parameters": first["parameters"] | {"rate": 1e13}}
    slower = first | {
        "dtype": "bfloat16",
        "implementation": "other",
        "parameters": first["parameters"] | {"rate": 1e12},
    }
    made["models"] = [other, *made["models"], slower]
    assert read_profile(made, "p.json").values["gemm_forward_rate"] == first["parameters"]["rate"]


def test_a_version_from_the_future_is_named_whatever_else_is_there() -> None:
    with pytest.raises(InputError, match=r"schema_version: got 3; allowed: 1 or 2: a newer version") as caught:
        read_profile({"schema_version": 3, "models": "of another kind"}, "p.json")
    assert caught.value.path == "p.json.schema_version"


def test_a_model_that_stands_twice_is_named_with_both_places_and_its_key() -> None:
    made = raw()
    last = len(made["models"])
    made["models"].append(made["models"][2] | {"n_train": 7})
    key = " ".join(
        SHIPPED["models"][2].get(name, "") for name in ("op", "direction", "dtype", "implementation")
    ).strip()
    with pytest.raises(InputError, match=rf"^p\.json\.models\.{last}: got '{key}'; .*; models\.2 is of the same$"):
        read_profile(made, "p.json")
    made["models"][last] |= {"implementation": "another"}
    assert read_profile(made, "p.json").models[last].n_train == 7


def test_a_communicator_shape_that_stands_twice_is_named_with_both_places() -> None:
    kept = [SHARED, SHARED | {"n_out": 2}, SHARED | {"n_in": 4}]
    assert len(read_profile(raw() | {"contention": kept}, "p.json").contention) == 3
    twice = [*kept, SHARED | {"n_out": 2, "session": "y"}]
    told = r"^p\.json\.contention\.3: got 'n_in 8, n_out 2'; .*; contention\.1 is of the same$"
    with pytest.raises(InputError, match=told):
        read_profile(raw() | {"contention": twice}, "p.json")


FOUR = [[0.0] * 4] * 4
SHARED = {
    "n_in": 8, "n_out": 1, "matrix": FOUR, "form": "fluid-12", "mape": 1.0, "n": 9, "session": "x", "source": "x",
}  # fmt: skip
FIRST = SHIPPED["models"][0]
RATE, WIDTHS = "models.0.parameters.rate", "models.0.bins.0.half_widths"
MANY = {f"v{n}": "1" for n in range(51)}
ENDLESS = SHIPPED["collectives"] | {"intra_alpha": float("inf")}
SHRINKING = {"0.5": 2.0, "0.8": 1.0, "0.9": 3.0, "0.95": 4.0}


def rate(value: Any) -> dict[str, Any]:
    return model(parameters=FIRST["parameters"] | {"rate": value})


def widths(held: Any) -> dict[str, Any]:
    return model(bins=[{"from_size": 1.0, "n": 9, "half_widths": held}])


WRONG = {
    "no version": (raw(schema_version=None), "schema_version"),
    "version as text": (raw(schema_version="2"), "schema_version"),
    "version with a fraction": (raw(schema_version=2.0), "schema_version"),
    "version as a truth": (raw(schema_version=True), "schema_version"),
    "models as text": (raw(models="gemm"), "models"),
    "too many models": (raw(models=[SHIPPED["models"][0]] * 301), "models"),
    "no models": (raw(models=[]), "models"),
    "form of another kernel": (model(form="row-wise"), "models.0.parameters"),
    "unknown form": (model(form="__import__('os')"), "models.0.form"),
    "form as a list": (model(form=["gemm-pnorm"]), "models.0.form"),
    "symbol as a parameter": (model(parameters={"rate); import os": 1.0}), "models.0.parameters"),
    "parameter missing": (model(parameters={"rate": 1.0}), "models.0.parameters"),
    "parameter as text": (rate("1e14"), RATE),
    "parameter NaN": (rate(float("nan")), RATE),
    "parameter huge": (rate(1e300), RATE),
    "rate zero": (rate(0.0), RATE),
    "rate in TFLOP/s": (rate(240.0), RATE),
    "bandwidth of nothing": (model(parameters=FIRST["parameters"] | {"bandwidth": 1e-9}), f"{RATE[:-4]}bandwidth"),
    "more than all saved": (model(parameters=FIRST["parameters"] | {"waves": 1.01}), f"{RATE[:-4]}waves"),
    "knee below a sum": (model(parameters=FIRST["parameters"] | {"p": 0.99}), f"{RATE[:-4]}p"),
    "parameter nested": (model(parameters={"rate": {"rate": 1.0}}), RATE),
    "op with markup": (model(op="<script>"), "models.0.op"),
    "domain turned round": (model(domain={"m": [5.0, 1.0]}), "models.0.domain.m"),
    "domain of no input": (model(domain={"columns": [1.0, 2.0]}), "models.0.domain.columns"),
    "domain of three": (model(domain={"m": [1.0, 2.0, 3.0]}), "models.0.domain.m"),
    "half-widths shrink": (widths(SHRINKING), WIDTHS),
    "levels missing": (widths({"0.5": 2.0}), WIDTHS),
    "bins out of order": (model(bins=list(reversed(FIRST["bins"] * 2))), "models.0.bins"),
    "held out for what": (model(held_out={"never": FIRST["cross_validation"]}), "models.0.held_out.never"),
    "unknown key": (raw(extra=1), "extra"),
    "contention of three streams": (raw(contention=[SHARED | {"matrix": [[0.0] * 3] * 3}]), "contention.0.matrix"),
    "contention by another form": (raw(contention=[SHARED | {"form": "x"}]), "contention.0.form"),
    "fingerprint as text": (raw(fingerprint="H100"), "fingerprint"),
    "versions by the thousand": (raw(fingerprint={"versions": MANY}), "fingerprint.versions"),
    "units with code": (raw(units={"time": 3}), "units.time"),
    "collectives infinite": (raw(collectives=ENDLESS), "collectives.intra_alpha"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_one_clear_error_for_what_is_wrong(name: str) -> None:
    data, path = WRONG[name]
    with pytest.raises(InputError) as caught:
        read_profile(data, "p.json")
    assert caught.value.path.startswith(f"p.json.{path}"), caught.value
    assert caught.value.allowed
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema_version": 2', "\x00", "[" * 5000, '{"models": [' + "0," * 60_000 + "0]}"]
)
def test_truncated_and_hostile_files_are_one_error(tmp_path, text: str) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(InputError):
        load_profile(str(tmp_path))


def test_text_that_would_reach_a_terminal_as_commands_is_told_with_its_file(tmp_path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(raw(name="\x1b[31m")))
    with pytest.raises(InputError, match=rf"^{tmp_path}/profile\.json\.name: "):
        load_profile(str(tmp_path))


def test_every_cut_of_a_file_is_refused(tmp_path) -> None:
    whole = json.dumps(SHIPPED)
    for end in range(0, len(whole) - 1, len(whole) // 12):
        (tmp_path / "profile.json").write_text(whole[:end])
        with pytest.raises(InputError):
            load_profile(str(tmp_path))


def test_a_whole_version_2_profile_survives_the_way_to_a_file_and_back(tmp_path) -> None:
    made = raw(
        fingerprint={"vendor": "x", "name": "y", "cores": 4, "versions": {"torch": "2.13.0"}, "clocks": {"sm_hz": 1e9}},
        session="abc",
        contention=[SHARED | {"matrix": [[0.0, 0.1, 0.2, 0.3]] + [[0.0] * 4] * 3}],
        units={"time": "s"},
    )
    (tmp_path / "profile.json").write_text(json.dumps(made))
    profile = load_profile(str(tmp_path))
    assert isinstance(profile, Profile)
    assert profile.measured
    assert profile.contention[0].matrix[0][3] == 0.3
    assert load_mapping(tmp_path / "profile.json") == made


def test_a_folder_and_a_device_file_are_read_once_and_again_when_changed(tmp_path) -> None:
    raw = load_mapping(folder("profiles") / "h100-sxm-80gb" / "profile.json")
    file, own = tmp_path / "profile.json", str(tmp_path)
    file.write_text(json.dumps(raw))
    first = load_profile(own)
    assert load_profile(own) is first
    assert load_profile(own, "library") is load_profile(own, "library")
    file.write_text(json.dumps(raw | {"name": "another one"}))
    assert load_profile(own).name == "another one"
    assert load_profile(own, "library").name == "another one"
    (tmp_path / "learned.json").write_text("{")
    with pytest.raises(InputError, match=r"learned\.json"):
        load_profile(own)

    file = tmp_path / "mine.json"
    file.write_text(json.dumps(OWN))
    derived = load_profile(str(file))
    assert load_profile(str(file)) is derived
    file.write_text(json.dumps(OWN | {"memory_bytes_per_s": 2.4e12}))
    assert load_profile(str(file)).values["gemm_forward_bandwidth"] != derived.values["gemm_forward_bandwidth"]
