"""Reconstruction of a photo by a model, compared with other image formats at the same file size."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from finola.app.models import Opened
from finola.app.photos import Photo
from finola.baselines.image_codecs import FORMATS, file_within, read
from finola.codec.codec import compress, decompress
from finola.image_io import to_uint8
from finola.metrics import SSIM_SIDE, psnr_by_strips, ssim
from finola.photos import EFFORTS, decode, encode

ROWS = 1024  # approximate strip height for computing metrics, which limits memory
OTHERS = {"jpeg": "JPEG", "webp": "WebP", "avif": "AVIF", "jpeg2000": "JPEG 2000"}
"""Formats that are shown beside the model, and their names."""
TOLERANCE = 0.03  # part of the bytes that a file may be smaller; each attempt of AVIF takes a second or more
EFFORT_PIXELS = 1_600_000  # pixels times iterations of a refinement that takes about ten seconds on two cores
ERROR_LEVELS = 48  # error, out of 255, at the end of the colour scale


@dataclass(frozen=True)
class Version:
    """A reconstruction of a photo, with metrics and its compressed file."""

    image: Tensor  # uint8 (3, H, W)
    psnr: float  # dB
    ssim: float | None  # None if a side is shorter than the window
    data: bytes | None = None  # compressed file, if any

    def bits_per_pixel(self) -> float | None:
        height, width = self.image.shape[-2:]
        return None if self.data is None else 8 * len(self.data) / (height * width)


class Comparison(NamedTuple):
    """A photo compressed by a model and by other formats. Without a codec there is no file, and nothing to compare."""

    ours: Version
    others: dict[str, Version]  # by name, at most as large as ours where the format can be that small
    effort: int = 0  # that was used


@torch.no_grad()
def rebuild(photo: Photo, opened: Opened, quality: int, effort: int = 0) -> Comparison:
    """Reconstruct a photo with a model and with other formats of the same size."""
    original = photo.pixels
    effort = possible_effort(effort, original.shape[-2] * original.shape[-1])
    if opened.codec is None:
        image = to_uint8(decode(opened.model, encode(opened.model, original.float() / 255)))
        return Comparison(_version(image, original), {})
    made = compress(original, quality=quality, model=opened.name, effort=effort)
    ours = _version(decompress(made.data, model=opened.name), original, made.data)
    others = {}
    for name, title in OTHERS.items():
        if FORMATS[name].available():
            data = file_within(name, original, len(made.data), tolerance=TOLERANCE)
            others[title] = _version(to_uint8(read(data)), original, data)
    return Comparison(ours, others, effort)


def possible_effort(effort: int, pixels: int) -> int:
    """Largest effort up to `effort` whose iterations take about ten seconds for a photo of this many pixels.

    >>> possible_effort(9, 512 * 512), possible_effort(9, 2_000_000)
    (5, 0)
    """
    return max(e for e in range(min(effort, len(EFFORTS) - 1) + 1) if EFFORTS[e] * pixels <= EFFORT_PIXELS)


def _version(image: Tensor, original: Tensor, data: bytes | None = None) -> Version:
    pairs = [(image[:, top:bottom], original[:, top:bottom]) for top, bottom in _strips(image.shape[-2])]
    mean_ssim = None
    if min(image.shape[-2:]) >= SSIM_SIDE:
        by_rows = [float(ssim(*(t[None].float() / 255 for t in pair))) * pair[0].shape[1] for pair in pairs]
        mean_ssim = sum(by_rows) / image.shape[-2]
    return Version(image, psnr_by_strips(pairs), mean_ssim, data)


def _strips(height: int) -> list[tuple[int, int]]:
    """Split rows into strips of at least `ROWS` rows, so that each is larger than the window of SSIM."""
    count = max(1, height // ROWS)
    edges = [round(number * height / count) for number in range(count + 1)]
    return list(pairwise(edges))


def error_levels(image: Tensor, original: Tensor) -> Tensor:
    """Absolute error per pixel in levels of 255, averaged over colours: (H, W) float.

    >>> error_levels(torch.zeros(3, 1, 2, dtype=torch.uint8), torch.full((3, 1, 2), 9, dtype=torch.uint8))
    tensor([[9., 9.]])
    """
    strips = _strips(image.shape[-2])
    parts = [(image[:, a:b].short() - original[:, a:b].short()).abs().float().mean(0) for a, b in strips]
    return torch.cat(parts)
