"""Real image files, as Pillow writes and reads them: JPEG, JPEG 2000, WebP, AVIF, and JPEG XL where its plug-in is."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from PIL import Image, features
from torch import Tensor

from finola.baselines import Code, Peer
from finola.images import pixels, to_uint8


@dataclass(frozen=True)
class Format:
    """A file format, its settings at a quality, and the qualities that make its curve, smallest file first."""

    kind: str  # Pillow's name
    settings: Callable[[float], dict[str, Any]]
    ladder: tuple[float, ...]
    finest: int  # the qualities searched for a given size are 1 … finest
    available: Callable[[], bool]


def _jpeg_2000(quality: float) -> dict[str, Any]:
    """Its quality is a compression ratio's place on a scale: 24 bits a pixel over quality hundredths of a bit."""
    return {"irreversible": True, "quality_mode": "rates", "quality_layers": [2400 / quality]}


def _has_jpeg_xl() -> bool:
    return find_spec("pillow_jxl") is not None


FORMATS = {
    "jpeg": Format("JPEG", lambda q: {"quality": int(q), "optimize": True}, (5, 8, 15, 30, 50, 75), 95, lambda: True),
    "jpeg-progressive": Format(
        "JPEG",
        lambda q: {"quality": int(q), "optimize": True, "progressive": True},
        (5, 8, 15, 30, 50, 75),
        95,
        lambda: True,
    ),
    "jpeg2000": Format("JPEG2000", _jpeg_2000, (10, 20, 40, 80, 160), 800, lambda: bool(features.check("jpg_2000"))),
    "webp": Format(
        "WEBP",
        lambda q: {"quality": int(q), "method": 6},
        (1, 2, 5, 15, 40, 75),
        100,
        lambda: bool(features.check("webp")),
    ),
    "avif": Format(
        "AVIF",
        lambda q: {"quality": int(q), "speed": 6},
        (10, 18, 25, 40, 60, 75),
        100,
        lambda: bool(features.check("avif")),
    ),
    "jxl": Format("JXL", lambda q: {"quality": int(q)}, (5, 10, 25, 50, 75), 100, _has_jpeg_xl),
}


def write(format_name: str, image: Tensor, quality: float) -> bytes:
    """The file of an image (3, H, W) in [0, 1], byte by byte what Pillow writes."""
    known = FORMATS[format_name]
    if known.kind == "JXL":
        import pillow_jxl  # noqa: F401  (it registers the format with Pillow)
    stream = io.BytesIO()
    photo = Image.fromarray(to_uint8(image).permute(1, 2, 0).contiguous().numpy())
    photo.save(stream, known.kind, **known.settings(quality))
    return stream.getvalue()


def read(data: bytes) -> Tensor:
    """The image (3, H, W) in [0, 1] of a file's bytes."""
    return pixels(Image.open(io.BytesIO(data)).convert("RGB")).float() / 255


def file_at_quality(format_name: str, quality: float) -> Peer:
    """`jpeg:8`: one quality for every image."""

    def encode(image: Tensor) -> Code:
        data = write(format_name, image, quality)
        return Code(data, (image.shape[-2], image.shape[-1]), bits=8 * len(data))

    return Peer(f"{format_name}:{quality:g}", encode, lambda code: read(code.data))


def file_at_rate(format_name: str, bits_per_pixel: float) -> Peer:
    """`jpeg@0.2`: for every image the best quality whose file has at most this many bits a pixel, else the smallest."""

    def encode(image: Tensor) -> Code:
        height, width = image.shape[-2:]
        data = largest_within(
            lambda quality: write(format_name, image, quality),
            FORMATS[format_name].finest,
            bits_per_pixel * height * width / 8,
        )
        return Code(data, (height, width), bits=8 * len(data))

    return Peer(f"{format_name}@{bits_per_pixel:g}", encode, lambda code: read(code.data))


def largest_within(file_at: Callable[[int], bytes], finest: int, budget: float) -> bytes:
    """The file of the highest quality in 1 … finest that fits into `budget` bytes, by bisection; else the coarsest.

    >>> len(largest_within(lambda quality: bytes(10 * quality), 100, 345))
    340
    """
    best = file_at(1)
    low, high = 1, finest
    while low < high:
        middle = (low + high + 1) // 2
        data = file_at(middle)
        if len(data) <= budget:
            low, best = middle, data
        else:
            high = middle - 1
    return best
