"""Convolutional baseline of propagation (appendix A.3): upsample a 2×2 grid of vectors to the map."""

from __future__ import annotations

from torch import Tensor, nn

from finola.decoders.upsampling import conv_norm
from finola.errors import InputError

WIDTH = 512  # channels of the blocks
MAP_CHANNELS = 1024  # channels of the map, the input of the decoder


class ConvGrower(nn.Module):
    """Upsample q (N, 4, C), a 2×2 grid, to z (N, 1024, H, W); each block has three 3×3 convolutions and upsampling.

    `slim` divides all widths.

    >>> import torch
    >>> ConvGrower(channels=16, size=(8, 8))(torch.randn(1, 4, 16)).shape
    torch.Size([1, 1024, 8, 8])
    """

    def __init__(self, channels: int, size: tuple[int, int], slim: int = 1) -> None:
        super().__init__()
        height, width = size
        doublings = (height // 2).bit_length() - 1
        if height != width or height != 2 << doublings or doublings < 1:
            raise InputError(f"Conv-AE needs a square map with a side of 4, 8, 16, …, got {width}×{height}.")
        layers: list[nn.Module] = []
        for block in range(doublings):
            for layer in range(3):
                last = block == doublings - 1 and layer == 2
                out_channels = (MAP_CHANNELS if last else WIDTH) // slim
                layers += [conv_norm(channels, out_channels), nn.ReLU()]
                channels = out_channels
            layers.append(nn.Upsample(scale_factor=2.0))
        self.blocks = nn.Sequential(*layers)

    def forward(self, q: Tensor) -> Tensor:
        grid = q.transpose(1, 2).unflatten(2, (2, 2))  # (N, C, 2, 2)
        z: Tensor = self.blocks(grid)
        return z
