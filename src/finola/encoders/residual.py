"""Residual encoder for small models: it computes q without pooling and converges within minutes on a CPU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from finola.checks import check_size, check_values
from finola.config import ModelConfig
from finola.layers import MEAN, STD, ResidualBlock

PATCH = 4  # pixels per side of a position of the first stage
LAST = 8  # largest side of the last stage
BLOCKS = 2  # of the last stage; the others have one
POOLED = 2  # pixels per side of the means that the linear layer from pixels takes


class ResidualEncoder(nn.Module):
    """Residual blocks, flattened into one linear layer: (N, 3, H, W) of the model's size → q (N, M, C).

    The first stage has `width` channels on patches of 4×4 pixels. Each further stage halves the sides and doubles the
    channels, until no side exceeds 8 positions. `linear` adds a linear layer from pixels, means of 2×2, to q.

    >>> import torch
    >>> config = ModelConfig.parse("residual-w16/32x4@8:64+patch")
    >>> ResidualEncoder(config, width=16)(torch.rand(2, 3, 64, 64)).shape
    torch.Size([2, 4, 32])
    """

    returns_q = True  # needs no pooling

    def __init__(self, config: ModelConfig, width: int, linear: bool = False) -> None:
        super().__init__()
        height, width_ = config.image_size
        check_size(height, width_, PATCH)
        rows, columns = height // PATCH, width_ // PATCH
        layers: list[nn.Module] = [nn.Conv2d(3, width, PATCH, PATCH)]
        while max(rows, columns) > LAST:
            halving = nn.Conv2d(width, 2 * width, 2, 2, padding=(rows % 2, columns % 2))
            layers += [ResidualBlock(width), halving]
            width, rows, columns = 2 * width, -(-rows // 2), -(-columns // 2)
        self.layers = nn.Sequential(*layers, *(ResidualBlock(width) for _ in range(BLOCKS)))
        self.to_q = nn.Linear(width * rows * columns, config.paths * config.channels)
        pixels = 3 * height * width_ // POOLED**2
        self.from_pixels = nn.Linear(pixels, config.paths * config.channels) if linear else None
        self.paths = config.paths

    def forward(self, images: Tensor) -> Tensor:
        check_values(images)
        images = (images - MEAN) / STD
        q: Tensor = self.to_q(self.layers(images).flatten(1))
        if self.from_pixels is not None:
            q = q + self.from_pixels(F.avg_pool2d(images, POOLED).flatten(1))
        q = q.unflatten(1, (self.paths, -1))
        return q
