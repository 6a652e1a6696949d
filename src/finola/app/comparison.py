"""Reconstruction of a photo by a model, compared with JPEG at the same file size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from finola.app.models import Opened
from finola.app.photos import Photo
from finola.baselines.image_codecs import FORMATS, read, write
from finola.codec.codec import compress, decompress
from finola.codec.rate_control import finest_within
from finola.image_io import to_uint8
from finola.metrics import SSIM_SIDE, psnr_by_strips, ssim

ROWS = 1024  # approximate strip height for computing metrics, which limits memory
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


@torch.inference_mode()
def rebuild(
    photo: Photo, opened: Opened, quality: int, check: Callable[[], None] = lambda: None
) -> tuple[Version, Version | None]:
    """Reconstruct a photo with a model and with JPEG of the same size. JPEG is None if the model has no codec.

    `check` is called between the steps and raises when the result is no longer needed.
    """
    original = photo.pixels
    check()
    if opened.codec is None:
        image = to_uint8(opened.model(original[None].float() / 255)[0])
        return _version(image, original, check=check), None
    made = compress(original, quality=quality, model=opened.name)
    check()
    ours = _version(decompress(made.data, model=opened.name), original, made.data, check)
    jpeg = jpeg_within(original, len(made.data), check)
    return ours, _version(to_uint8(read(jpeg)), original, jpeg, check)


def jpeg_within(image: Tensor, budget: int, check: Callable[[], None] = lambda: None) -> bytes:
    """Best JPEG of at most `budget` bytes, or the smallest possible one.

    Not cached, because the cache of `finola compare` would be shared between visitors.
    """
    known = FORMATS["jpeg"]

    def attempt(quality: int) -> bytes:
        check()
        return write("jpeg", image, quality)

    return finest_within(attempt, len, known.finest, budget, int(known.ladder[1]))


def _version(
    image: Tensor, original: Tensor, data: bytes | None = None, check: Callable[[], None] = lambda: None
) -> Version:
    check()
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
