"""Which samples of a session fits take: the undisturbed, and of a kernel with too few of them the least disturbed.

On a machine whose neighbours come and go by the second three samples of four may be flagged, and some kernels keep
none: a profile is worth more than no profile, if it says what it rests on.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from calibration.samples import FAIR, LEAST

Row = Mapping[str, Any]


def taken(rows: Sequence[Row], kernel: Callable[[Row], Hashable]) -> list[Row]:
    """Return the rows that no guard has flagged, in their order, and what kernels with too few of them need.

    A kernel (what `kernel` tells rows apart by) with less than `LEAST` fitted rows left gets back its flagged ones with
    the sentinel nearest to its usual time, until it has `FAIR`.
    """
    calm: dict[Hashable, int] = defaultdict(int)
    flagged: dict[Hashable, list[int]] = defaultdict(list)
    for n, row in enumerate(rows):
        if row["flagged"] and row["use"] == "fit":
            flagged[kernel(row)].append(n)
        elif not row["flagged"]:
            calm[kernel(row)] += row["use"] == "fit"
    back: set[int] = set()
    for name, some in flagged.items():
        if calm[name] < LEAST:
            back |= set(sorted(some, key=lambda n: abs(rows[n]["sentinel_ratio"] - 1))[: FAIR - calm[name]])
    return [row for n, row in enumerate(rows) if n in back or not row["flagged"]]
