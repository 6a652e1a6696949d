"""A photo costs what its pixels cost: files that would cost far more are refused before decoding, others are read."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image

from finola.app.photos import read
from finola.codec.codec import compress
from finola.errors import CorruptFileError
from finola.image_io import open_photo, read_photo, shown_size

READERS: list[Callable[[bytes], object]] = [
    read_photo,
    lambda data: shown_size(open_photo(data)),
    lambda data: compress(data, model="waves512"),
    lambda data: read(data, "photo"),
]


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))


def encoded(kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    noise().save(file, kind, **options)
    return file.getvalue()


def with_scans(count: int, progressive: bool) -> bytes:
    """A JPEG whose first scan, of its header and no data, is repeated."""
    data = encoded("JPEG", progressive=progressive)
    start = data.index(b"\xff\xda")
    length = 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    return data[:start] + count * data[start : start + length] + data[start:]


@pytest.mark.parametrize("progressive", [True, False])
@pytest.mark.parametrize("work", READERS)
def test_a_jpeg_of_many_scans_is_refused(work: Callable[[bytes], object], progressive: bool) -> None:
    with pytest.raises(CorruptFileError) as raised:
        work(with_scans(200, progressive))
    assert str(raised.value).count(".") == 1 and "scans" in str(raised.value)


@pytest.mark.parametrize("hidden", [b"\xff\x01", b"\xff\xd0", b"\xff\xff", b"\xff\x00"])
def test_scans_after_a_marker_without_length_are_counted(hidden: bytes) -> None:
    data = with_scans(200, True)
    start = data.index(b"\xff\xda")
    with pytest.raises(CorruptFileError):
        read_photo(data[:start] + hidden + data[start:])


def test_other_segments_may_contain_the_bytes_of_scans() -> None:
    plain = encoded("JPEG", progressive=True)
    segment = b"\xff\xe5" + struct.pack(">H", 1002) + 500 * b"\xff\xda"
    for data in (plain[:2] + segment + plain[2:], plain + 500 * b"\xff\xda\x00\x02"):  # before the photo, and after it
        assert torch.equal(read_photo(data), read_photo(plain))


Entry = tuple[int, int]


def tiff(entries: list[Entry], pixels: bytes, order: str = "<") -> bytes:
    """A TIFF of 64×64 grey pixels, compressed with zlib in one strip or tile, with more entries in its header."""
    data = zlib.compress(pixels)
    known = [(256, 64), (257, 64), (258, 8), (259, 8), (262, 1), (277, 1), *entries]
    stored = (324, 325) if any(tag == 322 for tag, _ in entries) else (273, 279)
    known = sorted([*known, (stored[0], 4096), (stored[1], len(data))], key=lambda entry: entry[0])
    header = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(known))
    header += b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in known)
    return (header + bytes(4)).ljust(4096, b"\0") + data


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("entries", [[(322, 4096), (323, 4096)], [(322, 4096), (322, 64), (323, 4096), (323, 64)]])
@pytest.mark.parametrize("work", READERS)
def test_a_tiff_whose_tile_is_far_larger_than_its_image_is_refused(
    work: Callable[[bytes], object], entries: list[Entry], order: str
) -> None:
    with pytest.raises(CorruptFileError) as raised:
        work(tiff(entries, bytes(4096**2), order))
    assert str(raised.value).count(".") == 1


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("entries", [[(322, 512), (323, 512)], [(278, 64)], [(278, 10**7)], [(278, 2**32 - 1)]])
def test_usual_tiles_and_strips_are_read(entries: list[Entry], order: str) -> None:
    side = dict(entries).get(322, 64)
    level = np.zeros((side, side), np.uint8)
    level[:64, :64] = np.arange(64)
    image = read_photo(tiff(entries, level.tobytes(), order))
    assert torch.equal(image, torch.arange(64).div(255).expand(3, 64, 64))


def test_a_large_tiff_is_read() -> None:
    assert torch.equal(read_photo(encoded("TIFF", big_tiff=True)), read_photo(encoded("PNG")))
