"""The samples of a measuring session become the rest of its profile folder: `profile.json` and `report.html`.

Of the samples, those with `use` = fit train the models; random and larger ones are never fitted and scored apart.
Flagged samples (the sentinel moved, or others were at work) are counted and left out, but where a kernel has too few
others (`calibration.undisturbed`).
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from calibration.collectives import OPERATIONS
from calibration.collectives import QUANTILE as BACKENDS
from calibration.collectives import Measured as Collective
from calibration.collectives import fit as fit_links
from calibration.concurrent import FILE as CONTENTION
from calibration.contention import fit_device
from calibration.device import DRIVER_NAMES
from calibration.execute.limits import Device
from calibration.fit import Fit, predict, rms_log_error_of_sums, scores
from calibration.fitted import Family
from calibration.guards import MOST_DRIFT
from calibration.intervals import coverage, outside_slope, size_bins
from calibration.issue import with_issue
from calibration.kernels.convolution import product
from calibration.memory import FILE as MEMORY
from calibration.memory import load_memory, profile_memory
from calibration.narrow import apart, with_narrow
from calibration.neighbours import OPERATION, shares
from calibration.published.tables import read_public
from calibration.samples import LEAST, Samples, fitted_as, preference
from calibration.stand_ins import stand_ins
from calibration.store import SAMPLES, SESSION, read_samples
from calibration.terms import base_term, measured_terms
from calibration.undisturbed import taken
from calibration.variants import Term, choose
from calibration.whole import wholes
from sim.costs import kernels
from sim.costs.collectives import PARAMETERS
from sim.costs.contention import Contention
from sim.costs.fitted import Errors, KernelModel, Use, all_six_digits, six_digits
from sim.costs.profile import Fingerprint, Memory, Profile, load_profile, profile_text, read_profile
from sim.specs.device import Device as DeviceFile
from sim.specs.fields import InputError, read
from sim.specs.files import load_mapping, write_atomically
from sim.units import MIB

Row = Mapping[str, Any]
Note = Callable[[str], Any]
Terms = Callable[[str, Mapping[str, Samples], Fingerprint], list[list[Term]]]
"""What fits of a form try beside its base terms, as `measured_terms`."""
Key = tuple[str, str]

TOGETHER = dict.fromkeys(("gemm", "convolution"), ("forward", "dgrad", "wgrad"))
"""Directions that share all parameters but the rate, and folds."""

MODEL = {"layers", "hidden", "heads", "ffn", "seq", "micro_batch"}
NEEDED: Mapping[str, set[str]] = {
    "convolution": {"batch", "pixels", "inputs", "outputs", "kernel"},
    "collective": {"n", "size"},
    OPERATION: {"processes", "round"},
    "block": MODEL,
    "step": MODEL,
    "pass": {"layers"},
    "gaps": {"layers"},
}
"""Sizes that samples of an operation, or in a direction, must state; those of others are left out without them."""

UNITS = {"time": "s", "rate": "FLOP/s", "bandwidth": "bytes/s", "size": "FLOP or bytes"}
ASSUMED_COLLECTIVES = dict(zip(PARAMETERS, (0.5, 0.5, 0.5, 5e-5, 1e-5, 5e-5), strict=True))


def build_profile(folder: Path, progress: Note | None = None) -> Profile:
    """Return the profile of the session in `folder`, and write `profile.json` and `report.html` beside its samples.

    `progress` hears what is being fitted.

    Raises:
        InputError: the folder holds no session, its samples cannot be read, or too few kernels were measured.
    """
    told = progress or (lambda _: None)
    session = load_mapping(folder / SESSION)
    fingerprint = read(Fingerprint, session.get("fingerprint", {}), "session.json.fingerprint")
    rows = read_rows(folder / SAMPLES)
    dtype = "bfloat16" if "cuda" in fingerprint.versions else "float32"
    everything = session.get("despite_load") is True
    if dtype != "float32" and not everything:
        rows = [_at_its_clock(row) for row in rows]
    kept = rows if everything else taken(rows, _kernel)
    chosen = {id(row) for row in kept}
    flagged = [row for row in rows if row["flagged"] and id(row) not in chosen]
    families = _with_narrow(fit_families(kept, flagged, fingerprint, dtype, told), kept, dtype)
    links = _links(folder, kept, fingerprint)
    beside = shares([row for row in kept if row["op"] == OPERATION])
    models = [family.model for family in families]
    models += stand_ins({model.key: model for model in reversed(models)}, dtype, _counts(kept, dtype))
    profile = replace(_profile(folder, session, fingerprint, dtype, families, models, links), beside=beside)
    profile = with_issue(profile, kept)
    write_atomically(folder / "profile.json", profile_text(profile))
    told("report")
    if find_spec("plotly"):
        from calibration.report import write_report  # noqa: PLC0415 - a machine to be measured may lack plotly

        kind: Device = "cuda" if dtype != "float32" else "cpu"
        known = kind == "cpu" or (folder / "device.json").exists()
        write_report(
            folder / "report.html", profile, families, flagged, list(wholes(folder, kept, kind)) if known else []
        )
    return profile


POWER_DRIFT = 0.07
"""Of a GPU's sentinel, a product that draws all power it may: under its limit the device has states some per cent
apart. 71 kernels above 100 us of an H200 that were measured in two of them differ by 1.2 % in the median."""


def _at_its_clock(row: Row) -> Row:
    """Return a GPU's row, flagged no longer if nothing but the clock under the power limit was another: a sentinel as
    it should be did not flag it."""
    drift = abs((row["sentinel_ratio"] or inf) - 1)
    return {**row, "flagged": row["flagged"] and not MOST_DRIFT < drift <= POWER_DRIFT}


def _links(folder: Path, rows: Sequence[Row], fingerprint: Fingerprint) -> tuple[dict[str, float], str]:
    """Return collective parameters fitted to the session's own collectives, those of the catalog's profile of such a
    device, or assumed ones, and their source."""
    own = [row for row in rows if row["op"] == "collective"]
    if len({row["shape"]["size"] for row in own}) < LEAST:
        if fingerprint.name in DRIVER_NAMES:
            known = load_profile(DRIVER_NAMES[fingerprint.name])
            return dict(known.collectives), known.collectives_source
        return ASSUMED_COLLECTIVES, "assumed, not measured in this session: half of the links' rate, 50 us to start"
    rate = read(DeviceFile, load_mapping(folder / "device.json"), "device.json").intra_bytes_per_s.value
    made = [
        Collective(
            row["direction"], int(row["shape"]["n"]), int(row["shape"]["size"]), row["implementation"],
            (row["t_s"],), 1, 0.0,
        )
        for row in own
    ]  # fmt: skip
    found = fit_links(made, rate)
    told = ", ".join(f"{name} {of.mape:.0f} %" for name, of in found.errors.items())
    text = f"measured, {made[0].backend} between {max(m.n for m in made)} processes; each size held out, mape: {told}"
    return all_six_digits(found.parameters), text


def read_rows(path: Path) -> list[Row]:
    """Return the rows of `samples.parquet` with `shape` as a mapping of numbers.

    Raises:
        InputError: the file is no table of samples, or a value is not what its column holds.
    """
    return [_checked(row, f"{path}[{n}]") for n, row in enumerate(read_samples(path))]


def _checked(row: dict[str, Any], place: str) -> Row:
    try:
        shape = json.loads(row["shape"])
    except (TypeError, ValueError, RecursionError):
        shape = None
    usable = isinstance(shape, dict) and all(
        isinstance(v, int | float) and (v == 0 or 1e-3 <= v <= 1e18) for v in shape.values()
    )
    if not usable:
        raise InputError(f"{place}.shape", row["shape"], "a JSON object of numbers, 0 or from 1e-3 to 1e18")
    for name in ("flop", "bytes"):
        if row[name] is not None and not 0 <= row[name] <= 1e24:
            raise InputError(f"{place}.{name}", row[name], "a number from 0 to 1e24, or none")
    if missing := sorted(NEEDED.get(row["op"], NEEDED.get(row["direction"], set())) - shape.keys()):
        raise InputError(f"{place}.shape", row["shape"], f"{', '.join(missing)} too")
    if row["op"] == "collective" and (row["direction"] not in OPERATIONS or row["implementation"] not in BACKENDS):
        allowed = f"one of {', '.join(OPERATIONS)} by one of {', '.join(BACKENDS)}"
        raise InputError(f"{place}.direction", (row["direction"], row["implementation"]), allowed)
    return {**row, "shape": {name: float(value) for name, value in shape.items()}}


def samples_of(rows: Sequence[Row], form: str) -> Samples:
    """Return rows of one kernel as the inputs of its form; `element` is the bytes of an operand's element."""
    names, sizes = kernels.FORMS[form].inputs, [_sizes(row) for row in rows]
    inputs = {name: np.array([size[name] for size in sizes]) for name in names}
    if "m" in inputs:
        inputs["element"] = np.array([row["shape"].get("item", 2.0) for row in rows])
    if "seq" in inputs and all("head_dim" in row["shape"] for row in rows):
        inputs["head_dim"] = np.array([row["shape"]["head_dim"] for row in rows])
    if (rows[0]["op"], rows[0]["direction"]) in kernels.BY_ROW and all("rows" in size for size in sizes):
        inputs["rows"] = np.array([size["rows"] for size in sizes])
    if all("channels" in size for size in sizes):
        inputs["channels"] = np.array([size["channels"] for size in sizes])
    first = rows[0]
    return Samples(
        "",
        first["op"],
        first["direction"],
        inputs,
        np.array([row["t_s"] for row in rows]),
        tuple(row["group"] for row in rows),
        first["implementation"],
    )


def fit_families(
    rows: Iterable[Row],
    flagged: Iterable[Row],
    fingerprint: Fingerprint,
    dtype: str,
    told: Note,
    terms: Terms = measured_terms,
) -> list[Family]:
    """Return every kernel that the simulator knows, fitted where it has samples enough, in order of preference."""
    held = places(rows, dtype)
    lost: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in flagged:
        lost[_place(row)] += 1
    made: list[Family] = []
    for op, implementation in dict.fromkeys(key[:2] for key in held):
        parts = {d: causal(held[o, i, d]) for o, i, d in list(held) if (o, i) == (op, implementation)}
        enough = {d: some for d, some in parts.items() if sum(row["use"] == "fit" for row in some) >= LEAST}
        together = [tuple(d for d in TOGETHER.get(op, ()) if d in enough)]
        alone = [(d,) for d in enough if d not in together[0]]
        for directions in [t for t in (*together, *alone) if t]:
            told(f"{op} {' '.join(directions)} ({implementation})")
            made += _fitted({d: enough[d] for d in directions}, fingerprint, dtype, lost, terms)
    return sorted(made, key=lambda family: _rank(family, fingerprint))


def places(rows: Iterable[Row], dtype: str, narrow: bool = False) -> dict[tuple[str, str, str], list[Row]]:
    """Return the rows of a data type, of products with narrow rows or others, by (op, implementation, direction)."""
    held: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    known = [row for row in rows if row["dtype"] == dtype and _known(row)]
    kept_apart = {id(row) for row in apart(known)}
    for row in known:
        if (id(row) in kept_apart) is narrow:
            held[_place(row)].append(row)
    return held


def _with_narrow(families: Sequence[Family], rows: Iterable[Row], dtype: str) -> list[Family]:
    """Return the families, those of products with what narrow rows cost, where samples of these are enough."""
    held = places(rows, dtype, narrow=True)
    models = {(f.model.op, f.model.implementation, f.model.direction): f.model for f in families}
    for op, name in dict.fromkeys(place[:2] for place in held):
        own = {d: models[op, name, d] for o, n, d in held if (o, n) == (op, name) and (op, name, d) in models}
        parts = {d: samples_of(held[op, name, d], model.form) for d, model in own.items()}
        models |= {(op, name, d): model for d, model in with_narrow(own, parts).items()}
    return [replace(f, model=models[f.model.op, f.model.implementation, f.model.direction]) for f in families]


def _counts(rows: Iterable[Row], dtype: str) -> dict[Key, int]:
    """Return how many samples there are to fit of each kernel, of the implementation that has most."""
    found: dict[Key, int] = {}
    for (op, _, direction), some in places(rows, dtype).items():
        n = sum(row["use"] == "fit" for row in some)
        found[op, direction] = max(n, found.get((op, direction), 0))
    return found


def _kernel(row: Row) -> tuple[str, ...]:
    return *_place(row), row["dtype"]


def _place(row: Row) -> tuple[str, str, str]:
    return row["op"], fitted_as(row["op"], row["implementation"]), row["direction"]


def causal(rows: list[Row]) -> list[Row]:
    """Return the rows of causal attention, which is what models train with, where there are enough of them."""
    masked = [row for row in rows if row["shape"].get("causal", 1.0) == 1.0]
    return masked if sum(row["use"] == "fit" for row in masked) >= LEAST else rows


def _known(row: Row) -> bool:
    key = row["op"], row["direction"]
    if key not in kernels.KERNELS and key not in kernels.FALLBACK:
        return False
    inputs = kernels.form_of(*key).inputs
    return all(_sizes(row).get(name, 0.0) > 0 for name in inputs)


def _sizes(row: Row) -> Mapping[str, float]:
    """Return a sample's shape, of a convolution that of its implicit product, which is what the simulator knows."""
    shape: Mapping[str, float] = row["shape"]
    return product(row["direction"], shape) if row["op"] == "convolution" else shape


def _rank(family: Family, fingerprint: Fingerprint) -> tuple[str, str, int, str]:
    name = family.model.implementation
    return family.model.op, family.model.direction, preference(name, fingerprint), name


def _fitted(
    parts: Mapping[str, Sequence[Row]],
    fingerprint: Fingerprint,
    dtype: str,
    lost: Mapping[tuple[str, str, str], int],
    terms: Terms,
) -> list[Family]:
    first = next(iter(parts.values()))[0]
    form = kernels.form_of(first["op"], first["direction"]).id
    by_use = {d: _by_use(some, form) for d, some in parts.items()}
    train = {d: uses["fit"] for d, uses in by_use.items()}
    chosen = choose(form, train, base_term(form, train), terms(form, train, fingerprint), ("rate",))
    found = []
    for direction, fit in chosen.fits.items():
        key = first["op"], _place(first)[1], direction
        others = {use: s for use, s in by_use[direction].items() if use != "fit"}
        model = _model(fit, by_use[direction], key[1], dtype, lost.get(key, 0), chosen.note)
        fitted = [row for row in parts[direction] if row["use"] == "fit"]
        model = replace(model, n_disturbed=sum(row["flagged"] for row in fitted) or None)
        work = {name: np.array([float(row[name] or 0.0) for row in fitted]) for name in ("flop", "bytes")}
        shown = coverage(fit, train[direction])
        found.append(Family(model, train[direction], fit, others, shown, work["flop"], work["bytes"]))
    return found


def _by_use(rows: Sequence[Row], form: str) -> dict[str, Samples]:
    uses: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        uses[row["use"]].append(row)
    return {use: samples_of(some, form) for use, some in uses.items() if use in ("fit", "random", "larger")}


def _model(
    fit: Fit, by_use: Mapping[str, Samples], implementation: str, dtype: str, flagged: int, note: str
) -> KernelModel:
    form, parameters, samples = kernels.FORMS[fit.form], fit.solution.parameters, by_use["fit"]
    inputs = {name: values for name, values in samples.inputs.items() if name in form.inputs}
    domain = {name: [six_digits(values.min()), six_digits(values.max())] for name, values in inputs.items()}
    bins = size_bins(fit, samples)
    expected = {use: predict(fit.form, held.inputs, parameters) for use, held in by_use.items() if use != "fit"}
    width = float(np.quantile(np.abs(np.log(samples.seconds / fit.predicted)), 0.9))
    held_out: dict[Use, Errors] = {}
    for use in ("random", "larger"):
        if use in by_use:
            held_out[use] = hold_out(expected[use], by_use[use], width)
    return KernelModel(
        op=samples.op,
        direction=samples.direction,
        form=fit.form,
        dtype=dtype,
        implementation=implementation,
        parameters=all_six_digits({name: v for name, v in parameters.items() if name in form.names}),
        standard_errors=all_six_digits(fit.solution.standard_errors),
        domain=domain,
        n_train=len(samples),
        n_test=len(samples),
        n_flagged=flagged,
        cross_validation=fit.scores.errors(len(samples)),
        held_out=held_out,
        log_residual_quantiles=all_six_digits(fit.residual_quantiles),
        size="bytes" if "bytes" in form.inputs else "flop",
        bins=bins,
        outside_slope=outside_slope(domain, bins, by_use.get("larger"), expected.get("larger")),
        status="fitted",
        source=f"measured, {samples.source}; {note}",
    )


def hold_out(predicted: Any, samples: Samples, half_width90: float) -> Errors:
    """Return the errors of samples that were never fitted, with the coverage of an interval of log time."""
    inside = np.abs(np.log(samples.seconds / predicted)) <= half_width90
    return scores(predicted, samples.seconds, float(np.mean(inside))).errors(len(samples))


def _profile(
    folder: Path,
    session: Mapping[str, Any],
    fingerprint: Fingerprint,
    dtype: str,
    families: Sequence[Family],
    models: Sequence[KernelModel],
    links: tuple[dict[str, float], str],
) -> Profile:
    raw = {
        "schema_version": 2,
        "name": DRIVER_NAMES.get(fingerprint.name, fingerprint.name) or "measured device",
        "method": session.get("method"),
        "date": session.get("date"),
        "estimate": False,
        "models": models,
        "collectives": links[0],
        "collectives_source": links[1],
        "memory": _memory(folder, dtype),
        "contention": _contention(folder, str(session.get("session"))),
        "kernel_sigma_log": _sums_sigma(families),
        "scaling_sigma_log": 0.0,
        "uncertainty_source": "conformal intervals of each kernel family by size (bins of the models); kernel: RMS log "
        "error of the summed held-out times of 12 random products; own samples, nothing scaled",
        "fingerprint": fingerprint,
        "session": session.get("session"),
        "dtype": dtype,
        "units": UNITS,
    }
    return read_profile(raw, str(folder / "profile.json"))


def _sums_sigma(families: Sequence[Family]) -> float:
    every = [family for family in families if family.model.op == "gemm"]
    if not every:
        return 0.0
    products = [family for family in every if family.model.implementation == every[0].model.implementation]
    predicted = np.concatenate([family.fit.predicted for family in products])
    return six_digits(rms_log_error_of_sums(predicted, np.concatenate([family.samples.seconds for family in products])))


def _contention(folder: Path, session: str) -> list[Contention]:
    """Return the matrices that fit the session's own `contention.csv`, none without one that says enough."""
    if not (folder / CONTENTION).exists():
        return []
    return fit_device(each for each in read_public([folder / CONTENTION]).together if each.session == session)


def _memory(folder: Path, dtype: str) -> Memory:
    """Return the session's own constants of device memory (`memory.json`), what it did not measure as assumed."""
    gpu = dtype != "float32"
    found = load_memory(folder / MEMORY)
    assumed = Memory(
        context_bytes=6e8 if gpu else 0.0,
        communicator_bytes=1e9 if gpu else 0.0,
        workspace_bytes=float((2 * 32 + 32) * MIB) if gpu else 0.0,
        reserved_over_allocated=1.065 if gpu else 1.0,
        reserved_sigma_log=0.07 if gpu else 0.0,
        allocated_sigma_log=0.03,
        source="assumed, not measured in this session"
        + ("; as in the shipped profiles of GPUs" if gpu else "; tensors of a CPU lie in main memory as they are"),
    )
    return profile_memory(found, assumed) if found else assumed
