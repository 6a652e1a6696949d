"""Deblocking filter for tile borders, applied after decoding.

Tiles are quantised independently, so flat areas of neighbouring tiles meet with a small step. Decoding joined maps
removes a part of it. The rest hardly affects the squared error but is visible, like the blocks of a JPEG.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

REACH = 8  # pixels on each side over which a step is spread
SCALE, ELASTIC_SCALE = 4.0, 8.0
"""Decay of the correction, in typical border steps: at the scale a third of a step is removed, at twice the scale
almost nothing. Elastic models have smaller tiles of unequal quality, whose borders need more."""
TOLERANCE = 1.1  # steps at borders may exceed those inside tiles by this factor before they count as blocking
MAX_LIMIT = 64.0  # upper bound of the decay, in 8-bit levels
CHUNK = 512  # columns, and about as many rows, processed together, which bounds the memory of temporaries


@torch.inference_mode()
def smooth_borders(image: Tensor, tile: tuple[int, int], scale: float = SCALE) -> Tensor:
    """Smooth the steps at tile borders of an image, uint8 (3, H, W), in place.

    The typical step caused by tiling is estimated from the image: the excess of the steps at borders over those in the
    middle of tiles. The smaller a step is relative to that, the more of it is spread over the pixels beside the border.
    The scales were chosen on training photos: borders become about as steep as in the photos themselves, and PSNR stays
    within 0.04 dB.

    >>> image = torch.full((3, 64, 128), 100, dtype=torch.uint8)
    >>> image[:, :, 64:] += 4
    >>> smooth_borders(image, (64, 64))[0, 0, 56:72].tolist()
    [100, 100, 101, 101, 101, 101, 102, 102, 102, 102, 103, 103, 103, 103, 104, 104]
    """
    for across, side in ((image, tile[1]), (image.transpose(1, 2), tile[0])):
        length = across.shape[2]
        borders = range(side, length - 1, side) if side >= 4 else range(0)
        middles = range(side // 2, length - 1, side) if side >= 4 else range(0)
        excess = _deviation(across, borders) ** 2 - (TOLERANCE * _deviation(across, middles)) ** 2
        if excess <= 0:
            continue
        limit = min(scale * excess**0.5, MAX_LIMIT)
        full = min(REACH, side // 2)
        whole = [border for border in borders if length - border >= full]
        _spread(across, borders[: len(whole)], full, limit)
        for border in borders[len(whole) :]:  # the last tile may be narrower than REACH
            _spread(across, range(border, border + 1, side), length - border, limit)
    return image


def _spread(image: Tensor, borders: range, reach: int, limit: float) -> None:
    """Spread the steps at these columns over `reach` pixels on each side, in place."""
    share = torch.arange(1, reach + 1) / reach / 2  # of the step, increasing up to the border
    share = torch.cat([share, -share.flip(0)])
    for windows, near in zip(_windows(image, borders, 2), _windows(image, borders, reach), strict=True):
        step = _steps(windows)
        step = step * (-(step / limit).square()).exp()
        near.copy_((near + step[..., None] * share).round().clamp(0, 255))


def _windows(image: Tensor, columns: range, reach: int) -> Iterator[Tensor]:
    """Yield views (3, h, n, 2·reach) of the pixels around evenly spaced columns, in chunks of bounded size."""
    if not columns:
        return
    last = columns[-1] + reach
    around = image[:, :, columns[0] - reach : last].unfold(2, 2 * reach, columns.step)
    across = min(len(columns), CHUNK)
    for top in range(0, image.shape[1], CHUNK * CHUNK // across):
        for left in range(0, len(columns), across):
            yield around[:, top : top + CHUNK * CHUNK // across, left : left + across]


def _steps(windows: Tensor) -> Tensor:
    """Steps (3, h, n): the difference across the left edge of a column, less the mean slope on both sides."""
    before, last, first, after = windows.float().unbind(3)
    return (first - last) - (last - before + after - first) / 2


def _deviation(image: Tensor, columns: range) -> float:
    """Standard deviation of the steps at these columns, estimated by the median, which is robust to edges."""
    if not columns:
        return 0.0
    return float(torch.cat([_steps(part).abs().flatten() for part in _windows(image, columns, 2)]).median()) / 0.6745
