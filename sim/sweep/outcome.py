"""What became of the configurations of a block, and its one compressed form."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sim.specs.fields import short
from sim.sweep.numbering import Axis
from sim.units import digits3, seconds

OUTCOMES = ("ok", "impossible", "failed", "filtered")
"""Codes: predicted; refused, with the rule that is broken; an error of the program; left out by a filter."""

OK, IMPOSSIBLE, FAILED, FILTERED = range(len(OUTCOMES))
FITS = ("no", "close", "yes")

NUMBERS: Mapping[str, Any] = {
    "step_time_s": np.float64, "peak_memory_bytes": np.float64, "fits": np.int8, "mfu": np.float32,
    "tokens_per_s_per_gpu": np.float32, "usd_per_1e9_tokens": np.float32,
}  # fmt: skip
"""Columns of every prediction; `fits` is a code of `FITS`, -1 where there is none; else NaN where there is none."""

INTERVAL: Mapping[str, Any] = {"step_time_low_s": np.float64, "step_time_high_s": np.float64}
"""The 80 % interval of the step time, which simulated steps have."""

MOST_REASON = 300
MOST_REASONS = 10_000
MOST_ROWS = 1 << 20

Objective = Literal["step_time", "tokens_per_s_per_gpu", "cost"]
BETTER: Mapping[str, tuple[str, int]] = {
    "step_time": ("step_time_s", 1),
    "tokens_per_s_per_gpu": ("tokens_per_s_per_gpu", -1),
    "cost": ("usd_per_1e9_tokens", 1),
}
"""By objective: the column, and 1 where less of it is better, -1 where more is."""


def usual_objective(axes: Iterable[Axis]) -> Objective:
    """Return what a sweep ranks by that states no objective: the step time, or tokens/s and GPU where global batches
    differ, as a step of more samples takes longer and does more."""
    for axis in axes:
        if axis.path == "plan.global_batch":
            batches = set(axis.values or (axis.low, axis.high))
        else:
            batches = {v.get("global_batch") for v in axis.values if axis.path == "plan" and isinstance(v, Mapping)}
        if len(batches) > 1:
            return "tokens_per_s_per_gpu"
    return "step_time"


def measured(value: float, objective: str) -> str:
    """Return a value of an objective with its unit."""
    if objective == "step_time":
        return f"{seconds(value)} a step"
    return f"{digits3(value)} " + ("tokens/s and GPU" if objective != "cost" else "USD per 1e9 tokens")


CHECKSUM = 4
"""Bytes of the checksum before the rows of a block."""


def sealed(rows: bytes) -> bytes:
    """Return packed rows behind their checksum: without it a changed bit may read as another number."""
    return crc32(rows).to_bytes(CHECKSUM, "little") + rows


class Damaged(ValueError):  # noqa: N818 - what it is, as a person would say it
    """A stored block that is not what was written."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A block's rows. outcome [row]: codes of `OUTCOMES`; reason [row]: an index of `reasons`, or -1; numbers:
    `NUMBERS` and perhaps `INTERVAL`, each [row]."""

    outcome: NDArray[np.uint8]
    reason: NDArray[np.int16]
    reasons: tuple[str, ...]
    numbers: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.outcome)

    @classmethod
    def blank(cls, rows: int, interval: bool = False) -> "Outcome":
        """Return rows that are all ok, with no numbers yet."""
        kinds = {**NUMBERS, **(INTERVAL if interval else {})}
        numbers = {k: np.full(rows, -1 if t is np.int8 else np.nan, dtype=t) for k, t in kinds.items()}
        return cls(np.zeros(rows, dtype=np.uint8), np.full(rows, -1, dtype=np.int16), (), numbers)

    def counts(self) -> tuple[int, ...]:
        """Return the rows of every one of `OUTCOMES`."""
        return tuple(np.bincount(self.outcome, minlength=len(OUTCOMES)).tolist())

    def best(self, objective: str) -> tuple[int, float] | None:
        """Return the row that is best by an objective among those that surely fit, and its value; None without any."""
        name, sign = BETTER[objective]
        values = np.where(self.numbers["fits"] == FITS.index("yes"), sign * self.numbers[name].astype(float), np.inf)
        values = np.where(np.isnan(values), np.inf, values)
        row = int(np.argmin(values)) if len(values) else 0
        return (row, float(sign * values[row])) if len(values) and np.isfinite(values[row]) else None

    def packed(self) -> bytes:
        """Return the rows as an Arrow stream, compressed by Zstandard, behind its checksum."""
        arrays = [pa.array(self.outcome), pa.array(self.reason), *(pa.array(v) for v in self.numbers.values())]
        named = pa.record_batch(arrays, names=["outcome", "reason", *self.numbers])
        listed = pa.array([list(self.reasons)], type=pa.list_(pa.string()))
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        for batch in (named, pa.record_batch([listed], names=["reasons"])):
            with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
                stream.write_batch(batch)
        return sealed(bytes(sink.getvalue()))

    @classmethod
    def unpacked(cls, payload: bytes, rows: int) -> "Outcome":
        """Return the rows of `packed`; raises Damaged where it is no such block of so many rows."""
        if payload != sealed(payload[CHECKSUM:]):
            raise Damaged("checksum is another")
        try:
            source = pa.BufferReader(payload[CHECKSUM:])
            (table,), (words,) = (list(pa.ipc.open_stream(source)) for _ in range(2))
            for batch in (table, words):
                batch.validate(full=True)
            if table.num_rows != rows or words.num_rows != 1:
                raise Damaged(f"{table.num_rows} rows in place of {rows}")
            held = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.schema.names}
            reasons = tuple(str(text) for text in words.column("reasons")[0].as_py())
            made = cls(held.pop("outcome"), held.pop("reason"), reasons, held)
            made._check()
        except Damaged:
            raise
        except (pa.ArrowException, KeyError, ValueError, TypeError, OSError, MemoryError) as error:
            raise Damaged(short(str(error), 80)) from None
        return made

    def _check(self) -> None:
        """Raise Damaged where columns are missing, of another type, or hold codes that there are not."""
        kinds = {**NUMBERS, **{k: t for k, t in INTERVAL.items() if k in self.numbers}}
        typed = {name: column.dtype for name, column in self.numbers.items()}
        if typed != kinds or self.outcome.dtype != np.uint8 or self.reason.dtype != np.int16:
            raise Damaged("other columns")
        coded = self.outcome.max(initial=0) < len(OUTCOMES) and self.reason.min(initial=-1) >= -1
        if not coded or self.reason.max(initial=-1) >= len(self.reasons) or len(self.reasons) > MOST_REASONS:
            raise Damaged("codes out of range")


class Reasons:
    """Reasons by index, as rows meet them."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def index(self, text: str) -> int:
        """Return the index of a reason; beyond `MOST_REASONS` all share the last one."""
        text = short(" ".join(text.split()), MOST_REASON)
        if text not in self.known and len(self.known) >= MOST_REASONS - 1:
            text = "other reasons"
        return self.known.setdefault(text, len(self.known))
