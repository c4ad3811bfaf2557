"""The sections loading and checkpointing: names stand for entries of the catalog, what is wrong is said once."""

import pytest

from sim.catalog import folder, names
from sim.specs import Checkpointing, Dataset, Failures, InputError, Loading, Storage
from sim.specs.catalog import dataset, storage
from sim.specs.checkpointing import DEVICE_MTBF_S
from sim.specs.fields import read

IMAGES = {"samples": 1_000, "sample_bytes": 1e5}


def test_a_name_is_an_entry_of_the_catalog():
    made = read(Loading, {"dataset": "imagenet-1k", "storage": "hdd"}, "loading")
    assert made == Loading(dataset=dataset("imagenet-1k"), storage=storage("hdd"))
    assert made.dataset.size_bytes == pytest.approx(146e9)
    assert Loading(dataset="imagenet-1k").storage == storage("sata-ssd")


@pytest.mark.parametrize("kind, reader", [("storage", storage), ("datasets", dataset)])
def test_every_entry_has_sources(kind, reader):
    for name in names(kind):
        assert isinstance(reader(name), Storage | Dataset)
        assert folder(kind).joinpath(f"{name}.json").read_text("utf-8").count('"source"') >= 2


@pytest.mark.parametrize(
    "raw, words",
    [
        ({"dataset": "imagenet"}, "loading.dataset: got 'imagenet'; allowed: one of fma-full"),
        ({"dataset": {"samples": 5}}, "loading.dataset.sample_bytes: missing; required: a number from 1"),
        ({"dataset": IMAGES, "cache": "lru"}, "loading.cache_bytes: got 0.0; allowed: above 0 with cache lru"),
        ({"dataset": IMAGES, "cache_bytes": 1.0}, "loading.cache_bytes: got 1.0; allowed: 0 without a cache"),
        ({"dataset": IMAGES, "coordinated": True}, "loading.coordinated: got True; allowed: false with one job"),
        ({"dataset": IMAGES, "storage": {"read_bytes_per_s": 0}}, "loading.storage.read_bytes_per_s: got 0"),
    ],
)
def test_bad_loading_is_refused(raw, words):
    with pytest.raises(InputError) as caught:
        read(Loading, raw, "loading")
    assert words in str(caught.value)


def test_mappings_stand_for_objects_as_in_a_file():
    assert Loading(dataset=IMAGES) == Loading(dataset=Dataset(**IMAGES))
    rates = {"read_bytes_per_s": 1e9, "write_bytes_per_s": 1e9}
    made = Checkpointing(storage=rates, failures={"spares": 2})
    assert (made.storage, made.failures) == (Storage(**rates), Failures(spares=2))
    with pytest.raises(InputError, match=r"^dataset.samples: got 0; allowed: a whole number from 1"):
        Loading(dataset=IMAGES | {"samples": 0})


def test_what_was_left_out_is_said():
    made = Loading(dataset=Dataset(**IMAGES), workers=3, trainer_cores=1)
    assert made.cores == 4
    assert [line.split(" (")[0] for line in made.assumptions] == [
        "loading.storage: sata-ssd", "loading.cores = 4", "loading.memory_bytes_per_s = 1e+10",
    ]  # fmt: skip
    kept = Checkpointing(storage="nvme", contention=0.1, failures=Failures(restart_s=1.0, repair_s=2.0))
    assert kept.failures.device_mtbf_s == DEVICE_MTBF_S
    assert kept.assumptions == kept.failures.assumptions != ()


@pytest.mark.parametrize(
    "raw, words",
    [
        ({"every": 0}, "checkpointing.every: got 0; allowed: steps from 1"),
        ({"every": "often"}, "or one of checkfreq, checkfreq-rule, checkfreq-released, young, daly, best"),
        ({"failures": {"spare": 1}}, "checkpointing.failures.spare: got 1; allowed: no such key"),
        ({"overhead_budget": 2}, "checkpointing.overhead_budget: got 2"),
    ],
)
def test_bad_checkpointing_is_refused(raw, words):
    with pytest.raises(InputError) as caught:
        read(Checkpointing, raw, "checkpointing")
    assert words in str(caught.value)
