from __future__ import annotations

import io
import math
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from hypothesis import example as example_of
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from finola.app import photos
from finola.app.handlers import compare
from finola.app.models import PIXELS
from finola.app.photos import MAX_BYTES, MAX_SIDE, example, fitted, fitting_size, read, shrunk
from finola.codec.codec import compress
from finola.errors import InputError
from finola.image_io import open_photo, pixels, read_photo, save_photo, to_rgb


def png(size: tuple[int, int]) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size).save(stream, "PNG")
    return stream.getvalue()


def declared(side: int) -> bytes:
    """A PNG header that declares side × side pixels."""
    parts = (b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", b"")
    chunks = (struct.pack(">I", len(data)) + kind + data + zlib.crc32(kind + data).to_bytes(4) for kind, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("side", [8000, 10_000, 13_000, 20_000])  # what Pillow takes, warns of, and refuses
def test_photo_with_too_many_pixels_is_rejected_before_decoding(side, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(ValueError, match=r"huge\.png is .*50"):
        read(declared(side), "huge.png")


def test_finola_file_with_too_many_pixels_is_rejected_before_decoding():
    from finola.codec.container import Container

    data = Container("waves512", b"hash", width=10_000, height=10_000, step=20).pack()
    with pytest.raises(InputError, match=r"100 megapixels.* 50"):
        read(data, "huge.finola")


def test_too_large_file_is_rejected():
    with pytest.raises(InputError, match=r"41 MB.* 40 MB"):
        read(bytes(MAX_BYTES + 1_000_000), "large.jpg")


@pytest.mark.parametrize("data", [b"", b"no picture at all", png((64, 64))[:60]])
def test_damaged_file_error_is_one_line_with_its_name(data):
    with pytest.raises(ValueError, match=r"^broken\.png cannot be read as a photo: [^\n]*\.$"):
        read(data, "broken.png")


def test_finola_file_is_decoded_with_its_file_size(tmp_path):
    made = compress(read_photo("skimage:astronaut")[:, 64:192, 192:320], quality=30, model="waves512")
    photo = read(made.data, "face.finola")
    assert photo.size == (128, 128) and photo.coded == len(made.data) and photo.model == "waves512"


def test_finola_file_that_is_too_large_or_of_another_model_is_rejected(tmp_path):
    from finola.codec.container import Container

    large = Container("waves512", b"hash", width=3000, height=3000, step=20).pack()
    with pytest.raises(InputError, match=r"3000 × 3000 .* finola decompress"):
        read(large, "large.finola")
    with pytest.raises(InputError, match="'elsewhere'"):
        read(Container("elsewhere", b"hash", width=64, height=64, step=20).pack(), "other.finola")


def test_finola_file_of_another_version_of_a_model_is_refused_without_loading_it_for_the_page(monkeypatch):
    from finola.app import models
    from finola.codec.container import Container
    from finola.hub import resolve

    name = next(name for name in models.names() if resolve(name) is not None)
    monkeypatch.setattr(models, "load", lambda name: pytest.fail("the page loaded the model"))
    monkeypatch.setattr(models, "load_codec", lambda name: pytest.fail("the page loaded the codec"))
    models.open_model.cache_clear()
    file = Container(name, b"hash", width=64, height=64, step=20).pack()
    assert len(file) < 60
    with pytest.raises(ValueError, match=name):
        read(file, "other.finola")


@given(st.integers(1, 500_000), st.integers(1, 500_000), st.sampled_from([(1, 1), (64, 64), (256, 256)]))
@example_of(4, 400_000, (256, 256))
def test_photos_of_any_shape_are_scaled_to_a_bounded_number_of_tiles(height, width, tile):
    size = fitting_size((height, width), tile)
    tiles = [-(-side // step) for side, step in zip(size, tile, strict=True)]
    assert math.prod(tiles) * math.prod(tile) <= PIXELS and max(size) <= MAX_SIDE
    assert all(1 <= new <= old for new, old in zip(size, (height, width), strict=True))


MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16")


@pytest.mark.parametrize("mode", MODES)
def test_large_photos_of_any_mode_are_scaled_down_correctly(mode, monkeypatch):
    """The same picture as one that is decoded at full size and scaled afterwards."""
    monkeypatch.setattr(photos, "PIXELS", 30_000)
    monkeypatch.setattr(photos, "BAND", 20_000)
    smooth = Image.radial_gradient("L").resize((600, 400))
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(smooth).astype(np.uint16) * 257)
    elif mode in ("LA", "RGBA"):
        picture = smooth.convert(mode)
        picture.putalpha(smooth.rotate(180))
    else:
        picture = smooth.convert("RGB").convert(mode)
    stream = io.BytesIO()
    picture.save(stream, "TIFF" if mode in ("CMYK", "I;16") else "PNG")
    photo = read(stream.getvalue(), "large")
    assert photo.full_size == (400, 600) and math.prod(photo.size) <= 30_000
    whole = shrunk(pixels(to_rgb(open_photo(stream.getvalue()))), max(photo.size)).float()
    assert photo.pixels.shape == whole.shape
    assert (photo.pixels.float() - whole).abs().mean() < (12 if mode in ("1", "P") else 2)  # those two are dithered


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "PNG"])
def test_a_large_camera_photo_is_scaled_down_and_upright(kind, monkeypatch):
    monkeypatch.setattr(photos, "PIXELS", 20_000)
    picture, exif, stream = Image.new("RGB", (600, 300), "red"), Image.Exif(), io.BytesIO()
    picture.paste("blue", (0, 0, 300, 300))
    exif[0x0112] = 6
    picture.save(stream, kind, exif=exif)
    photo = read(stream.getvalue(), "camera")
    assert photo.full_size == (600, 300) and photo.size == (200, 100)
    assert photo.pixels[2, 10].float().mean() > 200 and photo.pixels[0, -10].float().mean() > 200  # blue above red


def test_page_reports_the_scaling_of_a_photo(monkeypatch):
    monkeypatch.setattr(photos, "PIXELS", 64 * 128)
    page = compare(read(png((256, 128)), "wide.png"), "waves512", 50, 0)
    assert "256 × 128" in page and "Scaled down" in page
    assert "Scaled down" not in compare(read(png((64, 64)), "small.png"), "waves512", 50, 0)


MEMORY = """
import io, resource
from PIL import Image
from finola.app.handlers import compare
from finola.app.models import open_model
from finola.app.photos import read

def file(mode, size, kind):
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, kind)
    return stream.getvalue()

large, wide = file("L", (8000, 6000), "JPEG"), file("1", (400_000, 4), "PNG")
open_model("waves512")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert read(large, "large.jpg").full_size == (6000, 8000)
assert "Scaled down" in compare(read(wide, "wide.png"), "waves512", 50, 0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_a_photo_of_any_shape_takes_bounded_memory():
    """Growth over the loaded model, in KiB: the process as a whole stays within 1.5 GB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 600_000


def test_exif_orientation_is_applied(tmp_path):
    path = tmp_path / "camera.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    save_photo(torch.zeros(3, 20, 40), path, exif=exif.tobytes())
    assert read(path.read_bytes(), "camera.jpg").size == (40, 20)


def test_shrunk_and_fitted_return_the_documented_sizes():
    image = example("chelsea").pixels
    assert max(shrunk(image, 100).shape[-2:]) == 100
    assert shrunk(image, 5000) is image
    assert fitted(image, (70, 33)).shape == (3, 70, 33)
    assert torch.equal(fitted(image, (image.shape[1], image.shape[2])), image)
