"""Controls of propagation that compute the map from q without a recurrence.

The Conv-AE of appendix A.3, a free linear map, and a residual Conv-AE.
"""

from __future__ import annotations

from torch import Tensor, nn

from finola.config import RECURRENT, ModelConfig
from finola.decoders.upsampling import conv_norm
from finola.errors import InputError
from finola.layers import ResidualBlock

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


class FreeMap(nn.Module):
    """Linear layer from q (N, M, C) to z (N, C, H, W) with a weight for every position of the map.

    >>> import torch
    >>> FreeMap(channels=16, paths=2, size=(3, 5))(torch.randn(1, 2, 16)).shape
    torch.Size([1, 16, 3, 5])
    """

    def __init__(self, channels: int, paths: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size
        self.linear = nn.Linear(channels * paths, size[0] * size[1] * channels)

    def forward(self, q: Tensor) -> Tensor:
        z: Tensor = self.linear(q.flatten(1)).view(len(q), *self.size, -1)
        return z.permute(0, 3, 1, 2)


class ResidualGrower(nn.Module):
    """Linear layer from q (N, M, C) to a map of at most 4×4, which residual blocks and upsampling grow to (N, C, H, W).

    The sides of the map are those of z, halved while both are even and one exceeds 4.

    >>> import torch
    >>> ResidualGrower(channels=16, paths=2, size=(16, 8), width=8)(torch.randn(1, 2, 16)).shape
    torch.Size([1, 16, 16, 8])
    """

    def __init__(self, channels: int, paths: int, size: tuple[int, int], width: int) -> None:
        super().__init__()
        height, columns = size
        layers: list[nn.Module] = []
        while max(height, columns) > 4 and height % 2 == columns % 2 == 0:
            height, columns = height // 2, columns // 2
            layers += [nn.Upsample(scale_factor=2.0), ResidualBlock(width)]
        self.linear = nn.Linear(channels * paths, width * height * columns)
        self.size = height, columns
        self.layers = nn.Sequential(ResidualBlock(width), *layers, nn.Conv2d(width, channels, 1))

    def forward(self, q: Tensor) -> Tensor:
        z: Tensor = self.layers(self.linear(q.flatten(1)).unflatten(1, (-1, *self.size)))
        return z


def build_grower(config: ModelConfig) -> nn.Module | None:
    """Build the module that computes z from q without a recurrence; None if the model has a recurrence.

    >>> build_grower(ModelConfig.parse("residual-w8/16x1@8:32+patch")) is None
    True
    """
    if config.transition in RECURRENT:
        return None
    if config.transition == "conv-ae":
        return ConvGrower(config.channels, config.map_size, config.slim)
    if config.transition == "free":
        return FreeMap(config.channels, config.paths, config.map_size)
    width = int(config.transition.removeprefix("resae"))
    return ResidualGrower(config.channels, config.paths, config.map_size, width)
