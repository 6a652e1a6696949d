"""Image file formats of Pillow: JPEG, JPEG 2000, WebP, AVIF, and JPEG XL if its plug-in is installed."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from PIL import features
from torch import Tensor

from finola.baselines import Code, Method
from finola.codec.rate_control import finest_within
from finola.image_io import decode_header, pixels, to_pillow


@dataclass(frozen=True)
class Format:
    """A file format: its Pillow settings as a function of quality, and the qualities of its rate–distortion curve."""

    kind: str  # Pillow's name of the format
    settings: Callable[[float], dict[str, Any]]
    ladder: tuple[float, ...]  # qualities of the curve, smallest file first
    finest: int  # rate control searches the qualities 1 … finest
    available: Callable[[], bool]


def _jpeg_2000(quality: float) -> dict[str, Any]:
    """Settings of JPEG 2000, whose quality is the target rate in hundredths of a bit per pixel (of 24 uncompressed)."""
    # Pillow leaves the multiple component transform (RGB to YCbCr) off by default, which costs about 2 dB.
    return {"irreversible": True, "mct": 1, "quality_mode": "rates", "quality_layers": [2400 / quality]}


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
    # With one thread, the bytes of the file do not depend on the number of cores.
    "avif": Format("AVIF", _by_quality(speed=6, max_threads=1), (10, 25, 60), 100, _pillow_has("avif")),
    "avif-speed2": Format("AVIF", _by_quality(speed=2, max_threads=1), (10, 25, 60), 100, _pillow_has("avif")),
    "jxl": Format("JXL", _by_quality(), (5, 10, 25, 50, 75), 100, _has_jpeg_xl),
}


class _FileCache:
    """Files of the current image, so that rate control reuses those of the rate–distortion curve."""

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


_cache = _FileCache()


def write(format_name: str, image: Tensor, quality: float) -> bytes:
    """Encode an image (3, H, W) in [0, 1] with Pillow and return the bytes of the file."""
    known = FORMATS[format_name]
    if known.kind == "JXL":
        import pillow_jxl  # noqa: F401  (registers the format with Pillow)
    stream = io.BytesIO()
    to_pillow(image).save(stream, known.kind, **known.settings(quality))
    return stream.getvalue()


def read(data: bytes) -> Tensor:
    """Decode the bytes of a file to an image (3, H, W) in [0, 1]."""
    kinds = sorted({known.kind for known in FORMATS.values()})
    return pixels(decode_header(data, kinds).convert("RGB")).float() / 255


def file_at_quality(format_name: str, quality: float) -> Method:
    """File format at a fixed quality, such as `jpeg:8`."""

    def encode(image: Tensor) -> Code:
        data = _cache.file(format_name, image, quality)
        return Code(data, (image.shape[-2], image.shape[-1]), bits=8 * len(data))

    return Method(f"{format_name}:{quality:g}", encode, lambda code: read(code.data))


def file_within(
    format_name: str,
    image: Tensor,
    budget: float,
    encode: Callable[[str, Tensor, float], bytes] = write,
    tolerance: float = 0.0,
) -> bytes:
    """File of the highest quality with at most `budget` bytes, or of quality 1 if no file is that small.

    With a tolerance, a file of at least (1 − tolerance)·budget is accepted, which takes fewer attempts.

    >>> import torch
    >>> len(file_within("jpeg", torch.rand(3, 64, 64), 2000)) <= 2000
    True
    """
    known = FORMATS[format_name]
    rate = 800 * budget / (image.shape[-2] * image.shape[-1])  # hundredths of a bit per pixel
    # The quality of JPEG 2000 is a rate; the others start from a quality of the curve, which may be cached.
    guess = max(1, round(rate)) if known.settings is _jpeg_2000 else int(known.ladder[1])
    return finest_within(
        lambda quality: encode(format_name, image, quality), len, known.finest, budget, guess, tolerance
    )


def file_at_rate(format_name: str, bits_per_pixel: float) -> Method:
    """File format at a target rate, such as `jpeg@0.2`.

    Each image gets the highest quality whose file has at most `bits_per_pixel`, or quality 1 if no file is that small.
    """

    def encode(image: Tensor) -> Code:
        height, width = image.shape[-2:]
        budget = bits_per_pixel * height * width / 8

        def cached(name: str, image: Tensor, quality: float) -> bytes:
            return _cache.file(name, image, quality)

        data = file_within(format_name, image, budget, cached)
        return Code(data, (height, width), bits=8 * len(data))

    return Method(f"{format_name}@{bits_per_pixel:g}", encode, lambda code: read(code.data))
