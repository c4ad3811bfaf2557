"""Files of throughputs: the published JSON of measured ones, and short tables that a user writes.

The JSON (arXiv 2008.09213, the published system's measurements; `.json.gz` too) maps a type of device to kinds of job,
each written `('ResNet-18 (batch size 16)', 1)` for a type of job and a scale factor. A kind maps `null` to its steps/s
alone and other kinds to the steps/s of both where they share devices. A short table has the columns `job_type`,
`scale_factor`, `device` and `steps_per_s` (`.csv`), or lists such rows under `throughputs` beside a `source` (`.yaml`).
Zero says that a job cannot run there.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from sim.cluster.jobs import Kind
from sim.cluster.throughputs import Floats, Throughputs
from sim.specs.csv_rows import read_cells
from sim.specs.fields import MAX_PROBLEMS, InputError, check, real, spec, whole
from sim.specs.files import load_mapping, mapping_of, text_of

MAX_BYTES = 64 * 2**20
MAX_VALUES = 5_000_000

Placement = Literal["consolidated", "unconsolidated"]
PLACEMENTS = ("consolidated", "unconsolidated")
APART = "_unconsolidated"
"""Ends the name of a type of device whose jobs are spread over servers."""

FIRST = ("v100", "p100", "k80")
"""The order in which the published mechanism goes through types."""

ALONE = "null"
KIND = re.compile(r"\('([^'\\]{1,200})', ([1-9][0-9]{0,4})\)")
MOST_STEPS_PER_S = 1e12
ALLOWED = f"a number from 0 to {MOST_STEPS_PER_S:g} steps/s (0: it cannot run there)"

Rate = Annotated[float, real(0, MOST_STEPS_PER_S, "steps/s")]


@spec
class Row:
    """A line of a short table: steps/s of a type of job on so many devices of a type; 0 where it cannot run."""

    job_type: str
    scale_factor: Annotated[int, whole(1, 99_999)] = 1
    device: str
    steps_per_s: Rate

    def __post_init__(self) -> None:
        for name in ("job_type", "device"):
            if not getattr(self, name):
                raise InputError(name, "", "a name")


@spec
class _Table:
    """A short table in a YAML file."""

    throughputs: list[Row]
    source: str = ""


def read_throughputs(path: str | Path, placement: Placement = "consolidated") -> Throughputs:
    """Return the throughputs in a `.json` (`.json.gz`), `.csv` or `.yaml` file.

    Of the JSON those of jobs whose devices stand together, or of jobs spread over servers (`placement`). Types come in
    the order v100, p100, k80, then as in the file; what the file does not state cannot run.

    Raises:
        InputError: with the path of the first value that is wrong, the others in `also`.
    """
    if placement not in PLACEMENTS:
        raise InputError("placement", placement, "one of " + ", ".join(PLACEMENTS))
    file = Path(path)
    suffixes = file.suffixes[-2:] if file.suffix == ".gz" else file.suffixes[-1:]
    if suffixes[:1] == [".json"]:
        raw = mapping_of(text_of(file, MAX_BYTES), ".json", str(file), MAX_BYTES, MAX_VALUES)
        return _Measured(raw, placement, str(file)).throughputs()
    readers = {".csv": _csv_rows, ".yaml": _yaml_rows, ".yml": _yaml_rows}
    if "".join(suffixes) not in readers:
        raise InputError(str(file), "".join(suffixes), "one of .json, .json.gz, .csv, .yaml, .yml")
    rows, source = readers["".join(suffixes)](file)
    return tabled(rows, source)


def tabled(rows: Iterable[Row], source: str = "") -> Throughputs:
    """Return the throughputs of a short table; raises InputError where it has no row, or states one twice."""
    held: dict[str, dict[Kind, float]] = {}
    for n, row in enumerate(rows):
        column, kind = held.setdefault(row.device, {}), (row.job_type, row.scale_factor)
        if kind in column:
            told = "each job type, scale factor and device once"
            raise InputError(f"throughputs.{n}", f"{row.job_type}, {row.scale_factor}, {row.device}", told)
        column[kind] = row.steps_per_s
    if not held:
        raise InputError("throughputs", [], "a row or more")
    types = ordered(held)
    kinds = dict.fromkeys(kind for device in held for kind in held[device])
    alone = {kind: np.array([held[one].get(kind, 0.0) for one in types]) for kind in kinds}
    return Throughputs(types=types, alone=alone, source=source)


def ordered(types: Iterable[str]) -> tuple[str, ...]:
    """Return types of devices in the published mechanism's order, others after them as they come."""
    known = tuple(types)
    return tuple(t for t in FIRST if t in known) + tuple(t for t in known if t not in FIRST)


def _yaml_rows(file: Path) -> tuple[list[Row], str]:
    table, problems = check(_Table, load_mapping(file), str(file))
    if table is None:
        raise _together(problems)
    return table.throughputs, table.source or str(file)


def _csv_rows(file: Path) -> tuple[list[Row], str]:
    names = [f.name for f in fields(Row)]
    rows: list[Row] = []
    problems: list[InputError] = []
    try:
        for place, cells in read_cells(file, Row, "a table of throughputs"):
            given = {name: _number(cell) for name, cell in zip(names, cells, strict=True)}
            row, found = check(Row, given | {"job_type": cells[0], "device": cells[2]}, place)
            rows += [row] if row else []
            problems += found
            if len(problems) >= MAX_PROBLEMS:
                break
    except InputError as error:
        problems.append(error)
    if problems:
        raise _together(problems)
    return rows, str(file)


def _number(cell: str) -> Any:
    try:
        return int(cell) if cell.isdecimal() and len(cell) < 20 else float(cell)
    except ValueError:
        return cell


def _together(problems: list[InputError]) -> InputError:
    first, *others = problems[:MAX_PROBLEMS]
    return InputError(first.path, first.value, first.allowed, others)


def kind_of(text: str) -> Kind | None:
    """Return the kind of job that `('name', scale factor)` means, None where the text is no kind."""
    found = KIND.fullmatch(text)
    return (found[1], int(found[2])) if found else None


class _Measured:
    """The published JSON, read; what is wrong with it is gathered."""

    def __init__(self, raw: Mapping[str, Any], placement: Placement, file: str) -> None:
        self.file = file
        self.alone: dict[str, dict[Kind, float]] = {}
        self.together: dict[str, dict[tuple[Kind, Kind], tuple[float, float]]] = {}
        names = {n: n.removesuffix(APART) for n in raw if n.endswith(APART) == (placement == "unconsolidated")}
        if not names:
            raise InputError(file, "no such types", f"types of devices, {placement} ones")
        problems = list(islice((e for name, short in names.items() for e in self._device(raw, name, short)),
                               MAX_PROBLEMS))  # fmt: skip
        if problems:
            raise _together(problems)

    def _device(self, raw: Mapping[str, Any], name: str, short: str) -> Iterator[InputError]:
        alone, together = self.alone.setdefault(short, {}), self.together.setdefault(short, {})
        if not isinstance(raw[name], dict):
            yield InputError(f"{self.file}: {name}", raw[name], "a mapping of kinds of job")
            return
        for text, held in raw[name].items():
            place, kind = f"{self.file}: {name}.{text}", kind_of(text)
            if kind is None:
                yield InputError(place, text, "('name', scale factor) as a key")
            elif not isinstance(held, dict) or ALONE not in held:
                yield InputError(place, held, "a mapping with the key null: steps/s alone")
            else:
                for other, value in held.items():
                    second = kind_of(other)
                    if other == ALONE:
                        found = [] if _is_rate(value) else [InputError(f"{place}.{other}", value, ALLOWED)]
                        alone[kind] = value
                    elif second is None:
                        found = [InputError(f"{place}.{other}", other, "null or ('name', scale factor) as a key")]
                    else:
                        is_pair = isinstance(value, list) and len(value) == 2 and all(map(_is_rate, value))
                        found = [] if is_pair else [InputError(f"{place}.{other}", value, f"two of: {ALLOWED}")]
                        together[kind, second] = tuple(value) if is_pair else (0.0, 0.0)
                    yield from found

    def throughputs(self) -> Throughputs:
        """Return arrays over types in order; a pair stated one way round is known the other way round too."""
        types = ordered(self.alone)
        kinds = dict.fromkeys(kind for device in self.alone.values() for kind in device)
        pairs = dict.fromkeys(pair for device in self.together.values() for pair in device)
        alone = {kind: np.array([self.alone[t].get(kind, 0.0) for t in types], dtype=np.float64) for kind in kinds}
        together: dict[tuple[Kind, Kind], Floats] = {}
        for one, other in pairs:
            rates = [self._shared(t, one, other) for t in types]
            together[one, other] = np.array(rates, dtype=np.float64)
            together.setdefault((other, one), together[one, other][:, ::-1])
        return Throughputs(types=types, alone=alone, together=together, source=self.file)

    def _shared(self, device: str, one: Kind, other: Kind) -> tuple[float, float]:
        held = self.together[device]
        return held.get((one, other)) or held.get((other, one), (0.0, 0.0))[::-1]


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_STEPS_PER_S
