"""Controls of model, cluster and hardware."""

from pathlib import Path

import pytest

import sim
from sim.report.sections import step_cards
from sim.specs import Plan
from sim.specs.resized import resized
from sim.widgets import views
from sim.widgets.hardware import ClusterControls, ModelControls

DEVICES = Path(sim.__file__).parent / "catalog" / "devices"


@pytest.fixture
def panel(gpt3, h100s):
    return sim.whatif(gpt3, h100s, Plan(tp=8, pp=4, global_batch=64, zero=1))


def test_multipliers_come_back_with_the_cluster_that_they_made(panel):
    """A and B change places with the sliders that made them, so that All to 1x is the cluster as it is."""
    before = panel.step.cluster
    panel.pin()
    panel.hardware.knobs["inter"].value = 2.0
    faster = panel.step.cluster
    panel.swap()
    assert (panel.step.cluster, panel.hardware.factors["inter"]) == (before, 1.0)
    panel.swap()
    assert (panel.step.cluster, panel.hardware.factors["inter"]) == (faster, 2.0)
    panel.hardware.reset.click()
    assert panel.step.cluster == before


def test_a_dense_model_is_given_experts(gpt3):
    controls = ModelControls(gpt3, lambda: None)
    controls.dimensions["experts"].value = 8
    made = controls.model()
    assert (made.experts, made.experts_per_token, made.moe_ffn) == (8, 2, gpt3.ffn)
    assert made.parameters > 4 * gpt3.parameters


def test_a_domain_of_ones_own_stays_while_nodes_move():
    controls = ClusterControls(sim.Cluster.of("h100-sxm-80gb", nodes=2, domain_gpus=4), lambda: None)
    controls.nodes.value = 4
    assert controls.cluster().domain_gpus == 4
    controls.per_node.value = 4
    assert controls.cluster().domain_gpus == sim.Cluster.of("h100-sxm-80gb", gpus_per_node=4).domain_gpus


def test_the_profile_is_a_choice_and_follows_the_device():
    given = sim.Cluster.of("h100-sxm-80gb", nodes=2, profile="h100-pcie-80gb")
    controls = ClusterControls(given, lambda: None)
    controls.device.value = "a100-sxm-80gb"
    assert controls.cluster() == sim.Cluster.of("a100-sxm-80gb", nodes=2, gpus_per_node=8)
    controls.profile.value = "a100-pcie-80gb"
    assert controls.cluster().profile == "a100-pcie-80gb"
    controls.device.value = "h100-sxm-80gb"
    assert controls.cluster() == given


def test_words_of_a_device_file_are_no_markup(tmp_path):
    file = tmp_path / "device.json"
    file.write_text((DEVICES / "h100-sxm-80gb.json").read_text().replace("NVIDIA H100", "<img src=x onerror=alert(1)>"))
    controls = ClusterControls(sim.Cluster.of(str(file)), lambda: None)
    controls.say(controls.cluster())
    assert 'title="&lt;img src=x' in controls.facts.value  # of the sources
    assert "&lt;img src=x" in controls.facts.value.split(">")[1]
    assert "<img" not in controls.facts.value


def test_cards_of_both_plans_that_are_compared(panel):
    words = panel.panes.panes["Compare"]._words
    panel.panes.selected_index = panel.panes.titles.index("Compare")
    assert "Fits" not in words.value
    panel.pin()
    panel.plans.knobs["micro_batch"].value = 2
    a, b = (step_cards(step) for step in (panel.pinned, panel.step))
    assert a != b
    assert words.value.index(a) < words.value.index(b)


def test_one_rank_alone_is_drawn_also_of_two_plans(panel):
    panel.pin()
    panel.panes.options["Timeline"]["ranks"].value = 1
    assert len(panel.panes.panes["Timeline"].canvases[0].plot.layout.yaxis.ticktext) == 1
    assert len(views._two_timelines(panel._scene).layout.yaxis.ticktext) == 1


def test_numbers_of_the_cluster_have_their_sources(panel):
    """Of a price of one's own nobody knows the source, nor the date."""
    listed = sim.Cluster.of("h100-sxm-80gb", nodes=1)
    panel.clusters.say(listed)
    assert "NVIDIA H100 datasheet (2023)" in panel.clusters.facts.value
    assert all(text in panel.clusters.facts.value for text in ("vms.csv", listed.hardware.price_date))
    panel.clusters.say(sim.Cluster.of("h100-sxm-80gb", nodes=1, usd_per_gpu_hour=2.0))
    assert "2.00 USD a GPU-hour<br>" in panel.clusters.facts.value


def test_folded_groups_say_how_many_of_their_settings_are_changed(panel):
    panel.hardware.knobs["inter"].value, panel.hardware.knobs["clock"].value = 2.0, 1.2
    panel.models.seq.value = 4096
    panel.clusters.nodes.value = 32
    titles = [panel._folds[name].titles[0] for name in ("Hardware what-if", "Model", "Cluster")]
    assert titles == ["Hardware what-if (2 changed)", "Model (1 changed)", "Cluster (1 changed)"]
    panel.models.picker.value = "llama3-70b"
    assert panel._folds["Model"].titles[0] == "Model"
    panel.show(*panel.first)
    assert [fold.titles[0] for fold in panel._folds.values()] == list(panel._folds)


def test_a_name_of_the_catalog_is_the_catalogs_model_whatever_was_shown_under_it(gpt3):
    """A panel is brought to models with other layers by loading a file, and by swapping A and B."""
    controls = ModelControls(gpt3, lambda: None)
    controls.show(resized(gpt3, {"layers": 48}))
    assert controls.model().layers == 48
    for name in ("llama3-70b", "gpt3-175b"):
        controls.picker.value = name
        assert controls.model() == sim.models[name]
    assert controls.dimensions["layers"].value == 96
    controls.picker.value = "Llama3 70B"
    assert controls.model() == sim.models["llama3-70b"]
