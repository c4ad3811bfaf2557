"""Reader of a table of measured runs: one CSV file, one typed row a run, nothing guessed here.

Columns and units are those of the project's reference tables: bytes, seconds, sequences; a blank cell, or a column
that is missing, is "not stated" (None). What a blank means is decided in `sim.validation.translate`.
"""

import csv
import re
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, get_args, get_type_hints

from pydantic import Field

from sim.specs.csv_rows import csv_lines
from sim.specs.fields import DERIVED, InputError, real, spec, whole
from sim.specs.files import UNPRINTABLE, text_of
from sim.specs.meant import near
from sim.specs.plan import Recompute

MAX_BYTES = 16 * 2**20
"""Eight thousand rows with long notes, twenty times the largest table in use."""

MemoryKind = Literal["allocated", "reserved", "nvidia_smi"]
USES = ("time", "time?", "memory", "oom", "layer_time", "parity")

Text = Annotated[str, Field(max_length=4_000, description="text of at most 4,000 characters")]
Short = Annotated[str, Field(min_length=1, max_length=200, description="text of 1 to 200 characters")]
Count = Annotated[int, whole(1, 100_000_000)]
Degree = Annotated[int, whole(1, 1_000_000)]
Rate = Annotated[float, real(0.0, 1e12)]


@spec
class Measured:
    """One measured run as the table states it; None where a cell is blank.

    `inter_node_gbytes_per_s` is a node's aggregate each way (GB/s), batches are in sequences, `memory_rank` says
    whether the peak is the last pipeline rank's or the largest. `use_for` names what the row may score: time,
    time? (order only), memory, oom, layer_time, parity, joined by "+"; blank means nothing. `step_time_s` and
    `peak_memory_bytes` are numbers wherever `use_for` needs them, and else None where they are blank; `oom` is
    stated where `use_for` says so. With an `adapter_rank` adapters alone are trained (`Model`).

    Raises:
        InputError: a value is out of range; `path` is the column.
    """

    id: Short
    source: Short
    tier: Text = ""
    device: Short
    gpus: Count | None = None
    gpus_per_node: Degree | None = None
    intra_node: Literal["nvlink", "pcie"] | None = None
    inter_node_gbytes_per_s: Annotated[float, real(1e-3, 1e5, "GB/s")] | None = None
    model: Short
    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    ffn: Count | None = None
    gated_mlp: bool | None = None
    vocab: Count | None = None
    seq: Count | None = None
    experts: Count | None = None
    experts_per_token: Count | None = None
    moe_ffn: Count | None = None
    attention: Literal["eager", "flash"] | None = None
    adapter_rank: Annotated[int, whole(0, 65_536)] | None = None
    adapters_on: Literal["qkv", "attention", "all"] | None = None
    precision: Short
    global_batch: Count | None = None
    micro_batch: Count | None = None
    tp: Degree = 1
    pp: Degree = 1
    vpp: Degree | None = None
    dp: Degree | None = None
    cp: Degree | None = None
    ep: Degree | None = None
    etp: Degree | None = None
    sequence_parallel: bool | None = None
    recompute: Recompute | None = None
    zero_stage: Annotated[int, whole(0, 3)] | None = None
    fsdp_shard: Annotated[int, whole(0, 1_000_000)] | None = None
    schedule: Annotated[str, Field(max_length=40, description="a schedule's name")] | None = None
    compiled: bool | None = None
    step_time_s: Annotated[float, real(1e-6, 1e6, "s")] = DERIVED
    tokens_per_s_per_gpu: Rate | None = None
    tflops_per_gpu: Rate | None = None
    tflops_counts_recompute: bool | None = None
    mfu_pct: Annotated[float, real(0.0, 100.0, "%")] | None = None
    peak_memory_bytes: Annotated[float, real(1e6, 1e15, "B")] = DERIVED
    memory_kind: MemoryKind | None = None
    memory_rank: Literal["last", "max"] | None = None
    oom: bool | None = None
    group: Text = ""
    use_for: Text = ""
    notes: Text = ""

    def __post_init__(self) -> None:
        unknown = self.uses - {*USES}
        if unknown:
            raise InputError("use_for", self.use_for, "any of " + ", ".join(USES) + ' joined by "+", or blank')
        for use, column in (("time", "step_time_s"), ("time?", "step_time_s"), ("memory", "peak_memory_bytes")):
            if use in self.uses and getattr(self, column) is None:
                raise InputError(column, None, f"a number: use_for says {use}")
        if "oom" in self.uses and self.oom is None:
            raise InputError("oom", None, "true or false: use_for says oom")
        if "memory" in self.uses and self.memory_kind is None:
            raise InputError("memory_kind", None, "one of " + ", ".join(get_args(MemoryKind)))

    @property
    def uses(self) -> frozenset[str]:
        """What the row may score."""
        return frozenset(filter(None, self.use_for.split("+")))


COLUMNS = tuple(f.name for f in fields(Measured))
REQUIRED = tuple(f.name for f in fields(Measured) if f.default is MISSING)
"""Columns that every row fills; the others may be missing altogether."""


def is_runs(path: Path) -> bool:
    """Return whether a CSV file begins with the columns of measured runs."""
    try:
        if not path.is_file():
            return False
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return {*REQUIRED, "use_for"} <= set(next(csv.reader([file.readline(10_000)]), []))
    except (OSError, ValueError, csv.Error):
        return False  # the reader of the file says what is wrong with it


def read_runs(path: str | Path) -> list[Measured]:
    """Return the rows of a table of measured runs, in the file's order.

    Raises:
        InputError: no such file, too large, a required column missing, one unknown or given twice, an id twice, or a
            cell that is not what its column holds (the path is `file:line:column`).
    """
    file = Path(path)
    lines = csv_lines(text_of(file, MAX_BYTES), str(file))
    header = next(lines, ("", []))[1]
    wrong = {
        "missing": [name for name in REQUIRED if name not in header],
        "unknown": sorted({*header} - {*COLUMNS}),
        "twice": sorted({name for name in header if header.count(name) > 1}),
    }
    if any(wrong.values()):
        found = "; ".join(f"{what}: {', '.join(names)}" for what, names in wrong.items() if names)
        more = ", ".join(name for name in COLUMNS if name not in REQUIRED)
        once = "each column once" + (", separated by commas" if len(header) == 1 else "")
        known = {name: near(name, COLUMNS, keys=True) for name in wrong["unknown"]}
        meant = [f"{' or '.join(names)} for {name}" for name, names in known.items() if names]
        hint = f"; did you mean {', '.join(meant)}?" if meant else ""
        raise InputError(f"{file}:1", found, f"{once}: {', '.join(REQUIRED)}, and where there are any {more}{hint}")
    rows: dict[str, Measured] = {}
    for place, cells in lines:
        row = _row(place, dict(zip(header, cells, strict=True)))
        if row.id in rows:
            raise InputError(f"{place}:id", row.id, "each id once")
        rows[row.id] = row
    return list(rows.values())


def _row(place: str, cells: dict[str, str]) -> Measured:
    for column, text in cells.items():
        if UNPRINTABLE.search(text.replace("\r\n", "\n")):
            raise InputError(f"{place}:{column}", text, "text without control characters")
    given = {column: _value(_kinds()[column], text) for column, text in cells.items() if text != ""}
    try:
        return Measured(**given)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"{place}:{error.path}", error.value, error.allowed) from None


@cache
def _kinds() -> dict[str, type]:
    """Return the plain type of every column."""
    plain = {}
    for name, hint in get_type_hints(Measured).items():
        kinds = [kind for kind in (hint, *get_args(hint)) if kind in (bool, int, float)]
        plain[name] = kinds[0] if kinds else str
    return plain


NUMBER = re.compile(r"[-+]?([0-9]{1,20}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][-+]?[0-9]{1,3})?")
BOOLEANS = {"0": False, "1": True, "false": False, "true": True}


def _value(kind: type, text: str) -> object:
    """Return a cell as its column's type; a text that is no such value stays text and is refused by the spec.

    Whole numbers and truth values may have a point or an exponent: pandas writes 8.0 and 1.0 where others are blank.
    """
    if kind not in (bool, int, float):
        return text
    number = float(text) if NUMBER.fullmatch(text) else None
    if kind is bool:
        return BOOLEANS.get(text.lower(), bool(number) if number in (0, 1) else text)
    if number is None or (kind is int and not number.is_integer()):
        return text
    return number if kind is float else int(text) if text.lstrip("+-").isdigit() else int(number)
