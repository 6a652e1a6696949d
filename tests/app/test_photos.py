from __future__ import annotations

import io
import struct
import zlib

import pytest
import torch
from PIL import Image

from finola.app.photos import MAX_BYTES, example, fitted, read, shrunk, take_upload
from finola.codec.photo import compress
from finola.images import read_photo, save_photo


def png(size: tuple[int, int]) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size).save(stream, "PNG")
    return stream.getvalue()


def promise(side: int) -> bytes:
    """A PNG that promises side × side pixels."""
    parts = (b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", b"")
    chunks = (struct.pack(">I", len(data)) + kind + data + zlib.crc32(kind + data).to_bytes(4) for kind, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("side", [8000, 10_000, 20_000])  # what Pillow takes, warns of, and refuses
def test_a_photo_of_too_many_pixels_is_refused_before_it_is_decoded(side, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(ValueError, match=r"huge\.png is .*50"):
        read(promise(side), "huge.png")


def test_a_file_that_promises_too_many_pixels_is_refused_before_it_is_decoded():
    from finola.codec.container import Container

    data = Container("waves512", b"hash", width=10_000, height=10_000, step=20).pack()
    with pytest.raises(ValueError, match="100 megapixels, and 50 are the most"):
        read(data, "huge.finola")


def test_too_many_bytes_are_refused():
    with pytest.raises(ValueError, match="41 MB, and 40 MB are the most"):
        read(bytes(MAX_BYTES + 1_000_000), "large.jpg")


@pytest.mark.parametrize("data", [b"", b"no picture at all", png((64, 64))[:60]])
def test_a_broken_file_is_one_sentence_with_its_name(data):
    with pytest.raises(ValueError, match=r"^broken\.png cannot be read as a photo: [^\n]*\.$"):
        read(data, "broken.png")


def test_an_upload_leaves_nothing_behind_whether_it_can_be_read_or_not(tmp_path):
    for number, data in enumerate((png((32, 16)), b"broken")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "photo.png").write_bytes(data)
        if data == b"broken":
            with pytest.raises(ValueError, match="cannot be read"):
                take_upload(folder / "photo.png")
        else:
            assert take_upload(folder / "photo.png").size == (16, 32)
        assert not folder.exists()


def test_a_finola_file_is_decoded_and_remembers_its_size(tmp_path):
    made = compress(read_photo("skimage:astronaut")[:, 64:192, 192:320], quality=30, model="waves512")
    photo = read(made.data, "face.finola")
    assert photo.size == (128, 128) and photo.coded == len(made.data) and photo.model == "waves512"


def test_a_camera_photo_comes_upright(tmp_path):
    path = tmp_path / "camera.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    save_photo(torch.zeros(3, 20, 40), path, exif=exif.tobytes())
    assert read(path.read_bytes(), "camera.jpg").size == (40, 20)


def test_shrunk_and_fitted_keep_what_they_promise():
    image = example("chelsea").pixels
    assert max(shrunk(image, 100).shape[-2:]) == 100
    assert shrunk(image, 5000) is image
    assert fitted(image, (70, 33)).shape == (3, 70, 33)
    assert torch.equal(fitted(image, (image.shape[1], image.shape[2])), image)
