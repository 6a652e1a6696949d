"""Image quality metrics per image: PSNR, SSIM and MS-SSIM of images (N, 3, H, W) in [0, 1].

SSIM and MS-SSIM equal those of torchmetrics (checked by tests). The Gaussian window is applied separably, which is
several times faster on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.errors import InputError

SSIM_SIDE = 11  # side of the Gaussian window
MARGIN = SSIM_SIDE // 2  # reflection padding; luminance includes it, contrast excludes it
SIGMA = 1.5  # standard deviation of the window, in pixels
C1, C2 = 0.01**2, 0.03**2
SCALES = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)  # exponents of MS-SSIM, finest scale first
MS_SSIM_SIDE = 176  # smallest side whose fifth scale still contains the window
BLOCK = 128  # samples filtered by one banded matrix


def psnr(images: Tensor, originals: Tensor) -> Tensor:
    """PSNR per image, 10·log₁₀(1 / mean squared error), after clamping to [0, 1]; infinite for identical images.

    >>> import torch
    >>> psnr(torch.full((2, 3, 8, 8), 0.6), torch.full((2, 3, 8, 8), 0.5)).round()
    tensor([20., 20.])
    """
    _check(images, originals)
    return -10 * (images.clamp(0, 1) - originals).square().flatten(1).mean(1).log10()


def psnr_by_strips(strips: Iterable[tuple[Tensor, Tensor]]) -> float:
    """PSNR of one image from strips (image, original), uint8 (3, h, W) each, without a floating-point copy of all.

    >>> psnr_by_strips([(torch.zeros(3, 2, 5, dtype=torch.uint8), torch.full((3, 2, 5), 255, dtype=torch.uint8))])
    0.0
    """
    squares, count = 0.0, 0
    for image, original in strips:
        _check(image[None], original[None])
        squares += float((image.int() - original.int()).square().sum(dtype=torch.float64))
        count += image.numel()
    return 10 * math.log10(255**2 * count / squares) if squares else math.inf


def ssim(images: Tensor, originals: Tensor) -> Tensor:
    """Structural similarity per image, with a Gaussian window of 11 pixels."""
    _check(images, originals)
    return _similarity(images.clamp(0, 1), originals).whole


def ms_ssim(images: Tensor, originals: Tensor) -> Tensor:
    """Multi-scale structural similarity per image; both sides must be at least 176 pixels."""
    _check(images, originals)
    if min(images.shape[-2:]) < MS_SSIM_SIDE:
        height, width = images.shape[-2:]
        raise InputError(f"MS-SSIM needs sides of at least {MS_SSIM_SIDE} pixels, got an image of {width}×{height}.")
    return _over_scales(_similarity(images.clamp(0, 1), originals), images.clamp(0, 1), originals)


class Similarity(NamedTuple):
    """Means over each image: SSIM, and its contrast–structure term."""

    whole: Tensor  # (N,)
    contrast: Tensor  # (N,)


def _similarity(images: Tensor, originals: Tensor) -> Similarity:
    x = originals[:1] if originals.stride(0) == 0 else originals  # an expanded original is filtered once
    x, y = (F.pad(t, [MARGIN] * 4, mode="reflect") for t in (x, images.to(x.dtype)))
    mean_x, mean_y = _blur(x), _blur(y)
    variance_x, variance_y = (_blur(t * t).addcmul_(m, m, value=-1) for t, m in ((x, mean_x), (y, mean_y)))
    covariance = _blur(x * y).addcmul_(mean_x, mean_y, value=-1)
    # Half of each quotient, in place to reduce memory traffic.
    contrast = covariance.add_(C2 / 2).div_(variance_y.add_(variance_x.add_(C2)))
    luminance = (mean_x * mean_y).add_(C1 / 2).div_(torch.addcmul(mean_x.square().add_(C1), mean_y, mean_y))
    inside = contrast[..., MARGIN:-MARGIN, MARGIN:-MARGIN].mean((1, 2, 3))
    return Similarity(4 * luminance.mul_(contrast).mean((1, 2, 3)), 2 * inside)


def _over_scales(finest: Similarity, images: Tensor, originals: Tensor) -> Tensor:
    """Product over the five scales, given the finest: contrast–structure of the first four, SSIM of the last."""
    shared = originals.stride(0) == 0
    found = [finest]
    for _ in SCALES[1:]:
        halved = F.avg_pool2d(originals[:1] if shared else originals, 2)
        images, originals = (
            F.avg_pool2d(images.to(halved.dtype), 2),
            halved.expand(len(images), -1, -1, -1) if shared else halved,
        )
        found.append(_similarity(images, originals))
    terms = torch.stack([scale.contrast for scale in found[:-1]] + [found[-1].whole])
    exponents = torch.tensor(SCALES, dtype=terms.dtype, device=terms.device)[:, None]
    return terms.relu().pow(exponents).prod(0)


def _blur(x: Tensor) -> Tensor:
    """Filter with the Gaussian window, without padding: (..., H, W) → (..., H − 10, W − 10)."""
    height, width = (side - SSIM_SIDE + 1 for side in x.shape[-2:])
    # Variances are differences of nearly equal means, for which the half precision of autocast does not suffice.
    with torch.autocast(x.device.type, enabled=False):
        rows = torch.cat([x.narrow(-1, at, len(band)) @ band for at, band in _blocks(width, x)], dim=-1)
        return torch.cat([band.T @ rows.narrow(-2, at, len(band)) for at, band in _blocks(height, x)], dim=-2)


def _blocks(length: int, like: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Start of each block of samples and its banded filter matrix; a single matrix would be mostly zeros."""
    for at in range(0, length, BLOCK):
        yield at, _band(min(BLOCK, length - at), like.dtype, like.device)


@lru_cache(maxsize=32)
def _band(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Banded matrix (length + 10, length): column i holds the window at samples i … i + 10."""
    at = torch.arange(SSIM_SIDE, dtype=torch.float64) - MARGIN
    window = torch.exp(-0.5 * (at / SIGMA) ** 2)
    window /= window.sum()
    band = torch.zeros(length + SSIM_SIDE - 1, length, dtype=torch.float64)
    for tap, weight in enumerate(window.tolist()):
        band.diagonal(-tap).fill_(weight)
    return band.to(dtype).to(device)


def quality(images: Tensor, originals: Tensor) -> dict[str, Tensor]:
    """PSNR, SSIM and MS-SSIM per image, each if the images are large enough for it.

    >>> import torch
    >>> list(quality(torch.zeros(2, 3, 16, 16), torch.ones(2, 3, 16, 16)))
    ['psnr', 'ssim']
    """
    side, values = min(originals.shape[-2:]), {"psnr": psnr(images, originals)}
    if side >= SSIM_SIDE:
        finest = _similarity(images.clamp(0, 1), originals)
        values["ssim"] = finest.whole
        if side >= MS_SSIM_SIDE:
            values["ms_ssim"] = _over_scales(finest, images.clamp(0, 1), originals)
    return values


def quality_metrics(images: Tensor, originals: Tensor) -> list[dict[str, float | None]]:
    """PSNR, SSIM and MS-SSIM of each image; None if the image is too small for a metric.

    >>> import torch
    >>> quality_metrics(torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 8, 8))
    [{'psnr': -0.0, 'ssim': None, 'ms_ssim': None}]
    """
    values: dict[str, list[float | None]] = dict.fromkeys(("psnr", "ssim", "ms_ssim"), [None] * len(images))
    values |= {key: value.tolist() for key, value in quality(images, originals).items()}
    return [{key: column[number] for key, column in values.items()} for number in range(len(images))]


def _check(images: Tensor, originals: Tensor) -> None:
    if images.shape != originals.shape or images.ndim != 4:
        raise InputError(
            f"Images of shape {tuple(images.shape)} cannot be compared with originals of {tuple(originals.shape)}; "
            "both must be (N, C, H, W)."
        )
