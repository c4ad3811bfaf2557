"""A profile's predictions of measured kernels beside what they took: of timings that it has not been fitted to."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from calibration.fit import predict, scores
from calibration.measured import Key, Row, causal, places, read_rows, samples_of
from calibration.published import collectives
from calibration.published.public import Public
from calibration.published.tables import read_public
from calibration.samples import Floats, Samples
from sim.catalog import names, profiled_device
from sim.costs.fitted import Z80, KernelModel
from sim.costs.kernels import FALLBACK, FORMS
from sim.costs.profile import Profile, load_profile
from sim.specs.catalog import device, devices
from sim.specs.fields import InputError
from sim.validation.table import is_runs

PARQUET = ".parquet"
"""Of samples of one's own calibration (`samples.parquet` of its folder); other files are tables of measurements."""


@dataclass(frozen=True)
class Compared:
    """Errors of a kernel on one device of the files, in percent of what was measured; shares of its `n` samples.

    device: as the tables name it, of samples their folder, or their file where folders share a name. outside: beyond
    the shapes that the profile was fitted to. total: of the sum of all. in80: inside the profile's 80 % interval, None
    where it states none.
    """

    device: str
    kernel: str
    n: int
    outside: float
    mape: float
    median: float
    p90: float
    bias: float
    total: float
    in80: float | None


def compare(name: str, paths: Sequence[Path]) -> tuple[Profile, list[Compared], dict[str, str]]:
    """Return a profile, its errors on the kernels and all-reduces of `paths`, and what was not compared: {what: why}.

    Raises:
        InputError: there is no such profile, a file cannot be read, or nothing of it is known to the profile.
    """
    if runs := [str(path) for path in paths if path.suffix != PARQUET and is_runs(path)]:
        raise InputError("--from", runs, "timings of kernels: `trainsim validate` compares runs")
    try:
        profile = load_profile(name)
    except InputError as error:
        raise InputError(error.path.replace("cluster.profile", "--against"), error.value, error.allowed) from None
    public = read_public(path for path in paths if path.suffix != PARQUET)
    aside = dict(public.set_aside)
    own_folder = None if name in names("profiles") else Path(name).resolve()
    folders = {path: path.resolve().parent for path in paths if path.suffix == PARQUET}
    times = Counter(place.name for place in folders.values())
    own: list[Samples] = []
    for path, place in folders.items():
        called = place.name if times[place.name] == 1 else str(path)
        own += _own(profile, read_rows(path), called, place == own_folder, aside)
    found = [*_kernels(profile, [*public.samples.values(), *own], aside), *_reduces(profile, public, aside)]
    if not found:
        allowed = (
            f"timings of kernels or all-reduces that profile {name} has ({'; '.join(_said(aside)) or 'none here'})"
        )
        raise InputError("--from", [str(path) for path in paths], allowed)
    return profile, found, aside


def table(profile: Profile, found: Sequence[Compared], aside: dict[str, str]) -> Table:
    """Return the errors as a table, device by device; below it what was not compared."""
    headings = ("kernel", "n", "outside", "mean", "median", "p90", "bias", "sum", "in80")
    caption = "\n".join([f"profile {profile.name}: errors in percent of what was measured", *_said(aside)])
    made = Table(*headings, box=box.SIMPLE, padding=(0, 1, 0, 0), caption=caption, caption_justify="left")
    made.columns[0].no_wrap = True
    for name in dict.fromkeys(one.device for one in found):
        made.add_row(name, style="bold")
        for one in (one for one in found if one.device == name):
            errors = (f"{value:.1f}" for value in (one.mape, one.median, one.p90, one.bias, one.total))
            inside = "-" if one.in80 is None else f"{one.in80:.2f}"
            made.add_row(f"  {one.kernel}", str(one.n), f"{one.outside:.2f}", *errors, inside)
    return made


def data(profile: Profile, found: Sequence[Compared], aside: dict[str, str]) -> dict[str, Any]:
    """Return the errors as plain data."""
    return {"profile": profile.name, "kernels": [asdict(one) for one in found], "not_compared": aside}


def _said(aside: dict[str, str]) -> list[str]:
    return [f"not compared: {what}, {why}" for what, why in aside.items()]


def _own(profile: Profile, rows: Sequence[Row], place: str, beside: bool, aside: dict[str, str]) -> Iterator[Samples]:
    """Yield the samples of one's own calibration, of the profile's data type and implementations.

    Those that it has been fitted to, of its session or of a trace `beside` it, say nothing of it; those that others
    disturbed little, but where all are flagged (`--despite-load`).
    """
    dtype = profile.dtype or "bfloat16"
    calm = [row for row in rows if not row["flagged"]]
    if 0 < len(calm) < len(rows):
        aside[f"{len(rows) - len(calm)} samples of {place}"] = "others disturbed the machine"
    fitted, met, held_at = 0, set[Key](), places(calm or rows, dtype)
    for (op, implementation, direction), some in held_at.items():
        model = profile.model_of((op, direction))
        if model.op == op and model.implementation not in ("", implementation):
            continue
        met.add((op, direction))
        held = causal(some)
        unseen = [row for row in held if row["use"] != "fit" or not (beside or row["session"] == profile.session)]
        fitted += len(held) - len(unseen)
        if unseen:
            yield replace(samples_of(unseen, model.form), device=place if calm else f"{place} (despite load)")
    for op, direction in dict.fromkeys((op, direction) for op, _, direction in held_at if (op, direction) not in met):
        name = profile.model_of((op, direction)).implementation
        aside[f"{op} {direction}"] = f"of another implementation than the profile's, {name}"
    if fitted:
        aside[f"{fitted} samples of {place}"] = "the profile has been fitted to them"
    if dtype not in (types := {row["dtype"] for row in rows}):
        aside[place] = f"samples of {', '.join(sorted(types)) or 'nothing'}, where the profile's are of {dtype}"


def _kernels(profile: Profile, held: Sequence[Samples], aside: dict[str, str]) -> Iterator[Compared]:
    for samples in held:
        name, key = f"{samples.op} {samples.direction}", (samples.op, samples.direction)
        if key not in profile.read and key not in FALLBACK:
            aside[name] = f"no kernel of profile {profile.name}"
            continue
        model = profile.model_of(key)
        needed = (*FORMS[model.form].inputs, *(["rows"] if model.parameters.get("row_serial") else []))
        if missing := [given for given in needed if given not in samples.inputs]:
            aside[name] = f"without {', '.join(missing)}, on which the profile's time depends"
        else:
            told = predict(model.form, samples.inputs, model.parameters)
            yield _compared(samples.device, name, told, samples.seconds, *_sure(profile, model, samples))


def _sure(profile: Profile, model: KernelModel, samples: Samples) -> tuple[Floats | None, NDArray[np.bool_]]:
    """Return lowest and highest log(measured / predicted) of the 80 % interval, [2, n], and which lie outside."""
    shapes = [dict(zip(samples.inputs, values, strict=True)) for values in zip(*samples.inputs.values(), strict=True)]
    far = np.array([model.distance(shape) for shape in shapes])
    quantiles = model.log_residual_quantiles
    if model.bins:
        half = np.array([model.half_width(size) for size in samples.size.tolist()])
        low, high = -half, half
    elif {"0.1", "0.9"} <= set(quantiles):
        low, high = (np.full(len(samples), quantiles[q]) for q in ("0.1", "0.9"))
    else:
        return None, far > 0
    beyond = Z80 * np.hypot(model.outside_slope * far, profile.scaling_sigma_log)
    return np.array([-np.hypot(low, beyond), np.hypot(high, beyond)]), far > 0


def _reduces(profile: Profile, public: Public, aside: dict[str, str]) -> Iterator[Compared]:
    if (of := profiled_device(profile.name)) not in devices:
        if public.reduces:
            aside["all-reduces"] = f"profile {profile.name} is of no device of the catalog, whose links they need"
        return
    for name, held in public.reduces.items():
        told = collectives.predict(held, device(of), profile.collectives)
        yield _compared(name, "all-reduce", told, held.seconds, None, np.zeros(len(held), dtype=bool))


def _compared(
    name: str, kernel: str, told: Floats, seconds: Floats, interval: Floats | None, outside: NDArray[np.bool_]
) -> Compared:
    found, residual = scores(told, seconds, 0.0), np.log(seconds / told)
    inside = None if interval is None else float(np.mean((interval[0] <= residual) & (residual <= interval[1])))
    total = float(100 * (told.sum() / seconds.sum() - 1))
    share = float(np.mean(outside))
    return Compared(name, kernel, len(seconds), share, found.mape, found.median, found.p90, found.bias, total, inside)
