"""Residual encoders for small models, which converge within minutes on a CPU: one computes q, one a feature map."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from finola.checks import check_size, check_values
from finola.config import ModelConfig
from finola.layers import MEAN, STD, ResidualBlock

PATCH = 4  # pixels per side of a position of the first stage
MAP_BLOCKS = 3  # of the last stage of `ResidualMap`
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


class ResidualMap(nn.Module):
    """Residual blocks on two stages: (N, 3, H, W) → feature map (N, 2·width, H/8, W/8).

    The first stage has one block of `width` channels on patches of 4×4 pixels, the second three of twice the channels
    at half the resolution. The layer norm of the map is over the channels of each position.

    >>> import torch
    >>> ResidualMap(16)(torch.rand(2, 3, 64, 32)).shape
    torch.Size([2, 32, 8, 4])
    """

    reduction = 2 * PATCH

    def __init__(self, width: int) -> None:
        super().__init__()
        self.channels, self.stage_channels = 2 * width, [width, 2 * width]
        self.first = nn.Sequential(nn.Conv2d(3, width, PATCH, PATCH), ResidualBlock(width))
        blocks = (ResidualBlock(2 * width) for _ in range(MAP_BLOCKS))
        self.second = nn.Sequential(nn.Conv2d(width, 2 * width, 2, 2), *blocks)
        self.norm = nn.LayerNorm(2 * width)

    def forward(self, images: Tensor) -> Tensor:
        return self.stages(images)[-1]

    def stages(self, images: Tensor) -> list[Tensor]:
        """The map of each stage, finest first."""
        check_size(images.shape[-2], images.shape[-1], self.reduction)
        check_values(images, training=self.training)
        fine: Tensor = self.first((images - MEAN) / STD)
        coarse: Tensor = self.second(fine)
        return [fine, self.norm(coarse.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)]
