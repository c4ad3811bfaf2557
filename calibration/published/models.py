"""The kernel models of each device: fitted to its own samples, or carried over from the base device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.optimize import minimize_scalar

from calibration.fit import Fit, Scores, predict, rms_log_error, scores
from calibration.intervals import outside_slope, size_bins
from calibration.published import families as kernels
from calibration.published.collectives import Links, fit_links
from calibration.published.families import GEMM_DIRECTIONS, Gemms
from calibration.published.op_timings import L4_IN_TRAINING
from calibration.published.peaks import PEAK_NAMES, measured_peak
from calibration.published.public import Public
from calibration.samples import Floats, Samples
from sim.costs.carry import Ratios, carry, ratios
from sim.costs.fitted import Errors, KernelModel, all_six_digits, six_digits
from sim.costs.kernels import FORMS, KERNELS
from sim.specs.catalog import device

Z90 = 1.6448536269514722
BASE = "a100-pcie-80gb"
ANCHOR_CHECK = "b200"
Key = tuple[str, str]

ATTENTION_DIRECTIONS = ("forward", "backward")
H100_ATTENTION = "H100 80GB SXM5"


@dataclass(frozen=True)
class Profiled:
    """A device to write: the names its samples go by in the files, and its links.

    `relation` is "own" (has GEMM samples), "chip" (the base device's chip) or "estimate" (another chip).
    `training`: the device name of further kernels as a training framework runs them. `borrowed` says whose samples
    are used where they are not quite of this device; `scaling_sigma_log` replaces the error measured on B200 where
    more is known.
    """

    name: str
    relation: Literal["own", "chip", "estimate"]
    links: str
    gemm: str | None = None
    attention: str | None = None
    vector: str | None = None
    borrowed: str = ""
    scaling_sigma_log: float | None = None
    scaling_source: str = ""
    training: str | None = None


PROFILED = (
    Profiled(BASE, "own", "pcie", "NVIDIA A100 PCIe", "NVIDIA A100 PCIe", "NVIDIA A100 80GB PCIe"),
    Profiled("a100-sxm-80gb", "chip", "nvlink3"),
    Profiled(
        "a100-sxm-40gb",
        "chip",
        "nvlink3",
        None,
        None,
        "NVIDIA A100-PCIE-40GB",
        "A100 PCIe 40 GB: same memory",
    ),
    Profiled("b200", "own", "nvlink5", "NVIDIA B200", "NVIDIA B200"),
    Profiled("h100-sxm-80gb", "estimate", "nvlink4", None, "H100 80GB SXM5"),
    Profiled("h200-sxm-141gb", "estimate", "nvlink4", None, "H100 80GB SXM5", None, "H100 SXM: same chip"),
    Profiled("v100-sxm-32gb", "estimate", "nvlink2"),
    Profiled("l4", "own", "pcie l4", L4_IN_TRAINING, L4_IN_TRAINING, "NVIDIA L4", training=L4_IN_TRAINING),
    Profiled("a10g", "estimate", "pcie"),
    Profiled("rtx-4090", "estimate", "pcie"),
    Profiled(
        "t4",
        "estimate",
        "pcie",
        scaling_sigma_log=0.90,
        scaling_source="as that of L4 (assumed: 70 W too are far below what its peak rate needs), which on the fp32 "
        "products of the public files is 2.4 times slower than the same step says, RMS log error 0.90",
    ),
    Profiled("rtx-2080-ti", "estimate", "pcie"),
    Profiled("mi300x", "estimate", "xgmi"),
)
"""To add a device: its catalog entry, and a line here (or among `calibration.published.relatives.RELATIVES`)."""


@dataclass(frozen=True)
class Carrying:
    """Errors of carrying the base device's fit to B200, against the samples there, per family and in all."""

    sigma_log: float
    families: Mapping[Key, tuple[Errors, int]]


@dataclass(frozen=True)
class Base:
    """Everything that the other devices are built from; `exponent`: `peak_exponent`."""

    models: Mapping[Key, KernelModel]
    gemms: Gemms
    s0: Mapping[str, float]
    links: Mapping[str, Links]
    exponent: float
    anchored: Carrying
    unanchored: Carrying


def fit_base(public: Public) -> Base:
    """Return the base device's models and the measured errors of carrying them elsewhere.

    Raises:
        InputError: samples, links or peaks that every profile rests on are missing.
    """
    target = PROFILED[0]
    steps = [ratios_to(ANCHOR_CHECK, public, known) for known in (True, False)]
    links = fit_links(public)
    # H100 is the only device measured at several lengths and equal row count: s0 comes from there.
    lengths = {
        d: kernels.fit_attention(public.of(H100_ATTENTION, "attention", d), {"r0": 0.0}) for d in ATTENTION_DIRECTIONS
    }
    s0 = {d: fit.solution.parameters["s0"] for d, fit in lengths.items()}
    vector = vector_models(target, public, {})
    models, gemms = own_models(target, public, vector, s0)
    exponent = peak_exponent(public, models)
    checks = [_check_carrying(public, models, by, exponent) for by in steps]
    return Base(models, gemms, s0, links, exponent, *checks)


def published_model(
    key: Key,
    fit: Fit,
    samples: Samples,
    status: Literal["fitted", "scaled"],
    source: str,
    size: Literal["flop", "bytes"] | None = None,
) -> KernelModel:
    """Return a kernel model of a fit to published samples: its domain, errors and intervals.

    size: by what intervals are binned (left out: FLOP, of kernels without direction bytes).
    """
    inputs = {name: v for name, v in samples.inputs.items() if name in FORMS[fit.form].inputs}
    domain = {name: [six_digits(v.min()), six_digits(v.max())] for name, v in inputs.items()}
    bins = size_bins(fit, samples)
    return KernelModel(
        op=key[0],
        direction=key[1],
        form=fit.form,
        parameters=all_six_digits({n: v for n, v in fit.solution.parameters.items() if n in FORMS[fit.form].names}),
        standard_errors=all_six_digits(fit.solution.standard_errors),
        domain=domain,
        n_train=len(samples),
        n_test=len(samples),
        cross_validation=fit.scores.errors(len(samples)),
        log_residual_quantiles=all_six_digits(fit.residual_quantiles),
        size=size or ("flop" if key[1] != "any" else "bytes"),
        bins=bins,
        outside_slope=outside_slope(domain, bins, None, None),
        status=status,
        source=source,
    )


def vector_models(
    target: Profiled, public: Public, base: Mapping[Key, KernelModel], by: Ratios | None = None
) -> dict[Key, KernelModel]:
    """Element-wise, norm and softmax: from own samples, or the base's with the ratio of memory bandwidths."""
    if target.vector is None:
        assert by is not None
        return {k: _carried_vector(target, public, base[k], by) for k in KERNELS if k[1] == "any"}
    name = target.vector
    samples = {k: public.of(name, *k) for k in KERNELS if k[1] == "any"}
    el = kernels.fit_elementwise(samples["elementwise", "any"])
    fits, notes = {("elementwise", "any"): el}, {("elementwise", "any"): ""}
    for op in ("norm", "softmax"):
        found = kernels.fit_row_wise(samples[op, "any"], el.solution.parameters["t0"])
        fits[op, "any"], notes[op, "any"] = found.fits[""], f"; {found.note}; {ROWS_TEXT}"
    status: Literal["fitted", "scaled"] = "scaled" if target.borrowed else "fitted"
    made = {}
    for key, fit in fits.items():
        text = f"{name}, fp32 vector kernels, memory bound so bytes/s hold for 16 bit ({samples[key].source})"
        text += f"; t0 {kernels.VECTOR_FLOOR_S * 1e6:g} us assumed (all samples move over 100 MB)"
        text += notes[key]
        text += f"; {target.borrowed}" if target.borrowed else ""
        made[key] = _in_16bit(published_model(key, fit, samples[key], status, text))
    return made


ROWS_TEXT = "row lengths doubled from fp32 to 16 bit (assumed: what decides is the bytes of a row)"


def _in_16bit(model: KernelModel) -> KernelModel:
    """Return a model of fp32 rows with row lengths of the same bytes in 16 bit."""
    lengths = {name: six_digits(2 * model.parameters[name]) for name in ("c0", "c1") if name in model.parameters}
    domain = {name: [v * (2 if name == "columns" else 1) for v in edges] for name, edges in model.domain.items()}
    return replace(model, parameters=model.parameters | lengths, domain=domain)


def _carried_vector(target: Profiled, public: Public, model: KernelModel, by: Ratios) -> KernelModel:
    text = f"{BASE}'s fit, bandwidth x {by.bandwidth:.4g} (ratio of memory bandwidths); errors: "
    if target.relation == "chip":
        return _carried(model, by, f"{text}{BASE}'s own", _known_errors(model))
    return _carried(model, by, f"{text}the same step from {BASE} to l4", _vector_carrying(public, model))


def own_models(
    target: Profiled, public: Public, vector: Mapping[Key, KernelModel], s0: Mapping[str, float]
) -> tuple[dict[Key, KernelModel], Gemms]:
    """GEMM and attention of a device with samples of both, together with the memory-bound models."""
    assert target.gemm is not None and target.attention is not None
    samples = {d: public.of(target.gemm, "gemm", d) for d in GEMM_DIRECTIONS}
    note = "element-wise fit" if target.vector else "A100's share of the datasheet bandwidth"
    bandwidth, units = vector["elementwise", "any"].parameters["bandwidth"], device(target.name).sms.value
    gemms = kernels.fit_gemms(samples, bandwidth, note, float(units))
    models = dict(vector)
    for d, fit in gemms.fits.items():
        kind = "fp16, half of both gradients' time each" if target.training else "bf16"
        text = f"{target.gemm} {kind} ({samples[d].source}); {gemms.note}"
        models["gemm", d] = published_model(("gemm", d), fit, samples[d], "fitted", text)
    for d in ATTENTION_DIRECTIONS:
        rows = public.of(target.attention, "attention", d)
        text = (
            f"{target.attention}, flash attention, causal, head dimension 128 ({rows.source}); FLOP halved "
            "for the causal mask; s0 fixed: that of FlashAttention-2 on H100; t0 "
            f"{kernels.LAUNCH_FLOOR_S * 1e6:g} us assumed"
        )
        models["attention", d] = published_model(
            ("attention", d), kernels.fit_attention(rows, {"s0": s0[d]}), rows, "fitted", text
        )
    return models | (_in_training(target.training, public) if target.training else {}), gemms


IN_TRAINING: tuple[tuple[Key, str], ...] = (
    (("softmax", "any"), "forward"),
    (("softmax", "backward"), "backward"),
    (("cross_entropy", "forward"), "forward"),
    (("cross_entropy", "backward"), "backward"),
)
"""Kernels that operation timings replace or add, and the direction of their samples."""


def _in_training(name: str, public: Public) -> dict[Key, KernelModel]:
    """Return the memory-bound kernels of a training framework: the rate at which each moves the bytes layers count."""
    made = {}
    for key, direction in IN_TRAINING:
        samples = public.of(name, key[0], direction)
        fit = kernels.fit_rows(samples)
        text = (
            f"{name}, fp16 ({samples.source}), as its framework runs it: a rate above the memory's is that of a kernel "
            f"that leaves out a part of the bytes that layers count; t0 {kernels.VECTOR_FLOOR_S * 1e6:g} us assumed"
        )
        made[key] = published_model(key, fit, samples, "fitted", text, "bytes")
    return made


def ratios_to(name: str, public: Public, anchored: bool = True) -> Ratios:
    """Return the ratios of device `name` to the base device; `anchored` on measured peaks where there are such.

    Raises:
        InputError: a peak that was measured is not in the files.
    """
    peaks = [measured_peak(public, n) if anchored and n in PEAK_NAMES else None for n in (BASE, name)]
    return ratios(device(BASE), device(name), *peaks)


def peak_exponent(public: Public, models: Mapping[Key, KernelModel]) -> float:
    """Return the power of a ratio of measured matmul peaks by which products of another architecture are faster.

    A measured peak is that of the best product, which is short. The more FLOP/s a chip has for its power, the further
    its clock falls in longer ones: products of B200 above 1 TFLOP take 1.45 times what A100's fit and the ratio of the
    peaks say, those of 10 GFLOP 1.08 times. One exponent for all, least squares of log time over the samples of B200;
    devices in between, and of other makers, are taken to keep the same power of their own ratio.
    """
    by = ratios_to(ANCHOR_CHECK, public)
    found = minimize_scalar(
        lambda x: rms_log_error(*_products(_carried_pairs(public, models, by, x))), bounds=(0.5, 1.5), method="bounded"
    )
    return six_digits(float(found.x))


def sustained(by: Ratios, exponent: float) -> Ratios:
    """Return the ratios for products of another architecture (`peak_exponent`); those by datasheets stay."""
    return replace(by, compute=by.compute**exponent) if by.anchored else by


Pairs = Mapping[Key, tuple[Floats, Floats]]


def _carried_pairs(public: Public, models: Mapping[Key, KernelModel], by: Ratios, exponent: float) -> Pairs:
    """Return the times of B200's kernels as carried over from the base by `by`, and as measured."""
    name = next(t.gemm for t in PROFILED if t.name == ANCHOR_CHECK)
    assert name is not None
    pairs = {}
    for key in [k for k in KERNELS if k[1] != "any"]:
        samples, moved = public.of(name, *key), sustained(by, exponent) if key[0] == "gemm" else by
        parameters = carry(models[key].parameters, moved)
        pairs[key] = (predict(models[key].form, samples.inputs, parameters), samples.seconds)
    return pairs


def _products(pairs: Pairs) -> tuple[Floats, Floats]:
    """Return the times of all products among `pairs`."""
    predicted, measured = (np.concatenate([pairs["gemm", d][i] for d in GEMM_DIRECTIONS]) for i in (0, 1))
    return predicted, measured


def _check_carrying(public: Public, models: Mapping[Key, KernelModel], by: Ratios, exponent: float) -> Carrying:
    """Carry the base's fit to B200 and compare with the samples there."""
    pairs = _carried_pairs(public, models, by, exponent)
    sigma = rms_log_error(*_products(pairs))
    return Carrying(sigma, {k: (_within(*pair, sigma).errors(len(pair[0])), len(pair[0])) for k, pair in pairs.items()})


def _within(predicted: Any, measured: Any, sigma_log: float) -> Scores:
    inside = np.abs(np.log(predicted / measured)) <= Z90 * sigma_log
    return scores(predicted, measured, float(np.mean(inside)))


def _known_errors(model: KernelModel) -> tuple[Errors, int]:
    assert model.cross_validation is not None
    return model.cross_validation, model.n_test


def _vector_carrying(public: Public, model: KernelModel) -> tuple[Errors, int]:
    samples = public.of("NVIDIA L4", model.op, model.direction)
    by = ratios(device(BASE), device("l4"))
    in_16bit = {name: v * (2 if name == "columns" else 1) for name, v in samples.inputs.items()}
    predicted = predict(model.form, in_16bit, carry(model.parameters, by))
    sigma = rms_log_error(predicted, samples.seconds)
    return _within(predicted, samples.seconds, sigma).errors(len(samples)), len(samples)


def _carried(model: KernelModel, by: Ratios, source: str, errors: tuple[Errors, int]) -> KernelModel:
    return KernelModel(
        op=model.op,
        direction=model.direction,
        form=model.form,
        parameters=all_six_digits(carry(model.parameters, by)),
        n_train=0,
        n_test=errors[1],
        cross_validation=errors[0],
        status="scaled",
        source=source,
    )


def carried_models(
    target: Profiled, public: Public, base: Base, vector: Mapping[Key, KernelModel], by: Ratios
) -> dict[Key, KernelModel]:
    """GEMM and attention of a device without GEMM samples."""
    check = base.anchored if by.anchored else base.unanchored
    how = "measured matmul peaks" if by.anchored else "datasheet peaks"
    chip = target.relation == "chip"
    whose = f"{BASE}'s own (same chip)" if chip else f"the same step from {BASE} to {ANCHOR_CHECK}"
    rate, off = f"{BASE}'s fit, compute rate x {by.compute:.4g} (ratio of {how})", f"; errors: {whose}"
    errors = {k: _known_errors(base.models[k]) if chip else check.families[k] for k in check.families}
    own = {"bandwidth": vector["elementwise", "any"].parameters["bandwidth"]}
    models = dict(vector)
    products = by if chip else sustained(by, base.exponent)
    kept = f", to the power {base.exponent:.3g} that {ANCHOR_CHECK} keeps of it" if products != by else ""
    for d in GEMM_DIRECTIONS:
        scaled = _carried(base.models["gemm", d], products, rate + kept + off, errors["gemm", d])
        models["gemm", d] = replace(scaled, parameters=scaled.parameters | own)
    for d in ATTENTION_DIRECTIONS:
        carried = _carried(base.models["attention", d], by, rate + off, errors["attention", d])
        models["attention", d] = carried
        if target.attention is not None:
            rows = public.of(target.attention, "attention", d)
            r0 = carried.parameters["r0"]
            models["attention", d] = _anchored_attention(target, d, rows, r0)
    return models


def _anchored_attention(target: Profiled, direction: str, rows: Samples, r0: float) -> KernelModel:
    text = (
        f"{target.attention}, FlashAttention-2, causal, head dimension 128, fp16 ({rows.source}); r0 carried "
        f"from {BASE} by the ratio of SMs, as all samples have the same row count"
    )
    if direction == "backward":
        text += "; time = forward and backward together minus forward"
    text += f"; {target.borrowed}" if target.borrowed else ""
    fit = kernels.fit_attention(rows, {"r0": r0})
    return published_model(("attention", direction), fit, rows, "scaled" if target.borrowed else "fitted", text)
