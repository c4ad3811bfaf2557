"""Whether a notebook tells what it told when it was stored."""

from base64 import b64decode
from collections.abc import Iterator
from math import isclose, isnan
from typing import Any

import numpy as np
from nbformat import NotebookNode

FIGURE = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"


def differences(stored: list[NotebookNode], found: list[NotebookNode]) -> list[str]:
    """Return where what cells print and draw differs: in words, or in a number by more than rounding."""
    one, other = _told(stored), _told(found)
    both = {place: (one.get(place), other.get(place)) for place in one | other}
    return [f"{place}: {values}" for place, values in both.items() if not _same(*values)]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return isclose(a, b, rel_tol=1e-8, abs_tol=1e-9) or (isnan(a) and isnan(b))
    return bool(a == b)


def _told(cells: list[NotebookNode]) -> dict[str, Any]:
    """Return all that code cells print and draw, by cell and place."""
    found: dict[str, Any] = {}
    for cell in cells:
        outputs = cell.get("outputs", ())
        printed = "".join(o.text for o in outputs if o.output_type == "stream")
        found |= {cell.id: printed} if printed else {}
        shown = [o.data for o in outputs if "data" in o and WIDGET not in o.data]
        for n, data in enumerate(shown):
            parts = _flat(data[FIGURE]["data"]) if FIGURE in data else [("", data.get("text/plain"))]
            found |= {f"{cell.id}.{n}{place}": value for place, value in parts}
    return found


def _flat(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and "bdata" in value:
        value = np.frombuffer(b64decode(value["bdata"]), value["dtype"]).astype(float).tolist()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    else:
        yield "", float(value) if isinstance(value, int) else value
        return
    for name, part in parts:
        for place, each in _flat(part):
            yield f".{name}{place}", each
