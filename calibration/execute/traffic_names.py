"""Names of what is counted, without loading torch."""

from collections.abc import Mapping

Counted = Mapping[str, tuple[int, float]]
"""Messages (calls) and bytes sent, by group and operation ("dp all_reduce") or link ("pp send 0>1")."""

REDUCED, PARTS, EXCHANGED, SUMMED = "all_reduce", "all_gather", "exchange", "reduce_scatter"
