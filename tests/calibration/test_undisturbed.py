"""Which samples of a session are fitted: what is flagged only where a kernel has too few others."""

from typing import Any

from calibration.samples import FAIR, LEAST
from calibration.undisturbed import taken


def row(op: str, n: int, ratio: float = 1.0, *, flagged: bool = False, use: str = "fit") -> dict[str, Any]:
    return {"op": op, "id": f"{op}{n}", "use": use, "flagged": flagged, "sentinel_ratio": ratio}


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [r["id"] for r in taken(rows, lambda r: r["op"])]


def test_what_is_flagged_is_left_out_where_there_is_enough() -> None:
    rows = [row("a", n, flagged=n >= LEAST) for n in range(LEAST + 3)]
    assert names(rows) == [f"a{n}" for n in range(LEAST)]


def test_the_least_disturbed_come_back_where_there_is_not() -> None:
    calm = [row("a", n) for n in range(LEAST - 1)]
    disturbed = [row("a", 10 + n, ratio=1 + 0.1 * (n - 6.2), flagged=True) for n in range(12)]
    nearest = ["a15", "a16", "a17", "a18"][: FAIR - len(calm)]
    assert names(calm + disturbed) == [r["id"] for r in calm] + nearest


def test_kernels_do_not_make_up_for_each_other_and_hold_outs_stay_out() -> None:
    rows = [row("a", n) for n in range(LEAST)] + [row("b", 0, 1.3, flagged=True), row("b", 1, use="random")]
    rows += [row("b", 2, use="larger", flagged=True), row("a", 9, 1.04, flagged=True)]
    assert names(rows) == [*(f"a{n}" for n in range(LEAST)), "b0", "b1"]
