"""Image file formats: files are identical to those of Pillow, and rate control respects the target rate."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from finola.baselines.image_codecs import FORMATS, file_at_quality, file_at_rate
from finola.image_io import read_photo, to_uint8

NEEDS_AVIF = pytest.mark.skipif(not FORMATS["avif"].available(), reason="Pillow was built without AVIF")
AVAILABLE = [name for name, known in FORMATS.items() if known.available()]


def pillow(image: torch.Tensor, kind: str, **settings: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(to_uint8(image).permute(1, 2, 0).numpy()).save(stream, kind, **settings)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("word", "kind", "settings"),
    [
        ("jpeg", "JPEG", {"quality": 30, "optimize": True}),
        ("jpeg-progressive", "JPEG", {"quality": 30, "optimize": True, "progressive": True}),
        ("webp", "WEBP", {"quality": 30, "method": 6}),
        pytest.param("avif", "AVIF", {"quality": 30, "speed": 6, "max_threads": 1}, marks=NEEDS_AVIF),
        pytest.param("avif-speed2", "AVIF", {"quality": 30, "speed": 2, "max_threads": 1}, marks=NEEDS_AVIF),
    ],
)
def test_files_are_identical_to_those_of_pillow(word: str, kind: str, settings: dict[str, object]) -> None:
    image = read_photo("skimage:coffee")[:, :120, :90]
    assert file_at_quality(word, 30).encode(image).data == pillow(image, kind, **settings)


@pytest.mark.parametrize("word", AVAILABLE)
@pytest.mark.parametrize("size", [(64, 96), (17, 33), (1, 1)])
def test_every_format_supports_every_size(word: str, size: tuple[int, int]) -> None:
    image = torch.rand(3, *size)
    code = file_at_quality(word, 50).encode(image)
    assert code.bits == 8 * len(code.data)
    assert file_at_quality(word, 50).decode(code).shape == image.shape


@pytest.mark.parametrize("word", ["jpeg", "webp", "jpeg2000"])
def test_rate_is_close_to_the_target_and_not_above(word: str) -> None:
    image = read_photo("skimage:coffee")[:, :192, :256]
    code = file_at_rate(word, 0.8).encode(image)
    assert 0.6 * 0.8 < code.bits / (192 * 256) <= 0.8  # type: ignore[operator]


def test_unreachable_rate_gives_the_smallest_file() -> None:
    image = torch.rand(3, 64, 64)
    assert file_at_rate("jpeg", 0.001).encode(image).data == pillow(image, "JPEG", quality=1, optimize=True)
