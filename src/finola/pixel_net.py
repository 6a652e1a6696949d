"""Residual CNN on pixels, before the analysis of a wave encoder and after the read-out of a wave decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.layers import channels_last

BLOCK = 4  # pixels per side of the blocks on which the convolutions run
# Scales of the input and the output. The mean colour of a block varies more than its details; without the scales the
# activations are so small that GELU is linear, and training is slow.
MEAN_SCALE, DETAIL_SCALE, OUTPUT_SCALE = 4.0, 16.0, 0.1


class PixelNet(nn.Module):
    """Add a learned correction to images (N, 3, H, W), sides multiples of 4. The images are unchanged before training.

    Convolutions run on 4×4 blocks of pixels with 48 channels, which is efficient on CPUs and gives a receptive field of
    several tiles. `tile` is the size of the tiles that the images consist of: a learned embedding of the position
    within a tile lets the network treat tile borders differently. Images must then start at a tile border.

    >>> net = PixelNet(16, blocks=1, tile=(32, 32))
    >>> images = torch.rand(1, 3, 64, 96)
    >>> torch.equal(net(images), images)
    True
    """

    def __init__(self, width: int, blocks: int, tile: tuple[int, int] | None = None) -> None:
        super().__init__()
        channels = 3 * BLOCK**2
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        cells = None if tile is None else (tile[0] // BLOCK, tile[1] // BLOCK)
        self.position = None if cells is None else nn.Parameter(torch.zeros(width, *cells))
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(blocks)))
        self.last = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        blocks = F.pixel_unshuffle(images - 0.5, BLOCK).unflatten(1, (3, BLOCK**2))
        mean = blocks.mean(2, keepdim=True)
        scaled = (DETAIL_SCALE * (blocks - mean) + MEAN_SCALE * mean).flatten(1, 2)
        features = self.first(channels_last(scaled))
        if self.position is not None:
            rows, columns = (
                -(-length // cells) for length, cells in zip(features.shape[2:], self.position.shape[1:], strict=True)
            )
            embedding = self.position.repeat(1, rows, columns)[:, : features.shape[2], : features.shape[3]]
            features = features + embedding
        correction = F.pixel_shuffle(self.last(self.blocks(features)), BLOCK)
        return images + OUTPUT_SCALE * correction

    @property
    def reach(self) -> int:
        """Radius of the receptive field in pixels."""
        return BLOCK * (2 + 2 * len(self.blocks))


class ResidualBlock(nn.Module):
    """x + conv(gelu(conv(x))) with 3×3 convolutions and without normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.second(F.gelu(self.first(x)))
        return x + change
