"""Trainable refinement of the wave encoder. The last layer is zero-initialised, so q is unchanged before training."""

from __future__ import annotations

from torch import Tensor, nn

from finola.layers import AttentionPool


class DepthwiseBlock(nn.Module):
    """Residual block of a depthwise 5×5 and two pointwise convolutions, with group norm instead of batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 5, padding=2, groups=width),
            nn.GroupNorm(1, width),
            nn.Conv2d(width, 2 * width, 1),
            nn.GELU(),
            nn.Conv2d(2 * width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layers(x)
        return x + change


class ConvRefiner(nn.Module):
    """Small depthwise CNN from images to an update (N, M, size) of the wave coordinates."""

    def __init__(self, image_size: tuple[int, int], paths: int, size: int, width: int = 64) -> None:
        super().__init__()
        side = min(image_size)
        stem = 4 if side >= 32 else 2 if side >= 16 else 1
        layers: list[nn.Module] = [nn.Conv2d(3, width, stem, stride=stem), DepthwiseBlock(width)]
        side //= stem
        while side > 4:
            wider = min(2 * width, 256)
            layers += [nn.Conv2d(width, wider, 3, stride=2, padding=1), DepthwiseBlock(wider)]
            width, side = wider, -(-side // 2)
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(side), nn.Flatten())
        self.last = nn.Linear(width * side * side, paths * size)
        self.paths = paths

    def forward(self, images: Tensor) -> Tensor:
        coordinates: Tensor = self.last(self.features(images - 0.5)).unflatten(1, (self.paths, -1))
        return coordinates


class PooledRefiner(nn.Module):
    """Encoder (Mobile-Former or timm backbone), attention pooling and a linear layer."""

    def __init__(self, encoder: nn.Module, paths: int, size: int, width: int = 512) -> None:
        super().__init__()
        self.encoder = encoder
        self.pool = AttentionPool(encoder.channels, width, paths)  # type: ignore[arg-type]
        self.last = nn.Linear(width, size)

    def forward(self, images: Tensor) -> Tensor:
        coordinates: Tensor = self.last(self.pool(self.encoder(images)))
        return coordinates
