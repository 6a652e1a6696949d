"""Light convolutional encoder for small models: it converges within minutes on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from finola.checks import check_values
from finola.config import ModelConfig

WIDTHS = (64, 128, 192)


class LightEncoder(nn.Module):
    """Three strided convolutions, flattened into one linear layer: (N, 3, H, W) of the model's size → q (N, M, C).

    >>> import torch
    >>> LightEncoder(ModelConfig.parse("conv-light/32x4@8:64"))(torch.rand(2, 3, 64, 64)).shape
    torch.Size([2, 4, 32])
    """

    returns_q = True  # needs no pooling

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, (height, width) = 3, config.image_size
        for out_channels in WIDTHS:
            layers += [nn.Conv2d(channels, out_channels, 3, stride=2, padding=1), nn.GELU()]
            channels, height, width = out_channels, -(-height // 2), -(-width // 2)
        self.convolutions = nn.Sequential(*layers)
        self.linear = nn.Linear(channels * height * width, config.paths * config.channels)
        self.paths = config.paths

    def forward(self, images: Tensor) -> Tensor:
        check_values(images, training=self.training)
        q: Tensor = self.linear(self.convolutions(images).flatten(1)).unflatten(1, (self.paths, -1))
        return q
