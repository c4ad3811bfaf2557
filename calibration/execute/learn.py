"""`trainsim execute --learn`: what executed plans took over what was predicted becomes a correction in the profile.

A group is of plans that are parallel in one way, on as many processes, in one precision. Its n executed plans have log
residuals r = log(measured / predicted), their median m and scatter s about it; the median's variance is v = (pi / 2)
s^2 / n (of normal residuals). Random effects about no correction: the group's true residual varies about 0 by tau^2 =
max(0, m^2 - v), the moment estimate (DerSimonian and Laird, Controlled Clinical Trials 7, 1986, with the mean held at
0), and the correction is exp(w m) with w = tau^2 / (tau^2 + v): few or scattered plans are drawn to none. Groups share
nothing, as what one kind of communication costs says little of another. The correction's variance is taken as v, the
median's; what single plans take beyond it, s, is kept apart.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from math import exp, pi, sqrt
from pathlib import Path
from statistics import median
from typing import Any

from calibration.execute.holdout import Row
from calibration.execute.limits import Device
from calibration.execute.measure import Run, processes
from calibration.instruments import usable_cores
from sim.catalog import names
from sim.costs.fitted import Z80, six_digits
from sim.costs.learned import FEW, FILE, MOST_RUNS, Correction, Group, Learned, LearnedRun, profile_hash, read_learned
from sim.costs.profile import load_profile
from sim.plans.files import plain
from sim.report.text import plan_words
from sim.specs import InputError, Job, Model, PlacedPlan
from sim.specs.files import load_mapping, write_json
from sim.units import many
from sim.validation.executed import Executed

REPEAT = 0.02
"""Least scatter (log): what quiet runs of one plan differ by on another day; an assumption."""


def fit(runs: Sequence[LearnedRun]) -> list[Correction]:
    """Return the corrections of all groups with at least `FEW` executed plans, in the order of their names."""
    held: dict[Group, list[float]] = {}
    for run in runs:
        held.setdefault(run.group, []).append(run.log)
    made = []
    for group, logs in sorted(held.items()):
        if len(logs) < FEW:
            continue
        middle, variance, scatter = _middle(logs)
        factor, half = exp(max(0.0, 1 - variance / middle**2) * middle if middle else 0.0), exp(Z80 * sqrt(variance))
        made.append(
            Correction(
                kind=group.kind,
                processes=group.processes,
                precision=group.precision,
                n=len(logs),
                factor=six_digits(factor),
                interval80=[six_digits(factor / half), six_digits(factor * half)],
                scatter_log=six_digits(scatter),
            )
        )
    return made


def _middle(logs: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of log residuals, its variance, and how they scatter about it."""
    middle = median(logs)
    scatter = max(REPEAT, sqrt(sum((x - middle) ** 2 for x in logs) / (len(logs) - 1)))
    return middle, pi / 2 * scatter**2 / len(logs), scatter


@dataclass(frozen=True)
class LeftOut:
    """An executed plan predicted without and with what all others teach: relative errors of the predicted time.

    factor: of its group without it (1: too few others).
    """

    run: LearnedRun
    factor: float

    @property
    def before(self) -> float:
        """Predicted over measured time, less 1, without any correction."""
        return self.run.predicted_s / self.run.measured_s - 1

    @property
    def after(self) -> float:
        """The same with the correction that the others teach."""
        return self.factor * self.run.predicted_s / self.run.measured_s - 1


def leave_one_out(runs: Sequence[LearnedRun]) -> list[LeftOut]:
    """Return every executed plan as predicted with the corrections of all others."""
    made = []
    for run in runs:
        others = {one.group: one.factor for one in fit([other for other in runs if other.id != run.id])}
        made.append(LeftOut(run, others.get(run.group, 1.0)))
    return made


def mean_errors(left_out: Sequence[LeftOut]) -> tuple[float, float]:
    """Return the mean absolute errors before and after, in percent."""
    before, after = ([abs(getattr(one, side)) for one in left_out] for side in ("before", "after"))
    return 100 * sum(before) / len(before), 100 * sum(after) / len(after)


def run_of(model: Model, placed: PlacedPlan, predicted_s: float, measured_s: float, csv: str = "") -> LearnedRun:
    """Return an executed plan as it is kept; predicted_s: without correction; csv: the order of its pipeline.

    Raises:
        InputError: nothing is learned for such a plan, or the times are further apart than any correction may be.
    """
    group = Group.of(placed)
    if group is None:
        raise InputError("--learn", "stages of their own, context or expert parallelism", "other plans")
    named = {name: value for name, value in plain(model).items() if name not in ("name", "source")}
    settings = plain(placed.plan.but(dp=placed.dp))
    for later in ("product_kernel", "recurrent_kernel", "tempo"):  # no part of the ids that files already hold
        del settings[later]
    text = json.dumps([named, settings, csv], sort_keys=True)
    schedule = f", {placed.plan.schedule}" if placed.plan.pp > 1 else ""
    sizes = f"{many(model.layers, 'layer')} of {model.hidden}, seq {model.seq}, vocab {model.vocab}"
    return LearnedRun(
        id=sha256(text.encode()).hexdigest()[:16],
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        what=f"{sizes}; {plan_words(placed.plan, placed.dp)}{schedule}, global batch {placed.plan.global_batch}",
        kind=group.kind,
        processes=group.processes,
        precision=group.precision,
        predicted_s=six_digits(predicted_s),
        measured_s=six_digits(measured_s),
        torch=version("torch"),
    )


def runs_of(plans: Sequence[Executed]) -> list[LearnedRun]:
    """Return executed plans as they would be kept; raises InputError where nothing is learned for one of them."""
    jobs = [(*one.job(), one) for one in plans]
    return [
        run_of(model, plan.on(model, one.cluster()), one.predicted.step_time_s, one.measured.step_time_s)
        for model, plan, one in jobs
    ]


def by_group(left_out: Sequence[LeftOut]) -> dict[str, list[LeftOut]]:
    """Return plans by their group, in the order of the names, and under "all" every one."""
    groups = sorted({one.run.group for one in left_out})
    held = {str(group): [one for one in left_out if one.run.group == group] for group in groups}
    return held | {"all": list(left_out)}


def added(held: Learned, run: LearnedRun) -> tuple[Learned, LearnedRun | None]:
    """Return what is known with one more executed plan, and the earlier run of the same plan that it replaces.

    Raises:
        InputError: there are too many.
    """
    earlier = next((one for one in held.runs if one.id == run.id), None)
    runs = [*(one for one in held.runs if one.id != run.id), run]
    if len(runs) > MOST_RUNS:
        raise InputError("--learn", f"{len(runs)} executed plans", f"at most {MOST_RUNS}: remove some of {FILE}")
    return replace(held, runs=runs, corrections=fit(runs)), earlier


def save(held: Learned, folder: Path) -> Path:
    """Write `learned.json` whole into a profile folder and return its path."""
    write_json(folder / FILE, asdict(held))
    return folder / FILE


def target(job: Job, run: Run, device: Device, busy: bool) -> Path:
    """Return the profile folder that learns from a plan; asked before anything is run.

    Raises:
        InputError: the profile is a shipped one, or of another device; its `learned.json` is wrong; there are more
            processes than cores, or the machine may be busy: such times say nothing about the device; or its products
            or layers are not the library's.
    """
    name = job.cluster.profile
    if name in names("profiles") or not (Path(name) / "profile.json").is_file():
        allowed = "a profile folder of one's own in cluster.profile (`trainsim calibrate`, or a copy of a shipped one)"
        raise InputError("--learn", name, allowed)
    if busy:
        raise InputError("--despite-load", True, "left out with --learn: times of a busy machine teach nothing")
    if run.plan.product_kernel != "library":
        allowed = "a plan with the library's products: corrections are of these"
        raise InputError("--learn", f"product_kernel {run.plan.product_kernel}", allowed)
    if run.plan.tempo:
        raise InputError("--learn", "tempo true", "a plan with the library's layers: corrections are of these")
    asked, cores = processes(run.plan), usable_cores()
    if device == "cpu" and asked > cores:
        raise InputError(
            "--learn", f"{asked} processes", f"at most {cores}, the cores that may be used here: no shared ones"
        )
    known = load_profile(name).fingerprint
    if known and known.name and known.name != (here := _device_name(device)):
        raise InputError("--learn", here, f"{known.name}, whose profile it is")
    return Path(name)


def _device_name(device: Device) -> str:
    if device == "cpu":
        from calibration.host import cpu_name  # noqa: PLC0415 - loads torch

        return cpu_name()[1]
    from torch.cuda import get_device_name  # noqa: PLC0415 - loads torch

    return str(get_device_name())


@dataclass(frozen=True)
class Lesson:
    """What a profile folder has learned from one more plan: the file, what it holds, what was replaced or dropped."""

    path: Path
    held: Learned
    run: LearnedRun
    replaced: LearnedRun | None
    dropped: int

    def lines(self) -> list[str]:
        """Return it for a reader."""
        same = [one for one in self.held.runs if one.group == self.run.group]
        ratio = f"measured over predicted x{exp(self.run.log):.3g}"
        said = [f"learned from this plan ({self.run.group}): {ratio}"]
        if self.replaced:
            said.append(f"it takes the place of its run of {self.replaced.date} (x{exp(self.replaced.log):.3g})")
        if self.dropped:
            said.append(f"dropped: {many(self.dropped, 'executed plan')}, as the profile was fitted anew since")
        if len(same) < FEW:
            said.append(f"{len(same)} of at least {FEW} executed plans of {self.run.group}: no correction yet")
        said += [str(one) for one in self.held.corrections]
        before, after = mean_errors(leave_one_out(self.held.runs))
        told = f"each of {many(len(self.held.runs), 'executed plan')} predicted from the others alone: mean error "
        return [*said, f"{told}{before:.1f} % without, {after:.1f} % with corrections", f"kept in {self.path}"]

    def data(self) -> dict[str, Any]:
        """Return it as plain data; errors of plans left out, in percent."""
        before, after = mean_errors(leave_one_out(self.held.runs))
        return {
            "path": str(self.path),
            "run": asdict(self.run),
            "replaced": asdict(self.replaced) if self.replaced else None,
            "dropped": self.dropped,
            "executed_plans": len(self.held.runs),
            "corrections": [asdict(one) for one in self.held.corrections],
            "left_out_mape": {"before": before, "after": after},
        }


def learn(folder: Path, job: Job, row: Row) -> Lesson:
    """Write what an executed plan teaches into a profile folder (from `target`) and return it.

    The measured time is the shortest step, as everywhere; the predicted one that without correction.

    Raises:
        InputError: the folder's `learned.json` is wrong, or the plan cannot be learned from.
    """
    fit_sha256 = profile_hash(load_mapping(folder / "profile.json"))
    held, dropped = read_learned(folder, fit_sha256), 0
    if held is None or held.profile_sha256 != fit_sha256:
        dropped = len(held.runs) if held else 0
        held = Learned(profile_sha256=fit_sha256)
    plan, told = row.case.plan, row.predicted
    uncorrected_s = told.step_time_s / told.learned_factor
    run = run_of(job.model, plan.on(job.model, job.cluster), uncorrected_s, row.measured.step_time_s, told.csv)
    held, replaced = added(held, run)
    return Lesson(save(held, folder), held, run, replaced, dropped)
