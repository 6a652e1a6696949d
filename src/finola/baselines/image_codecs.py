"""Real image files, as Pillow writes and reads them: JPEG, JPEG 2000, WebP, AVIF, and JPEG XL where its plug-in is."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from PIL import features
from torch import Tensor

from finola.baselines import Code, Peer
from finola.codec.rate_control import finest_within
from finola.image_io import decode_header, pixels, to_pillow


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


def _by_quality(**settings: Any) -> Callable[[float], dict[str, Any]]:
    return lambda quality: {"quality": int(quality), **settings}


def _pillow_has(feature: str) -> Callable[[], bool]:
    return lambda: bool(features.check(feature))


FORMATS = {
    "jpeg": Format("JPEG", _by_quality(optimize=True), (5, 8, 15, 30, 50, 75), 95, lambda: True),
    "jpeg-progressive": Format("JPEG", _by_quality(optimize=True, progressive=True), (5, 15, 50), 95, lambda: True),
    "jpeg2000": Format("JPEG2000", _jpeg_2000, (10, 20, 40, 80), 800, _pillow_has("jpg_2000")),
    "webp": Format("WEBP", _by_quality(method=6), (1, 2, 5, 15, 40, 75), 100, _pillow_has("webp")),
    # With one thread its files do not depend on how many cores wrote them.
    "avif": Format("AVIF", _by_quality(speed=6, max_threads=1), (10, 25, 60), 100, _pillow_has("avif")),
    "jxl": Format("JXL", _by_quality(), (5, 10, 25, 50, 75), 100, _has_jpeg_xl),
}


class Written:
    """The files of the image at hand: a search for a rate need not write again what the ladder has written."""

    def __init__(self) -> None:
        self.image: Tensor | None = None
        self.files: dict[tuple[str, float], bytes] = {}

    def file(self, format_name: str, image: Tensor, quality: float) -> bytes:
        if image is not self.image:
            self.image, self.files = image, {}
        key = format_name, quality
        if key not in self.files:
            self.files[key] = write(format_name, image, quality)
        return self.files[key]


_written = Written()


def write(format_name: str, image: Tensor, quality: float) -> bytes:
    """The file of an image (3, H, W) in [0, 1], byte by byte what Pillow writes."""
    known = FORMATS[format_name]
    if known.kind == "JXL":
        import pillow_jxl  # noqa: F401  (it registers the format with Pillow)
    stream = io.BytesIO()
    to_pillow(image).save(stream, known.kind, **known.settings(quality))
    return stream.getvalue()


def read(data: bytes) -> Tensor:
    """The image (3, H, W) in [0, 1] of a file's bytes."""
    kinds = sorted({known.kind for known in FORMATS.values()})
    return pixels(decode_header(data, kinds).convert("RGB")).float() / 255


def file_at_quality(format_name: str, quality: float) -> Peer:
    """`jpeg:8`: one quality for every image."""

    def encode(image: Tensor) -> Code:
        data = _written.file(format_name, image, quality)
        return Code(data, (image.shape[-2], image.shape[-1]), bits=8 * len(data))

    return Peer(f"{format_name}:{quality:g}", encode, lambda code: read(code.data))


def file_at_rate(format_name: str, bits_per_pixel: float) -> Peer:
    """`jpeg@0.2`: for every image the best quality whose file has at most this many bits a pixel, else the smallest."""

    known = FORMATS[format_name]

    def encode(image: Tensor) -> Code:
        height, width = image.shape[-2:]
        budget = bits_per_pixel * height * width / 8
        # JPEG 2000's quality is a rate; others start from a step of the ladder, which may be written already.
        guess = round(100 * bits_per_pixel) if known.settings is _jpeg_2000 else int(known.ladder[1])
        data = finest_within(
            lambda quality: _written.file(format_name, image, quality), len, known.finest, budget, guess
        )
        return Code(data, (height, width), bits=8 * len(data))

    return Peer(f"{format_name}@{bits_per_pixel:g}", encode, lambda code: read(code.data))
