"""The live view of a sweep: nothing runs by itself, a pause loses nothing, filters are counted."""

import asyncio
import time

import pytest
from plotly.callbacks import BoxSelector, Points

import sim
from sim.specs import InputError
from sim.sweep.writer import locked, unlocked
from sim.widgets import background

GRID = """
model: gpt3-175b
cluster: {device: h100-sxm-80gb, nodes: 16}
plan: {global_batch: 1024, recompute: selective, zero: 1}
axes:
  plan.tp: [1, 2, 4, 8]
  plan.pp: [2, 3, 4, 8]
  plan.micro_batch: [1, 2]
engine: %s
"""


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(GRID % "analytic")
    return path


@pytest.fixture(autouse=True, scope="module")
def _no_process_left():
    yield
    background.close()


def test_nothing_runs_before_it_is_asked(grid, tmp_path):
    view = sim.watch_sweep(grid, tmp_path / "sweep.db")
    assert "none done yet" in view.message
    assert not (tmp_path / "sweep.db").exists()


def test_an_axis_of_many_values_is_no_list_to_filter_by(grid, tmp_path):
    long = "axes:\n  cluster.links.latency_s: {min: 1.0e-6, max: 1.0e-4, count: 5000}"
    grid.write_text(grid.read_text().replace("axes:", long))
    view = sim.watch_sweep(grid, tmp_path / "sweep.db")
    assert view.axis.options == ("plan.tp", "plan.pp", "plan.micro_batch")
    assert "cluster.links.latency_s" in view.columns.options and len(view.values.options) == 4


@pytest.mark.slow
def test_a_sweep_runs_beside_and_is_drawn(grid, tmp_path):
    view = sim.watch_sweep(sim.Grid.load(grid), tmp_path / "sweep.db")
    view.bar.start()
    assert view.bar.job.wait(120)
    assert view.bar.state == "done", view.bar.message
    assert "32 of 32 configurations done" in view.message
    assert "Best: " in view.message
    assert sum(len(t.x) for t in view.canvas.plot.data if t.mode == "markers") == 24  # pp 3 is impossible
    assert view.canvas.plot.data[-1].name == "front of the points drawn"  # that of the whole store is on the page
    assert "does not divide" in view._reasons.value


def test_filters_by_axis(grid, tmp_path):
    sim.sweep(sim.Grid.load(grid), tmp_path / "sweep.db", runner="here")
    view = sim.watch_sweep(grid, tmp_path / "sweep.db")
    drawn = sum(len(t.x) for t in view.canvas.plot.data if t.mode == "markers")
    view.axis.value = "plan.tp"
    view.values.value = (8, 4)
    fewer = sum(len(t.x) for t in view.canvas.plot.data if t.mode == "markers")
    assert fewer == drawn // 2
    assert view.clear.description == "Clear filters (1)"
    view.clear.click()
    assert view.clear.description == "Clear filters (0)"
    assert sum(len(t.x) for t in view.canvas.plot.data if t.mode == "markers") == drawn


def test_a_figure_without_points_says_why(grid, tmp_path):
    def said(view):
        return [note.text for note in view.canvas.plot.layout.annotations]

    view = sim.watch_sweep(grid, tmp_path / "sweep.db")
    assert said(view) == ["nothing in the store yet: press Start"]
    sim.sweep(sim.Grid.load(grid), tmp_path / "sweep.db", runner="here")
    view.axis.value = "plan.pp"
    view.values.value = (3,)  # impossible with all others
    assert said(view) == ["no point has these values"] and not view.canvas.plot.data
    view.clear.click()
    assert said(view) == [] and view.canvas.plot.data and view.canvas.plot.layout.xaxis.visible is None


def test_a_store_without_predictions_says_so(grid, tmp_path):
    grid.write_text(grid.read_text().replace("plan.pp: [2, 3, 4, 8]", "plan.pp: [3, 5]"))
    sim.sweep(sim.Grid.load(grid), tmp_path / "sweep.db", runner="here")
    (note,) = sim.watch_sweep(grid, tmp_path / "sweep.db").canvas.plot.layout.annotations
    assert note.text == "no configuration has a prediction"


def test_a_box_chooses_the_rows_of_the_table(grid, tmp_path):
    sim.sweep(sim.Grid.load(grid), tmp_path / "sweep.db", runner="here")
    view = sim.watch_sweep(grid, tmp_path / "sweep.db")
    assert view._table.value.count("<tr") == 1 + 20 and "of 24 points drawn" in view._table.value
    trace = next(t for t in view.canvas.plot.data if t.name.startswith("fits"))
    x, y = float(trace.x[0]), float(trace.y[0])
    trace._dispatch_on_selection(Points(), BoxSelector(xrange=[1.01 * x, 0.99 * x], yrange=[0.99 * y, 1.01 * y]))
    assert view.clear.description == "Clear filters (1)"
    assert view._table.value.count("<tr") == 2 and f"<td>{trace.customdata[0][0]}</td>" in view._table.value
    assert [list(t.selectedpoints) for t in view.canvas.plot.data if t.name == trace.name] == [[0]]
    view.columns.value = ("plan.tp", "fits")
    assert "plan." in view._table.value and "peak memory" not in view._table.value
    view.clear.click()
    assert view.brush is None and not view.canvas.plot.layout.selections
    assert [t.unselected.marker.opacity for t in view.canvas.plot.data] == [0.75, 0.75, 0.75, 1]


def test_a_zoom_outlives_a_look(grid, tmp_path):
    sim.sweep(sim.Grid.load(grid), tmp_path / "sweep.db", runner="here")
    view = sim.watch_sweep(grid, tmp_path / "sweep.db")
    view.canvas.plot.layout.xaxis.range = (1.6, 1.7)
    view.refresh()
    view.refresh()
    assert view.canvas.plot.layout.xaxis.range == (1.6, 1.7)


def test_the_store_of_another_grid_is_said(grid, tmp_path):
    sim.sweep(sim.Grid.load(grid), tmp_path / "sweep.db", runner="here")
    grid.write_text((GRID % "analytic").replace("1024", "512"))
    assert "the store of another grid" in sim.watch_sweep(grid, tmp_path / "sweep.db").message


def test_what_another_program_writes_is_seen(grid, tmp_path):
    async def watched():
        view = sim.watch_sweep(grid, tmp_path / "sweep.db")
        await asyncio.to_thread(sim.sweep, sim.Grid.load(grid), tmp_path / "sweep.db", runner="here")
        until = time.monotonic() + 20
        while "32 of 32" not in view.message and time.monotonic() < until:
            await asyncio.sleep(0.1)
        return view.message

    assert "32 of 32" in asyncio.run(watched())


@pytest.mark.slow
def test_a_pause_resumes(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(GRID % "events" + "sample: {method: random, count: 10, seed: 1}\n")
    view = sim.watch_sweep(path, tmp_path / "sweep.db")
    view.bar.start()
    until = time.monotonic() + 60
    while not (tmp_path / "sweep.db").exists() and time.monotonic() < until:
        time.sleep(0.1)
    view.bar.cancel()
    assert view.bar.state == "cancelled"
    assert not view.cancel.disabled
    view.bar.start()
    assert view.bar.job.wait(240)
    assert view.bar.state == "done", view.bar.message
    assert "0 left" in view.message


def test_a_cancelled_sweep_is_discarded_when_that_is_confirmed(grid, tmp_path):
    store = tmp_path / "sweep.db"
    view = sim.watch_sweep(grid, store)
    assert view.cancel.disabled
    view.bar._become("running")
    sim.sweep(view.grid, store, runner="here")
    view.cancel.click()
    assert store.exists() and view.cancel.description == "Discard 32 done"
    view.bar.offer("Resume")
    view.cancel.click()
    assert list(tmp_path.iterdir()) == [tmp_path / "grid.yaml"]
    assert (view.bar.state, view.bar.message, view.cancel.description) == ("idle", "cancelled", "Cancel")
    assert view.cancel.disabled and "none done yet" in view.message
    assert view.bar.children[0].description == "Start"


@pytest.mark.parametrize("content", [None, b"notes of somebody"])
def test_cancel_takes_no_file_away_that_is_not_the_sweeps(content, grid, tmp_path):
    store = tmp_path / "sweep.db"
    view = sim.watch_sweep(grid, store)
    if content:
        store.write_bytes(content)
    else:
        grid.write_text(grid.read_text().replace("1024", "512"))
        sim.sweep(sim.Grid.load(grid), store, runner="here")
    view.bar._become("running")
    view.cancel.click()
    assert store.exists() and view.bar.state == "idle"


def test_cancel_leaves_a_store_that_another_process_writes_by_now(grid, tmp_path):
    store = tmp_path / "sweep.db"
    view = sim.watch_sweep(grid, store)
    view.bar._become("running")
    sim.sweep(view.grid, store, runner="here")
    view.cancel.click()
    lock = locked(store)
    view.cancel.click()
    unlocked(lock)
    assert store.exists() and view.cancel.disabled
    assert "not discarded: store: " in view.bar.message and "no other process writes" in view.bar.message


def test_what_is_discarded_is_no_more_than_was_told(grid, tmp_path):
    """Somebody else may have gone on with the store since."""
    store = tmp_path / "sweep.db"
    view = sim.watch_sweep(grid, store)
    view.bar._become("running")
    sim.sweep(view.grid, store, runner="here")
    view.cancel.description = "Discard 16 done"
    view.cancel.click()
    assert store.exists() and view.cancel.description == "Discard 32 done"


def test_a_wrong_grid_is_refused(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("model: gpt3-175b\ncluster: {device: l4}\naxes: {plan.colour: [1]}\n")
    with pytest.raises(InputError, match="colour"):
        sim.watch_sweep(path, tmp_path / "sweep.db")
