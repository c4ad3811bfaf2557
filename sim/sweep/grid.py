"""The grid file: a job, the fields that vary, which combinations are wanted and how they are run."""

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from math import floor
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from sim.plans.files import plain
from sim.schedules import CLOSED
from sim.specs import InputError
from sim.specs.arguments import checked
from sim.specs.fields import MAX_PROBLEMS, check, read, real, spec, whole
from sim.specs.files import load_mapping
from sim.sweep.digest import code_digest, data_digest
from sim.sweep.filters import SECTIONS, Filter, is_path
from sim.sweep.numbering import Axis, Column, Numbering, spaced
from sim.sweep.outcome import Objective, usual_objective
from sim.sweep.sections import (
    FILE_FIELDS,
    NOWHERE,
    at_prices,
    compared,
    contents,
    files_in,
    is_table,
    is_text,
    made,
    named_files,
    names_of,
    never_made,
    sections_of,
    stated,
    whole_path,
    wholes_first,
)

Engine = Literal["analytic", "path", "events"]

MAX_AXES = 64
MAX_AXIS_VALUES = 1_000_000
MAX_CONFIGURATIONS = 10**12

NOT_ANALYTIC = ("stages", "stage_layers", "recompute_layers", "microbatch_group_size")
"""Settings of a plan that no closed form knows."""

RANGE = {
    "type": "object",
    "properties": {
        "min": {"type": "number"},
        "max": {"type": "number"},
        "count": {"type": "integer", "minimum": 1, "maximum": MAX_AXIS_VALUES},
        "scale": {"enum": ["linear", "log"]},
    },
    "required": ["min", "max"],
    "additionalProperties": False,
}
VALUES = {"type": "array", "minItems": 1, "maxItems": MAX_AXIS_VALUES, "uniqueItems": True}
FORMS: dict[str, Any] = {
    "minProperties": 1,
    "maxProperties": MAX_AXES,
    "propertyNames": {"pattern": r"^(model|cluster|plan)(\.|$)"},
    "additionalProperties": {"anyOf": [VALUES, RANGE]},
}
"""The axes in the file's JSON Schema."""


def unboxed(raw: Any) -> Any:
    """Return plain data with NumPy's numbers and arrays as Python's, which a store can hold."""
    if isinstance(raw, np.generic | np.ndarray):
        return raw.tolist()
    if isinstance(raw, Mapping):
        return {key: unboxed(value) for key, value in raw.items()}
    return [unboxed(value) for value in raw] if isinstance(raw, list) else raw


Unboxed = Annotated[Any, BeforeValidator(unboxed)]
Axes = Annotated[
    dict[str, Any],
    BeforeValidator(unboxed),
    Field(description="a mapping of fields to their values", json_schema_extra=FORMS),
]
Section = Annotated[Unboxed, Field(description="a mapping of keys to values", json_schema_extra={"type": "object"})]


@spec
class Between:
    """`count` numbers from `min` to `max`, equal steps (or, on a log scale, factors) apart.

    Without `count`, in a sample, any number between them. Whole numbers where the field takes no other.

    Raises:
        InputError: `max` is not above `min`, or a log scale starts at 0 or below.
    """

    min: Annotated[float, real(-1e18, 1e18)]
    max: Annotated[float, real(-1e18, 1e18)]
    count: Annotated[int, whole(1, MAX_AXIS_VALUES)] | None = None
    scale: Literal["linear", "log"] = "linear"

    def __post_init__(self) -> None:
        if self.max < self.min or (self.max == self.min and self.count != 1):
            raise InputError("max", self.max, f"above min = {self.min:g}")
        if self.scale == "log" and self.min <= 0:
            raise InputError("min", self.min, "above 0 on a log scale")


@spec
class Sample:
    """`count` configurations drawn by `seed`: each field by itself, or so that every one of `count` equal parts of each
    axis holds one (latin-hypercube; McKay et al., 1979)."""

    method: Literal["random", "latin-hypercube"]
    count: Annotated[int, whole(1, MAX_CONFIGURATIONS)]
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0


def _made(cls: type) -> BeforeValidator:
    """Let plain data stand for an object, from Python as from a file."""
    return BeforeValidator(lambda raw: read(cls, raw) if isinstance(raw, Mapping) else raw)


@spec
class Grid:
    """A base job and the fields that vary; its configurations are numbered from 0, the last axis turning fastest.

    `job`: path of a job file whose sections are the base; `model`, `cluster` and `plan` replace its. `axes`: values by
    the path of a field (`plan.tp: [1, 2]`, `cluster.links.latency_s: {min: .., max: .., count: ..}`), or of a whole
    section (`model: [llama3-8b, llama3-70b]`). `filters`: what every configuration keeps (`Filter`). `engine`: closed
    forms as the tuner scores with, or one simulated step each. `objective`: what the best configuration has least of
    (tokens_per_s_per_gpu: most); left out, as `usual_objective`.

    `sim.Grid(job="job.yaml", axes={"plan.tp": [1, 2, 4], "cluster.nodes": [4, 8]}, engine="path")`

    Raises:
        InputError: a field does not exist, a value of it is out of range, or a file cannot be read.
    """

    job: Annotated[str, Field(description="the path of a job file; sections of a job stand beside axes")] | None = None
    model: Annotated[Unboxed, Field(description="a catalog name, a path or inline dimensions")] = None
    cluster: Section = None
    plan: Section = None
    axes: Axes
    filters: Annotated[
        list[Annotated[Filter, _made(Filter)]], Field(max_length=100, description="a list of filters")
    ] = Field(default_factory=list)
    sample: Annotated[Sample, _made(Sample)] | None = None
    engine: Engine = "analytic"
    objective: Objective | None = None

    def __post_init__(self) -> None:
        self._settle(Path())
        problems = self._axis_problems()
        problems = problems or [*self._filter_problems(), *self._engine_problems()] or self._never_made()
        if not problems and not 1 <= self.size <= MAX_CONFIGURATIONS:
            problems = [InputError("axes", f"{self.size} configurations", f"1 to {MAX_CONFIGURATIONS}")]
        if problems:
            raise InputError(problems[0].path, problems[0].value, problems[0].allowed, problems[1:MAX_PROBLEMS])

    @classmethod
    @checked
    def load(cls, path: str | Path) -> "Grid":
        """Return the grid in a YAML or JSON file; paths in it are relative to it.

        Raises:
            InputError: with the path of the first field that is wrong.
        """
        return cls.read(load_mapping(Path(path)), Path(path).parent)

    @classmethod
    def read(cls, raw: Mapping[str, Any], folder: Path) -> "Grid":
        """Return the grid in plain data, with paths relative to `folder`."""
        made_whole = dict(raw)
        for name in ("job", *SECTIONS):
            if name in raw:
                made_whole[name] = whole_path(raw[name], folder)
        if isinstance(raw.get("axes"), Mapping):
            made_whole["axes"] = {p: _axis_files(p, value, folder) for p, value in raw["axes"].items()}
        found, problems = check(cls, made_whole)
        if found is None:
            raise problems[0]
        return found

    @cached_property
    def numbering(self) -> Numbering:
        """The configurations by number."""
        axes = tuple(self._axis(path) for path in self.axes)
        return Numbering(axes, *((self.sample.method, self.sample.count, self.sample.seed) if self.sample else ()))

    @cached_property
    def ranked_by(self) -> Objective:
        """The objective, that of grids which state none too."""
        return self.objective or usual_objective(self.numbering.axes)

    @property
    def size(self) -> int:
        """Configurations, before filters."""
        return self.numbering.size

    def data(self) -> dict[str, Any]:
        """Return the grid as plain data, complete but for the files that it names."""
        return {
            "model": self.model, "cluster": self.cluster, "plan": self.plan,
            "axes": [[path, value] for path, value in self.axes.items()],
            "filters": [plain(f) for f in self.filters], "sample": plain(self.sample) if self.sample else None,
            "engine": self.engine, "objective": self.ranked_by,
        }  # fmt: skip

    @cached_property
    def base_digest(self) -> str:
        """Hash of all that a configuration's result rests on beside its own values: base job, filters, engine, the
        contents of the files named there, the code and the catalog."""
        held = self.data()
        del held["sample"], held["axes"]
        return data_digest({**held, "files": contents(held), "code": code_digest(), "fields": list(self.axes)})

    @cached_property
    def digest(self) -> str:
        """Hash of the whole grid."""
        return self.digest_of(self.data())

    def digest_of(self, data: Mapping[str, Any]) -> str:
        """Return the hash, with all files as they are now, of this grid with the axes of its own or other `data`."""
        return data_digest({"base": self.base_digest, **data, "files": contents(data["axes"])})

    @cached_property
    def _axis_contents(self) -> dict[str, str]:
        return contents(list(self.axes.values()))

    def block_digest(self, columns: Mapping[str, Column]) -> bytes:
        """Return the hash of a block: what its results rest on, and the values of its configurations in their order."""
        found = sha256(self.base_digest.encode())
        for path, column in columns.items():
            used = column.used()
            held = [self._axis_contents[str(file)] for file in files_in(list(used.values))]
            found.update(json.dumps([path, used.values, held], default=str).encode())
            found.update(used.index.astype("<i4").tobytes())
        return found.digest()

    def extends(self, other: Mapping[str, Any]) -> bool:
        """Return whether the configurations of another grid (its `data`) are this one's first: the same but for more
        values at the end of the first axis."""
        mine = json.loads(json.dumps(self.data()))
        if (
            self.sample
            or not self.axes
            or other == mine
            or not isinstance(other.get("axes"), list)
            or not other["axes"]
        ):
            return bool(other == mine)
        (path, values), (old_path, old_values) = mine["axes"][0], other["axes"][0]
        lists = isinstance(values, list) and isinstance(old_values, list)
        rest = {**mine, "axes": mine["axes"][1:]} == {**other, "axes": other["axes"][1:]}
        return rest and path == old_path and lists and values[: len(old_values)] == old_values

    def _settle(self, folder: Path) -> None:
        """Take the sections that the grid leaves out from `job`, and objects as what they state; at its prices.

        Files have whole paths then, so that what they hold counts in the digests.
        """
        base: Mapping[str, Any] = {}
        if self.job is not None:
            path = folder / self.job
            raw = load_mapping(path)
            base = sections_of(raw, path.parent)
        for key in SECTIONS:
            held = getattr(self, key)
            held = base.get(key) if held is None else held
            if hasattr(held, "__dataclass_fields__"):
                held = stated(held)
            held = {} if held is None and key == "plan" else whole_path(held, folder)
            if held is None and key not in self.axes:
                raise InputError(key, None, "required, here, in the job or as an axis")
            if not isinstance(held, Mapping | None | (str if key == "model" else Mapping)):
                raise InputError(key, held, "a catalog name, a path or a mapping" if key == "model" else "a mapping")
            object.__setattr__(self, key, held)
        if self.job is not None and _priced(raw):
            object.__setattr__(self, "cluster", at_prices(self.cluster, self.axes, raw, path.parent))
        object.__setattr__(self, "job", None)
        object.__setattr__(self, "axes", {p: _axis_files(p, value, folder) for p, value in self.axes.items()})

    def _axis(self, path: str) -> Axis:
        raw = self.axes[path]
        if not isinstance(raw, Mapping):
            return Axis(path, tuple(raw))
        held, problems = check(Between, raw, f"axes.{path}")
        if held is None:
            raise problems[0]
        whole_numbers, log = self._takes_whole(path, held), held.scale == "log"
        if held.count is None:
            return Axis(path, (), held.min, held.max, log, whole_numbers)
        return Axis(path, spaced(held.min, held.max, held.count, log, whole_numbers))

    def _takes_whole(self, path: str, held: Between) -> bool:
        """Return whether a field takes whole numbers alone: a number between two is refused, both ends are not."""
        return bool(self._refused(path, floor(held.min) + 0.5)) and not self._refused(path, round(held.min))

    def _refused(self, path: str, value: Any) -> list[InputError]:
        """Return what is wrong with a value by itself, whatever the others are."""
        section, _, below = path.partition(".")
        raw = getattr(self, section)
        first = {
            other: self._first(other) for other in self.axes if other != path and other.partition(".")[0] == section
        }
        changes = [(other.partition(".")[2], value) for other, value in first.items()]
        if section == "plan":
            changes += [] if "plan.global_batch" in (*self.axes, *(f"plan.{k}" for k in raw)) else [("global_batch", 1)]
        found = _at(path, made(section, raw, wholes_first([*changes, (below, value)]))[1])
        if not found or not first or value is None:
            return found
        # What is wrong beside the first values of other axes may be right beside others: it must be wrong alone, too.
        held = {"table": raw} if isinstance(raw, str) and is_table(raw) else raw if isinstance(raw, Mapping) else {}
        alone = {key: held[key] for key in (below.partition(".")[0], "table") if key in held}
        return found if _at(path, made(section, alone, ((below, value),))[1]) else []

    def _first(self, path: str) -> Any:
        raw = self.axes[path]
        held = raw.get("min") if isinstance(raw, Mapping) else raw[0] if isinstance(raw, list) and raw else None
        return int(held) if isinstance(held, float) and held.is_integer() else held

    def _axis_problems(self) -> list[InputError]:
        if not 1 <= len(self.axes) <= MAX_AXES:
            return [InputError("axes", self.axes, f"1 to {MAX_AXES} fields with their values")]
        return [p for path, raw in self.axes.items() for p in self._problems_of(path, raw)]

    def _problems_of(self, path: str, raw: Any) -> list[InputError]:
        here = f"axes.{path}"
        if path.partition(".")[0] not in SECTIONS:
            return [InputError(here, raw, f"a field of {', '.join(SECTIONS)}, such as plan.tp")]
        if isinstance(raw, Mapping):
            held, problems = check(Between, raw, here)
            if held is None:
                return problems
            if held.count is None and self.sample is None:
                return [InputError(f"{here}.count", None, "required without a sample: a whole number")]
            exact = self._takes_whole(path, held)
            ends = {end: getattr(held, end) for end in ("min", "max")}
            made_of = {end: int(x) if exact and float(x).is_integer() else x for end, x in ends.items()}
            found = [(f"{here}.{end}", x, self._refused(path, x)) for end, x in made_of.items()]
        elif isinstance(raw, list) and 1 <= len(raw) <= MAX_AXIS_VALUES:
            if len({json.dumps(float(v) if type(v) is int else v, default=str) for v in raw}) < len(raw):
                return [InputError(here, raw, "every value once")]
            found = [(f"{here}.{n}", value, self._refused(path, value)) for n, value in enumerate(raw)]
        else:
            return [InputError(here, raw, "a list of values, or {min: .., max: .., count: .., scale: linear or log}")]
        return [_in_axis(path, where, value, problems[0]) for where, value, problems in found if problems]

    def _never_made(self) -> list[InputError]:
        """Return what refuses a section whatever values its axes have."""
        axes = [self._axis(path) for path in self.axes]
        return [p for section in SECTIONS for p in never_made(section, getattr(self, section), axes)]

    def _filter_problems(self) -> list[InputError]:
        found = []
        for n, one in enumerate(self.filters):
            for path in one.paths:
                where, section = "field" if path == one.field else one.comparison, path.partition(".")[0]
                if path not in self.axes and not compared(path):
                    allowed = f"an axis, or a number, text, true or false of {section}"
                    found.append(InputError(f"filters.{n}.{where}", path, allowed))
                elif one.ordered and is_text(path):
                    allowed = "a field of numbers; of text equals and differs_from compare"
                    found.append(InputError(f"filters.{n}.{where}", path, allowed))
            names = () if one.ordered or is_path(one.operand) else names_of(one.field)
            if names and one.operand not in names:
                found.append(InputError(f"filters.{n}.{one.comparison}", one.operand, ", ".join(names)))
        return found

    def _engine_problems(self) -> list[InputError]:
        found: list[InputError] = []
        for section in ("model", "cluster"):  # what no axis touches must be right
            if not any(path.partition(".")[0] == section for path in self.axes):
                found += made(section, getattr(self, section), ())[1]
        found += [p for section in SECTIONS for p in self._stated_problems(section)]
        given = {f"plan.{key}" for key in self.plan} | set(self.axes)
        if not given & {"plan", "plan.global_batch"}:
            found.append(InputError("plan.global_batch", None, "required, in the plan or as an axis"))
        if not any(path.partition(".")[0] == "plan" for path in self.axes):
            found += made("plan", self.plan, ())[1]
        return found + (self._not_analytic(given) if self.engine == "analytic" else [])

    def _stated_problems(self, section: str) -> list[InputError]:
        """Return what is wrong by itself with what a section states beside its axes, whatever these say."""
        raw = getattr(self, section)
        if section in self.axes or not any(path.startswith(f"{section}.") for path in self.axes):
            return []  # replaced by the axis, or checked as a whole
        if isinstance(raw, str):
            return made(section, raw, ())[1]
        found = []
        for key, value in raw.items():
            here = f"{section}.{key}"
            if not any(path == here or path.startswith(f"{here}.") for path in self.axes):
                # Alone it contradicts nothing, and what is missing beside it is at another path.
                found += _at(here, made(section, {key: value}, ())[1])
        return found

    def _not_analytic(self, given: set[str]) -> list[InputError]:
        known = "left out with engine analytic, whose closed forms do not know it; engine path does"
        wholes = "axes of a plan's fields, such as plan.tp, with engine analytic; engine path takes whole plans"
        found = [InputError("axes.plan", self.axes["plan"], wholes)] if "plan" in self.axes else []
        for path in sorted(given & {f"plan.{name}" for name in NOT_ANALYTIC}):
            where = f"axes.{path}" if path in self.axes else path
            found.append(InputError(where, self.axes.get(path, self.plan.get(path.removeprefix("plan."))), known))
        named = self.axes.get("plan.schedule", [(self.plan or {}).get("schedule")])
        options = ["none", *CLOSED]
        return found + [
            InputError(
                "plan.schedule", name, f"one of {', '.join(options)} with engine analytic; engine path knows more"
            )
            for name in named
            if name is not None and name not in options
        ]


def _at(path: str, problems: Iterable[InputError]) -> list[InputError]:
    """Return the problems of a field and of what is below it, or that there is none on the way to it."""
    return [
        p
        for p in problems
        if p.path == path
        or p.path.startswith(f"{path}.")
        or (path.startswith(f"{p.path}.") and (p.allowed == NOWHERE or isinstance(p.value, Mapping)))
    ]


def _in_axis(path: str, where: str, value: Any, problem: InputError) -> InputError:
    """Return the problem of an axis' value where it stands in the grid: at the value, or at the field below it."""
    below = problem.path.startswith(f"{path}.")
    return InputError(
        where + problem.path.removeprefix(path) if below else where, problem.value if below else value, problem.allowed
    )


def _axis_files(path: str, value: Any, folder: Path) -> Any:
    if not isinstance(value, list):
        return value
    of_files = path.rpartition(".")[2] in FILE_FIELDS
    return [whole_path(each, folder) if of_files else named_files(each, folder) for each in value]


def _priced(job: Mapping[str, Any]) -> bool:
    """Return whether a job says beside its cluster what devices cost."""
    training = job.get("training")
    return "prices" in job or (isinstance(training, Mapping) and "usd_per_gpu_hour" in training)
