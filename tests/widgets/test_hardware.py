"""Controls of model, cluster and hardware."""

import sim
from sim.specs.model import resized
from sim.widgets.hardware import ModelControls


def test_a_name_of_the_catalog_is_the_catalogs_model_whatever_was_shown_under_it(gpt3):
    """A panel is brought to models with other layers by loading a file, and by swapping A and B."""
    controls = ModelControls(gpt3, lambda: None)
    controls.show(resized(gpt3, {"layers": 48}))
    assert controls.model().layers == 48
    for name in ("llama3-70b", "gpt3-175b"):
        controls.picker.value = name
        assert controls.model() == sim.models[name]
    assert controls.dimensions["layers"].value == 96
