"""The convolutional peer of propagation (appendix A.3): conv blocks upsample a 2×2 grid of vectors to the map."""

from __future__ import annotations

from torch import Tensor, nn

from finola.decoders.upsampling import conv_norm

WIDTH = 512  # inside the blocks
MAP_CHANNELS = 1024  # of the map that the shared last layers take


class ConvGrower(nn.Module):
    """q (N, 4, C), read as a 2×2 grid, → z (N, 1024, H, W) by blocks of three 3×3 convolutions and an upsampling.

    >>> import torch
    >>> ConvGrower(channels=16, size=(8, 8))(torch.randn(1, 4, 16)).shape
    torch.Size([1, 1024, 8, 8])
    """

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        height, width = size
        doublings = (height // 2).bit_length() - 1
        if height != width or height != 2 << doublings or doublings < 1:
            raise ValueError(f"Conv-AE doubles a 2x2 grid to 4, 8, 16, … positions a side, not to {height}x{width}.")
        layers: list[nn.Module] = []
        for block in range(doublings):
            for layer in range(3):
                last = block == doublings - 1 and layer == 2
                out_channels = MAP_CHANNELS if last else WIDTH
                layers += [conv_norm(channels, out_channels), nn.ReLU()]
                channels = out_channels
            layers.append(nn.Upsample(scale_factor=2.0))
        self.blocks = nn.Sequential(*layers)

    def forward(self, q: Tensor) -> Tensor:
        grid = q.transpose(1, 2).unflatten(2, (2, 2))  # (N, C, 2, 2)
        z: Tensor = self.blocks(grid)
        return z
