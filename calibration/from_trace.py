"""A profile from a torch profiler trace of the user's own run.

Kernel families of which the trace shows enough shapes are fitted as those of a calibration are. Of fewer shapes nothing
but the level is known: the times of a base profile are scaled by the median ratio; of no shape at all, by the median
over the other families. Host times of a CPU trace hold the profiler's own cost, a few microseconds a call: the shortest
of equal calls counts there, the median on a GPU.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
from rich.console import Console

from calibration.errors import summary, table
from calibration.fit import predict, rms_log_error_of_sums
from calibration.fitted import Family
from calibration.folder import alone
from calibration.measured import Row, fit_families, samples_of
from calibration.own_site import left_behind
from calibration.report import write_report
from calibration.samples import Floats, Samples
from calibration.store import SAMPLES, SESSION, commit, parquet
from calibration.terms import measured_terms
from calibration.trace_kernels import Seen, kernels, without_sizes
from calibration.trace_tree import read_tree
from calibration.variants import Term
from sim.catalog import names, profiled_device
from sim.costs.fitted import all_six_digits, six_digits
from sim.costs.kernels import FALLBACK, KERNELS, TIMED_ALONE, form_of, in_a_step
from sim.costs.profile import ADAM_TENSORS, Fingerprint, KernelModel, Profile, load_profile, profile_name, profile_text
from sim.costs.usage import RATES, TIMES
from sim.specs.catalog import device, is_device_file
from sim.specs.fields import InputError
from sim.specs.files import print_json, write_atomically

FEW_RATIOS, SCATTER = 3, 0.3
"""With fewer families in a trace, how far the level of one is from that of others (log) is assumed."""

ENOUGH = 6
"""Distinct shapes that a fit and its cross-validation need; with fewer the level alone is taken."""

REPORT = "report.html"
LISTS = "torch tells no shapes of lists of more than 30 tensors: parameter groups of at most 30 each would show them"

Key = tuple[str, str]


@dataclass(frozen=True)
class Traced:
    """The profile of a trace, where it was written, the kernels recognised by family, and what was not fitted, why.

    device: of the base, whose peaks, memory and links a job takes beside the profile; empty where the base names none.
    """

    profile: Profile
    folder: Path
    recognised: Mapping[str, int]
    not_fitted: Mapping[str, str]
    device: str

    @property
    def told(self) -> str:
        """Where the report is, and what a job says to be of this profile."""
        report = f"{self.folder / REPORT}; " if (self.folder / REPORT).is_file() else ""
        name = profile_name(self.folder)
        if not self.device:
            return f"{report}cluster: {{device: ..., profile: {name}}} with the traced device in place of ..."
        beside = "its peaks, memory and links are used: a trace shows none"
        return f"{report}cluster: {{device: {self.device}, profile: {name}}}; device of the base: {beside}"


def calibrate_trace(trace: Path, out: Path, base: str | None = None) -> Traced:
    """Write the profile folder `out` (profile.json, samples.parquet, report.html) from a trace (.json or .json.gz).

    base: the profile that gives what the trace does not show; of a CPU's trace by default the catalog's `cpu`.

    Raises:
        InputError: not such a trace, one without shapes or without known kernels, or with impossible times; no base,
            or one of another kind of device; `out` holds the samples of a measuring session, is written by another
            process, or cannot be written.
    """
    with alone(out):
        if (out / SESSION).exists():
            raise InputError("--out", str(out), f"a folder without {SESSION}, whose samples would be lost")
        return _calibrated(trace, out, base)


def _calibrated(trace: Path, out: Path, base: str | None) -> Traced:
    recorded = read_tree(trace)
    seen = kernels(recorded)
    if not seen:
        raise InputError(str(trace), "a trace without known kernels", "one of training steps (products, norms, ...)")
    name, held = _base(base, recorded.on_device)
    rows = samples(seen, recorded.on_device)
    traced = device_of(name, held)
    versions = {"cuda": "unknown"} if recorded.on_device else {}
    cores = round(device(traced).sms.value) if recorded.on_device and traced else 1
    fingerprint = Fingerprint(versions=versions, cores=cores, threads=1)
    try:
        profile, families, why = fitted(rows, held, out.resolve().name, fingerprint)
    except InputError as error:
        told = f"kernels of which no model can be made ({error})"
        raise InputError(str(trace), told, "sizes and times of real ones") from None
    if without_sizes(recorded):
        why["adam any"] = f"{why.get('adam any', 'fitted without some steps')}; {LISTS}"
    _write(out, rows, profile, families)
    counts: dict[str, int] = defaultdict(int)
    for one in seen:
        counts[f"{one.op} {one.direction}"] += 1
    return Traced(profile, out, dict(sorted(counts.items())), why, traced)


def trace_command(trace: Path, out: Path, base: str | None, as_json: bool) -> None:
    """Do what `trainsim calibrate --trace` does: write the profile, print its errors, say what was not fitted."""
    progress = Console(stderr=True)
    with progress.status("reading and fitting"):
        found = calibrate_trace(trace, out, base)
    for line in left_behind(out, base or ""):
        progress.print(line, markup=False, highlight=False, soft_wrap=True)
    for name, why in found.not_fitted.items():
        progress.print(f"{name}: {why}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        (fit,) = summary([found.profile], [out / "profile.json"])["profiles"]
        told = {"recognised": dict(found.recognised), "not_fitted": dict(found.not_fitted), "device": found.device}
        print_json(fit | told)
    else:
        Console().print(table([found.profile]))
        progress.print(found.told, markup=False, highlight=False, soft_wrap=True)


def device_of(base: str, held: Profile) -> str:
    """Return the device that a base is of as a job names it, empty where none is known."""
    described = Path(base) / "device.json"
    if described.is_file():
        return str(described)
    named = map(profiled_device, (base, held.name, held.base or ""))
    return next((name for name in named if name in names("devices") or is_device_file(name)), "")


def _base(name: str | None, on_device: bool) -> tuple[str, Profile]:
    """Return the base as it is named, and its profile."""
    if name is None and not on_device and "cpu" in names("profiles"):
        name = "cpu"
    if name is None:
        raise InputError("--base", None, "required: the catalog profile that is nearest to the traced device")
    try:
        held = load_profile(name)
    except InputError as error:
        raise InputError("--base", name, error.allowed) from None
    host = held.fingerprint is not None and "cuda" not in held.fingerprint.versions
    if host and on_device:
        raise InputError("--base", name, "a GPU's profile: the trace shows kernels of one")
    if not host and not on_device:
        shown = "the trace shows no kernel of a GPU: record with ProfilerActivity.CUDA too"
        raise InputError("--base", name, f"a processor's profile, as cpu ({shown})")
    return name, held


def samples(seen: Sequence[Seen], on_device: bool) -> list[dict[str, Any]]:
    """Return a row of `samples.parquet` for every distinct kernel and shape, in the order of appearance."""
    calls: dict[tuple[Any, ...], list[Seen]] = defaultdict(list)
    for one in seen:
        key = one.op, one.direction, one.dtype, one.implementation, one.layout, tuple(one.shape.items())
        calls[key].append(one)
    stamp = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "session": uuid4().hex[:16], "commit": commit()}
    return [_row(each, on_device) | stamp for each in calls.values()]


def _row(calls: Sequence[Seen], on_device: bool) -> dict[str, Any]:
    one, times = calls[0], np.array([c.seconds for c in calls])
    shape = " ".join(f"{k}={v:g}" for k, v in one.shape.items())
    least, low, middle, high = (float(np.quantile(times, q)) for q in (0.0, 0.1, 0.5, 0.9))
    return {
        "op": one.op,
        "direction": one.direction,
        "dtype": one.dtype,
        "layout": one.layout,
        "implementation": one.implementation,
        "group": _group(one, shape),
        "use": "fit",
        "id": "/".join((one.op, one.direction, one.dtype, one.implementation, one.layout, shape)),
        "calls": 1,
        "t_s": middle if on_device else least,
        "t_min_s": least,
        "t_p10_s": low,
        "t_p90_s": high,
        "n": len(calls),
        "launches": one.launches,
        "flop": one.flop,
        "bytes": one.bytes,
        "shape": json.dumps(dict(one.shape)),
        "flagged": False,
    }


def _group(one: Seen, shape: str) -> str:
    """Return what samples share that are held out together: the three products of one layer turn the same sizes."""
    if one.op != "gemm":
        return shape
    sizes = sorted(one.shape[name] for name in "mnk")
    return f"{'x'.join(map(str, sizes))} batch={one.shape['batch']}"


def fitted(
    rows: Sequence[Row], base: Profile, name: str, traced: Fingerprint
) -> tuple[Profile, list[Family], dict[str, str]]:
    """Return the profile of rows of samples on top of `base`, what was fitted, and why other kernels were not.

    traced: whether CUDA ran, and the multiprocessors that fits of whole waves count on.
    """
    on_device = "cuda" in traced.versions
    dtypes = [str(row["dtype"]) for row in rows if row["op"] != "adam"] or ["float32"]
    dtype = max(dict.fromkeys(dtypes), key=dtypes.count)  # of several the first: not what a set's order makes of it
    # Adam's weights and moments are in fp32 whatever the type of the passes: its bytes are the simulator's.
    mine = [
        {**row, "dtype": dtype, "t_s": row["t_s"] if on_device else _of_few_tensors(row, base)}
        if row["op"] == "adam"
        else row
        for row in rows
    ]
    shown = [{**row, "shape": _shape(row)} for row in mine if row["dtype"] == dtype]
    parts = {key: of for key in (*KERNELS, *FALLBACK) if (of := _of(shown, key))}
    shapes = {key: len({str(row["shape"]) for row in shown if _key(row) == key}) for key in parts}
    many = [row for row in shown if shapes.get(_key(row), 0) >= ENOUGH]
    families = fit_families(many, [], traced, dtype, lambda _: None, in_steps)
    enough = {family.model.key: family.model for family in reversed(families)}
    models, why = _models(parts, shapes, enough, base)
    totals = [_predicted(models[key], part) for key, part in parts.items()]
    measured = np.concatenate([part.seconds for part in parts.values()])
    sigma = rms_log_error_of_sums(np.concatenate(totals), measured)
    profile = replace(
        base,
        schema_version=2,
        name=name,
        base=base.name,
        estimate=bool(why),
        method="times of a torch profiler trace, "
        f"{len(rows)} distinct kernels; a family is fitted where it shows {ENOUGH} shapes, else scaled",
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        models=list(models.values()),
        dtype=dtype,
        kernel_sigma_log=six_digits(max(sigma, 0.01)),
        scaling_sigma_log=six_digits(_scatter(parts, base)) if why else 0.0,
        uncertainty_source="RMS log error of sums of 12 traced kernels; the traced run itself was fitted"
        + ("; scaling: how far the families' levels are apart" if why else ""),
        session=str(rows[0]["session"]),
    )
    return profile, families, why


def _of_few_tensors(row: Row, base: Profile) -> float:
    """Return what a host's Adam step would take on `ADAM_TENSORS` tensors, as calibrations time it: the simulator adds
    what issuing the others takes."""
    model, shape = base.model_of(("adam", "any")), _shape(row)
    few = float(predict(model.form, {"bytes": np.array([shape["bytes"]])}, model.parameters)[0])
    further = model.parameters["t0"] * max(0.0, shape["tensors"] / ADAM_TENSORS - 1)
    return float(row["t_s"] * few / (few + further))


def _shape(row: Row) -> dict[str, float]:
    """Return a row's sizes as floats, whose products do not overflow."""
    return {name: float(size) for name, size in json.loads(row["shape"]).items()}


def _scatter(parts: Mapping[Key, Samples], base: Profile) -> float:
    """Return how far apart the families of a trace are in their ratio to the base's times: RMS of the log."""
    logs = np.log([_ratio(base.model_of(key), part) for key, part in parts.items()])
    return float(np.std(logs, ddof=1)) if len(logs) >= FEW_RATIOS else SCATTER


def _key(row: Row) -> Key:
    return row["op"], row["direction"]


def _of(rows: Sequence[Row], key: Key) -> Samples | None:
    """Return the samples of one kernel that the simulator reads."""
    mine = [row for row in rows if _key(row) == key]
    return samples_of(mine, form_of(*key).id) if mine else None


def _models(
    parts: Mapping[Key, Samples], shapes: Mapping[Key, int], enough: Mapping[Key, KernelModel], base: Profile
) -> tuple[dict[Key, KernelModel], dict[str, str]]:
    """Return a model of every kernel that the simulator reads, and why those that are not in `enough` are scaled.

    shapes: how many distinct ones each of `parts` has.
    """
    ratios = {key: _ratio(base.model_of(key), part) for key, part in parts.items()}
    if not ratios:
        raise InputError("--trace", "no kernel that the simulator reads", "a trace of training steps")
    usual = median(ratios.values())
    models: dict[Key, KernelModel] = {}
    why: dict[str, str] = {}
    for key in (*KERNELS, *FALLBACK):
        if key not in parts and key in FALLBACK and key not in base.read:
            continue  # the kernel that stands for it does so here too
        mine, n = base.model_of(key), shapes.get(key, 0)
        if key in enough:
            models[key] = enough[key]
            continue
        told = "its median ratio" if n else "the median ratio of all families"
        why[" ".join(key)] = f"{n} shapes: the times of {base.name}, scaled by {told}"
        models[key] = _scaled(key, mine, ratios.get(key, usual), why[" ".join(key)], n)
    return models, why


def in_steps(form: str, parts: Mapping[str, Samples], fingerprint: Fingerprint) -> list[list[Term]]:
    """Return the terms that are tried with kernels of steps: none of `TIMED_ALONE`, which predictions of steps drop."""
    groups = measured_terms(form, parts, fingerprint)
    return [[term for term in group if not set(TIMED_ALONE) & set(term.free)] for group in groups]


def _predicted(model: KernelModel, part: Samples) -> Floats:
    """Return the seconds inside a step, as a trace shows them."""
    parameters = {name: value for name, value in in_a_step(model.parameters).items() if name not in TIMED_ALONE}
    return predict(model.form, part.inputs, parameters)


def _ratio(model: KernelModel, part: Samples) -> float:
    """Return the median of measured over the model's time."""
    return float(np.median(part.seconds / _predicted(model, part)))


def _scaled(key: Key, model: KernelModel, ratio: float, why: str, n: int) -> KernelModel:
    """Return a model whose every time is `ratio` times that of `model`."""
    by = dict.fromkeys(TIMES, ratio) | dict.fromkeys(RATES, 1 / ratio)
    op, direction = key
    return KernelModel(
        op=op,
        direction=direction,
        form=model.form,
        parameters=all_six_digits({name: value * by.get(name, 1.0) for name, value in model.parameters.items()}),
        n_train=n,
        n_test=0,
        size=model.size,
        status="scaled",
        source=f"{why} ({ratio:.3g}); there: {model.source}"[:1_900],
    )


def _write(out: Path, rows: Sequence[Row], profile: Profile, families: Sequence[Family]) -> None:
    """Write the files of the folder.

    Raises:
        InputError: it cannot be written.
    """
    try:
        write_atomically(out / SAMPLES, parquet([dict(row) for row in rows]))
        write_atomically(out / "profile.json", profile_text(profile))
        write_report(out / REPORT, profile, families, [])
    except OSError as error:
        raise InputError("--out", str(out), f"a folder that can be written ({error.strerror})") from None
