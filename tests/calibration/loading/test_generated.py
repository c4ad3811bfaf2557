"""Generated files: the same by seed, read back by what made them, sizes by scale."""

import json
from io import BytesIO

import pytest
import soundfile
from PIL import Image

from calibration.loading.generated import MANIFEST, RATE_HZ, generate, read_manifest
from sim.specs.fields import InputError


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("kind", "scale"), [("images", 48), ("audio", 0.2)])
def test_the_same_seed_makes_the_same_bytes(tmp_path, kind, scale):
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        (tmp_path / name).mkdir()
        generate(tmp_path / name, kind, 3, scale, seed)
    one, again, other = (bytes_of(tmp_path / name) for name in ("one", "again", "other"))
    assert one == again
    assert not set(one.values()) & set(other.values())


def test_the_manifest_says_what_lies_there(images):
    made = read_manifest(images.folder)
    assert made.sizes_bytes == [len(images.read(item)) for item in range(len(images))]
    assert made.total_bytes == sum(path.stat().st_size for path in images.folder.glob("*.jpg"))
    sides = [Image.open(BytesIO(images.read(item))).size for item in range(len(images))]
    assert all(wide == high and 48 <= wide <= 80 for wide, high in sides)
    assert len(set(sides)) > 10


def test_images_hold_as_much_as_photographs(tmp_path):
    """ImageNet's JPEGs have 0.7 byte a pixel in the mean (110 kB, 400 x 350 pixels)."""
    made = generate(tmp_path, "images", 6, 256)
    assert 0.2 < made.total_bytes / (6 * 256**2) < 1.5


def test_sounds_have_their_length(sounds):
    for item in range(len(sounds)):
        sound, rate = soundfile.read(BytesIO(sounds.read(item)))
        assert rate == RATE_HZ
        assert 0.37 < len(sound) / rate < 0.63
        assert 0.01 < abs(sound).max() < 1


@pytest.mark.parametrize(
    ("kind", "files", "scale", "path"),
    [("images", 0, 64, "files"), ("images", 1, 4, "scale"), ("audio", 1, 1000, "scale")],
)
def test_numbers_out_of_range(tmp_path, kind, files, scale, path):
    with pytest.raises(InputError) as error:
        generate(tmp_path, kind, files, scale)
    assert error.value.path == path
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_manifest_is_refused(tmp_path):
    (tmp_path / MANIFEST).write_text(json.dumps({"kind": "images", "scale": 64, "seed": 0, "sizes_bytes": [0]}))
    with pytest.raises(InputError, match="sizes_bytes"):
        read_manifest(tmp_path)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(InputError):
        generate(tmp_path / "none", "audio", 1, 0.1)
