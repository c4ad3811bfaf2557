"""Figures and words of the input pipeline."""

import pytest

from sim.catalog import names
from sim.loading import predict, simulate, study, what_if
from sim.report import figures
from sim.report.loading import answer_loading, answer_simulated, what_if_lines
from sim.specs import InputError
from sim.specs.dataset import Dataset
from sim.specs.loading import Loading

LOADING = Loading(dataset=Dataset(samples=4_000, sample_bytes=1e5), prep_s=0.004, workers=4, cores=4)
ROWS = what_if(LOADING, 2_000.0, "cache")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_stalls_are_stacked_to_a_hundred_percent(theme):
    figure = figures.stalls(ROWS, theme=theme)
    assert [trace.name for trace in figure.data] == ["compute", "prep stall", "fetch stall"]
    for parts in zip(*(trace.y for trace in figure.data), strict=True):
        assert sum(parts) == pytest.approx(100)
    assert figure.layout.xaxis.title.text == "cached files (GB)"


@pytest.mark.parametrize("axis", ["cache", "cores", "storage", "gpus"])
def test_rates_are_those_of_the_rows(axis):
    rows = what_if(LOADING, 2_000.0, axis)
    figure = figures.loading_rates(rows)
    assert list(figure.data[-1].y) == [row.samples_per_s for row in rows]
    assert len(figure.data[0].x) == len(rows)


@pytest.mark.parametrize("part", ["compute", "prep", "fetch"])
def test_a_map_has_a_row_for_each_network(part):
    found = study(cached=(0.0, 0.5), cores=(24,))
    figure = figures.stall_map(found, part)
    assert len(figure.data[0].y) == 9
    shown = found.table(part, "lru", "sata-ssd", 24)["audio-m5, fma-full"]
    assert list(figure.data[0].z[-1]) == pytest.approx([100 * value for value in shown.values()])


def test_no_rows_are_told():
    with pytest.raises(InputError, match=r"^rows"):
        figures.stalls([])


def test_lines_say_rates_stalls_and_what_is_enough():
    found = predict(LOADING, 2_000.0)
    text = " ".join(answer_loading(found))
    assert found.why in text
    assert "samples/s of" in text and "Enough:" in text and "Assumed: loading.storage: sata-ssd" in text
    free = " ".join(answer_loading(predict(Loading(dataset=LOADING.dataset), 10.0)))
    assert "as much as one likes" in free
    assert answer_simulated(simulate(LOADING, 2_000.0, 16), found)[0].startswith("Simulated: ")
    assert len(what_if_lines(ROWS)) == len(ROWS)
    assert what_if_lines(ROWS)[1].startswith("cache 20.0")


def test_what_changes_nothing_is_one_line():
    idle = "10.0 samples/s, fetch stall 0.0\u00a0%, prep stall 0.0\u00a0%"
    assert what_if_lines(what_if(LOADING, 10.0, "cache")) == [f"cache 0 B to 400 MB: {idle}"]
    by_name = what_if_lines(what_if(LOADING, 10.0, "storage"))
    assert len(by_name) == len(names("storage")) and not any(" to " in line for line in by_name)
