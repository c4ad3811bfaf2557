"""What every exporter of plans must satisfy. A newcomer subclasses this and names it, with plans that it takes."""

from dataclasses import fields

import pytest

from sim.engine.step import Step, simulate
from sim.plans import EXPORTERS, emit, emitted, save_emitted
from sim.specs import Cluster, InputError, Plan
from sim.specs.catalog import model


def step(settings: dict[str, object]) -> Step:
    """Return a step of Llama-3 8B on 16 devices."""
    return simulate(model("llama3-8b"), Cluster.of("h100-sxm-80gb", nodes=2), Plan(**{"global_batch": 32} | settings))


class ExporterContract:
    """Laws of one exporter.

    takes: settings of a plan that it writes; changed: other values of fields that it says; cannot: settings that its
    target cannot run, with the field that the refusal names; lacks: models of the catalog with layers that it has not.
    """

    name: str
    takes: dict[str, object]
    changed: dict[str, object]
    cannot: tuple[tuple[dict[str, object], str], ...]
    lacks: tuple[str, ...] = ()

    def files(self, **changes):
        return emitted(step(self.takes | changes), self.name, "mine")

    def test_it_is_registered(self):
        held = EXPORTERS[self.name]
        assert held.name == self.name
        assert len(held.letter) == 1
        assert set(held.expresses) <= {f.name for f in fields(Plan)}

    def test_files_have_the_stem_and_a_text(self):
        files = self.files()
        assert all(name.startswith("mine") and text.endswith("\n") for name, text in files.items())
        assert emit(step(self.takes), self.name) == next(iter(emitted(step(self.takes), self.name).values()))

    def test_the_same_plan_is_the_same_text(self):
        assert self.files() == self.files()

    def test_what_it_says_is_in_the_files(self):
        assert set(self.changed) <= set(EXPORTERS[self.name].expresses)
        for field, value in self.changed.items():
            assert self.files(**{field: value}) != self.files(), field

    def test_what_its_target_cannot_run_is_refused_by_field(self, tmp_path):
        for settings, field in self.cannot:
            with pytest.raises(InputError) as caught:
                save_emitted(step(self.takes | settings), self.name, tmp_path / "plan.out")
            assert caught.value.path == field
        assert not list(tmp_path.iterdir())

    def test_models_with_layers_that_its_target_lacks_are_refused(self, tmp_path):
        for name in self.lacks:
            made = simulate(model(name), Cluster.of("h100-sxm-80gb", nodes=2), Plan(global_batch=32))
            with pytest.raises(InputError, match=r"^model: got "):
                save_emitted(made, self.name, tmp_path / "plan.out")
        assert not list(tmp_path.iterdir())
