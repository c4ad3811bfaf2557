"""The heat map of cost terms: the change of the bias-removed error, source by source."""

import pytest

from sim.report import figures
from sim.validation.ablation import Ablated


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_cell_is_the_change_without_a_term(theme) -> None:
    rows = [
        Ablated(term, words, source, 10, 9.0, value)
        for term, words, values in (("", "every term", (5.0, 4.0)), ("ends", "ends", (7.5, 4.05)))
        for source, value in zip(("<b>first", "second"), values, strict=True)
    ]
    (map_,) = figures.ablation(rows, theme).data
    assert map_.z.tolist() == [pytest.approx([2.5, 0.05])] and list(map_.y) == ["ends"]
    assert map_.text[0][0] == "+2.5" and map_.text[0][1] == ""
    assert map_.x[0].startswith("&lt;b&gt;first") and "5.0 %" in map_.x[0]
