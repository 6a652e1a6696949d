"""What rounding leaves at tile borders, smoothed away where a photo is decoded.

Neighbouring tiles round their numbers each for itself, so that flat areas meet with a small step. Decoding across the
borders takes off a part of it; squared error asks for no more, but an eye finds the rest, as it finds JPEG's blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

REACH = 8  # pixels on each side over which a step is spread
DOUBT = 4.0  # times the usual error: of a step so large a third goes, of one twice as large next to nothing
OWN = 0.012  # what is added to the error in [0, 1]: tiles that are not rounded meet with a small step, too


@torch.inference_mode()
def smooth_borders(image: Tensor, tile: tuple[int, int], error: float) -> Tensor:
    """Spread steps across the borders of tiles, in place: image uint8 (3, H, W), `error` that of rounding in [0, 1].

    A step is what the difference of the two pixels at a border has over the mean slope beside it. The smaller it is
    against the error, the more of it goes: both numbers above were chosen on training photos, so that borders are as
    steep as in the photos themselves and PSNR stays what it was.

    >>> image = torch.full((3, 64, 128), 100, dtype=torch.uint8)
    >>> image[:, :, 64:] += 4
    >>> smooth_borders(image, (64, 64), 0.02)[0, 0, 56:72].tolist()
    [100, 100, 101, 101, 101, 101, 102, 102, 102, 102, 103, 103, 103, 103, 104, 104]
    """
    limit = 255 * DOUBT * (error**2 + OWN**2) ** 0.5
    for across, side in ((image, tile[1]), (image.transpose(1, 2), tile[0])):
        for border in range(side, across.shape[2] - 1, side):
            reach = min(REACH, side // 2, across.shape[2] - border)
            if reach < 2:  # nothing beside the border to compare it with
                continue
            share = torch.arange(1, reach + 1) / reach / 2  # of a step, up to the border
            weights = torch.cat([share, -share.flip(0)])
            near = across[:, :, border - reach : border + reach]
            before, last, first, after = near[:, :, reach - 2 : reach + 2].float().unbind(2)
            step = (first - last) - (last - before + after - first) / 2
            step = step * (-(step / limit).square()).exp()
            near.copy_((near.float() + step[:, :, None] * weights).round().clamp(0, 255))
    return image
