"""Image files are read upright and in sRGB; unreadable files raise a one-line error."""

import io
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from finola.errors import CorruptFileError, InputError
from finola.image_io import (
    FORMATS,
    Regions,
    open_photo,
    pixels,
    read_photo,
    save_photo,
    shown_size,
    side_by_side,
    to_rgb,
    to_srgb,
    to_uint8,
)
from finola.locations import skimage_photos

ORIENTATION = 0x0112


def encoded(photo: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    photo.save(file, kind, **options)
    return file.getvalue()


def colours(height: int = 20, width: int = 30) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (height + width)], -1).astype(np.uint8)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy()).permute(2, 0, 1).float() / 255


def test_reads_a_file_bytes_and_skimage_alike(tmp_path: Path) -> None:
    array = colours()
    Image.fromarray(array).save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    for source in (tmp_path / "a.png", str(tmp_path / "a.png"), data):
        assert torch.equal(read_photo(source), as_tensor(array))
    astronaut = read_photo("skimage:astronaut")
    assert astronaut.shape == (3, 512, 512) and astronaut.dtype == torch.float32
    assert astronaut.min() >= 0 and astronaut.max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_every_exif_rotation_shows_the_same_upright_photo(kind: str) -> None:
    array = colours()
    turned = {
        1: array,
        2: array[:, ::-1],
        3: array[::-1, ::-1],
        4: array[::-1],
        5: array.transpose(1, 0, 2),
        6: array.transpose(1, 0, 2)[::-1],
        7: array.transpose(1, 0, 2)[::-1, ::-1],
        8: array.transpose(1, 0, 2)[:, ::-1],
    }
    for orientation, stored in turned.items():
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        data = encoded(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif)
        assert shown_size(open_photo(data)) == (20, 30)
        assert torch.equal(read_photo(data), as_tensor(array)), orientation
        assert torch.equal(pixels(to_rgb(to_rgb(open_photo(data)))), to_uint8(as_tensor(array)))


def test_shown_size_of_a_rotated_jpeg_does_not_decode_it() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = encoded(Image.fromarray(colours(20, 30)), "JPEG", exif=exif)
    assert shown_size(open_photo(data)) == (30, 20)
    assert read_photo(data).shape == (3, 30, 20)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF:UserWarning")
def test_a_damaged_exif_block_is_ignored() -> None:
    data = encoded(Image.fromarray(colours()), "JPEG", exif=b"Exif\0\0MM\0*garbage")
    assert read_photo(data).shape == (3, 20, 30)


def test_grey_palette_and_one_bit_become_rgb() -> None:
    grey = colours()[..., 0]
    assert torch.equal(read_photo(encoded(Image.fromarray(grey), "PNG")), as_tensor(np.stack([grey] * 3, -1)))
    palette = Image.fromarray(colours()).quantize(16)
    assert torch.equal(read_photo(encoded(palette, "PNG")), as_tensor(np.asarray(palette.convert("RGB"))))
    one_bit = Image.fromarray(grey > 100)
    assert set(read_photo(encoded(one_bit, "PNG")).unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_composited_over_white(mode: str) -> None:
    photo = Image.new(mode, (4, 2), (0, 0, 0, 0) if mode == "RGBA" else (0, 0))
    photo.putpixel((0, 0), (0, 0, 0, 255) if mode == "RGBA" else (0, 255))
    image = read_photo(encoded(photo, "PNG"))
    assert image[:, 0, 0].tolist() == [0, 0, 0] and image[:, 1, 3].tolist() == [1, 1, 1]


def test_a_transparent_palette_colour_is_white() -> None:
    photo = Image.new("P", (2, 1), 0)
    photo.putpalette([10, 20, 30, 200, 0, 0])
    photo.putpixel((1, 0), 1)
    image = to_uint8(read_photo(encoded(photo, "GIF", transparency=0)))
    assert image[:, 0, 0].tolist() == [255, 255, 255] and image[:, 0, 1].tolist() == [200, 0, 0]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_images_have_the_same_brightness(kind: str) -> None:
    wide = np.linspace(0, 65535, 600).round().astype(np.uint16).reshape(20, 30)
    image = read_photo(encoded(Image.fromarray(wide), kind))
    assert (image[0] - torch.from_numpy(wide.astype(np.float32) / 65535)).abs().max() <= 0.5 / 255 + 1e-6


def test_cmyk_becomes_rgb() -> None:
    cyan = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
    red, green, blue = read_photo(encoded(cyan, "JPEG", quality=95)).mean((1, 2)).tolist()
    assert red < 0.1 and green > 0.9 and blue > 0.9


def test_an_embedded_colour_profile_is_applied() -> None:
    array = colours()
    same = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert torch.equal(read_photo(encoded(Image.fromarray(array), "PNG", icc_profile=same)), as_tensor(array))
    lcd = read_photo("skimage:color")  # carries the profile of a display, not sRGB
    stored = as_tensor(np.asarray(Image.open(skimage_photos()["color"])))
    assert lcd.shape == stored.shape and not torch.equal(lcd, stored)
    assert read_photo(encoded(Image.fromarray(array), "PNG", icc_profile=b"no profile")).shape == (3, 20, 30)


def test_large_colour_profiles_are_not_kept() -> None:
    one = to_uint8(as_tensor(colours(1, 1)))
    tracemalloc.start()
    try:
        for number in range(24):
            to_srgb(one, bytes([number]) * 2**20)
        assert tracemalloc.get_traced_memory()[0] < 4 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not a photo", "not supported"),
        (b"", "PNG or JPEG"),
        (encoded(Image.fromarray(colours(64, 64)), "JPEG")[:-200], "truncated"),
        (encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), "floating-point"),
        (encoded(Image.fromarray(np.full((4, 4), 10**6, np.int32)), "TIFF"), "1000000"),
    ],
)
def test_unreadable_files_raise_a_one_line_error_with_the_path(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "broken.jpg"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as error:
        read_photo(path)
    message = str(error.value)
    assert str(path) in message and message.endswith(".") and "\n" not in message
    with pytest.raises(ValueError, match=f"given as {len(content)} bytes"):
        read_photo(content)


def test_missing_files_folders_and_wrong_skimage_names(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.png"):
        read_photo(tmp_path / "nothing.png")
    with pytest.raises(ValueError, match=tmp_path.name):
        read_photo(tmp_path)
    with pytest.raises(ValueError, match=r"'nobody'.*astronaut, .*rocket"):
        read_photo("skimage:nobody")


def test_saved_photos_read_back(tmp_path: Path) -> None:
    image = as_tensor(colours())
    assert torch.equal(read_photo(save_photo(image, tmp_path / "a.png")), image)
    assert torch.equal(read_photo(save_photo(to_uint8(image), tmp_path / "b.PNG")), image)
    for name in ("a.jpg", "a.jpeg", "a.webp"):
        assert (read_photo(save_photo(image, tmp_path / name)) - image).square().mean() < 1e-3
    assert sorted(os.listdir(tmp_path)) == ["a.jpeg", "a.jpg", "a.png", "a.webp", "b.PNG"]


def test_a_failed_save_leaves_the_old_photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_photo(torch.zeros(3, 4, 4), tmp_path / "a.png")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_photo(torch.ones(3, 4, 4), path)
    assert read_photo(path).max() == 0 and os.listdir(tmp_path) == ["a.png"]


def test_save_photo_rejects_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.gif.*\.png"):
        save_photo(torch.zeros(3, 4, 4), tmp_path / "a.gif")
    with pytest.raises(ValueError, match=r"not \(1, 3, 4, 4\)"):
        save_photo(torch.zeros(1, 3, 4, 4), tmp_path / "a.png")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        save_photo(torch.zeros(3, 4, 4), tmp_path / "nowhere" / "a.png")


def test_to_uint8_rounds_clips_and_is_idempotent() -> None:
    values = torch.tensor([-1.0, 0.0, 0.4999 / 255, 0.5001 / 255, 1.0, 7.0, float("nan")])
    assert to_uint8(values).tolist() == [0, 0, 0, 1, 255, 255, 0]
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_uint8(every.float() / 255), every) and to_uint8(every) is every


def test_side_by_side_contains_every_image_on_white() -> None:
    first, second = torch.zeros(3, 8, 5), torch.full((3, 4, 6), 128, dtype=torch.uint8)
    row = side_by_side([first, second], gap=3)
    assert row.shape == (3, 8, 14)
    assert torch.equal(row[:, :, :5], first) and torch.equal(row[:, :4, 8:], second / 255)
    assert (row[:, :, 5:8] == 1).all() and (row[:, 4:, 8:] == 1).all()
    with pytest.raises(ValueError, match="none"):
        side_by_side([])


@pytest.mark.parametrize("turned", range(1, 9))
@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "CMYK", "I;16"])
def test_regions_are_the_parts_of_the_upright_photo(mode: str, turned: int) -> None:
    rng = np.random.default_rng(turned)
    if mode == "I;16":
        stored = Image.fromarray(rng.integers(0, 2**16, (5, 8), dtype=np.uint16))
    else:
        stored = Image.fromarray(rng.integers(0, 256, (5, 8, 3), dtype=np.uint8)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = turned
    stream = io.BytesIO()
    stored.save(stream, "TIFF" if mode == "CMYK" else "PNG", exif=exif)
    whole = pixels(to_rgb(open_photo(stream.getvalue())))
    regions = Regions(open_photo(stream.getvalue()))
    assert whole.shape == (3, *regions.size)
    parts = [regions.read(top, min(top + 2, regions.size[0]), 1, 4) for top in range(0, regions.size[0], 2)]
    assert torch.equal(torch.cat(parts, 1), whole[:, :, 1:4])


def test_unsupported_formats_are_rejected_whatever_the_suffix(tmp_path: Path) -> None:
    """EPS would start Ghostscript; Pillow supports many formats that are not photos."""
    photo = Image.new("RGB", (8, 8))
    for kind in ("EPS", "PCX", "TGA", "ICO", "PDF"):
        path = tmp_path / f"{kind}.png"
        photo.save(path, kind)
        with pytest.raises(CorruptFileError, match=path.name):
            read_photo(path)


def test_only_listed_formats_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    opened = Image.open

    def spy(source: io.BytesIO, mode: str = "r", formats: list[str] | None = None) -> Image.Image:
        tried.append(formats)
        return opened(source, mode, formats)

    monkeypatch.setattr(Image, "open", spy)
    read_photo("skimage:coffee")
    assert tried and all(formats is not None and set(formats) <= set(FORMATS) for formats in tried)


def test_too_many_pixels_raise_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.new("1", (9000, 9000)).save(path)
    with pytest.raises(InputError, match="9000×9000"):
        read_photo(path)
