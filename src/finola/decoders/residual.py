"""Residual decoder for small models: a linear read-out of z plus residual blocks."""

from __future__ import annotations

from torch import Tensor, nn

from finola.decoders.patch import PatchDecoder
from finola.layers import MEAN, STD, ResidualBlock

BLOCKS = 3


class ResidualDecoder(nn.Module):
    """Sum of a linear read-out of z and of one after residual blocks of `width` channels, which starts at zero.

    Each block reaches two positions of the map in every direction.

    >>> import torch
    >>> ResidualDecoder(channels=32, cell=(4, 4), width=16)(torch.randn(1, 32, 6, 8)).shape
    torch.Size([1, 3, 24, 32])
    """

    def __init__(self, channels: int, cell: tuple[int, int], width: int) -> None:
        super().__init__()
        self.read_out = PatchDecoder(channels, cell)
        self.blocks = nn.Sequential(nn.Conv2d(channels, width, 1), *(ResidualBlock(width) for _ in range(BLOCKS)))
        self.correction = PatchDecoder(width, cell)
        nn.init.zeros_(self.correction.linear.weight)
        nn.init.zeros_(self.correction.linear.bias)

    def forward(self, z: Tensor) -> Tensor:
        scaled: Tensor = self.read_out(z) + self.correction(self.blocks(z))
        return MEAN + STD * scaled
