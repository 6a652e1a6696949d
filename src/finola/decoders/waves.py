"""Wave decoder: a linear read-out evaluates the plane waves of each position in its cell; optional refinements.

Refinements are zero-initialised, so the decoder is unchanged before training.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.config import ModelConfig
from finola.decoders.patch import PatchDecoder, patches_to_image
from finola.pixel_net import PixelNet

TILES_SIZE, WHOLE_SIZE = (64, 8), (64, 10)
"""Width and number of blocks of the network after the exact read-out, of elastic tiles and of whole images. With the
network before the analysis they take at most 60,000 multiply–adds per pixel."""


class FixedReadOut(nn.Module):
    """Linear read-out of exact plane waves, neither trained nor stored; `initialise_waves` sets its weight."""

    weight: Tensor  # (3·cell_h·cell_w, C)

    def __init__(self, channels: int, cell: tuple[int, int]) -> None:
        super().__init__()
        self.cell = cell
        self.register_buffer("weight", torch.zeros(3 * cell[0] * cell[1], channels), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        return patches_to_image(F.linear(z.permute(0, 2, 3, 1), self.weight) + 0.5, self.cell)


class ExactDecoder(nn.Module):
    """Decode z with the exact read-out, then correct the image with a network on pixels that crosses tile borders."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.read_out = FixedReadOut(config.channels, config.cell)
        self.refinement = PixelNet(*TILES_SIZE, config.image_size) if config.elastic else PixelNet(*WHOLE_SIZE)

    def forward(self, z: Tensor) -> Tensor:
        image: Tensor = self.refinement(self.read_out(z))
        return image


class WaveDecoder(nn.Module):
    """Decode z to images with the linear read-out, then apply `refinement(z, image)` if given."""

    def __init__(self, config: ModelConfig, refinement: nn.Module | None = None) -> None:
        super().__init__()
        self.read_out = PatchDecoder(config.channels, config.cell)
        self.refinement = refinement

    def forward(self, z: Tensor) -> Tensor:
        image: Tensor = self.read_out(z)
        if self.refinement is not None:
            image = self.refinement(z, image)
        return image


class ResidualBlock(nn.Module):
    """Residual block of two 3×3 convolutions without batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, padding=1), nn.GELU()
        )

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layers(x)
        return x + change


class ConvRefinement(nn.Module):
    """Residual convolutions on the map, then on the pixels, where they also cross the boundaries of cells and tiles.

    Pixels are processed as blocks of up to 4×4, with 48 channels: convolutions with 3 channels would take a fifth of a
    training step on a CPU although they have few FLOPs. Larger cells get more layers: two residual blocks for each
    doubling of the cell's side beyond that of a block.
    """

    def __init__(self, channels: int, cell: tuple[int, int], width: int = 128, per_pixel: int = 4) -> None:
        super().__init__()
        self.cell = cell
        block = math.gcd(*cell, 4)
        pixel_width = per_pixel * block**2
        self.on_map = nn.Sequential(nn.Conv2d(channels, width, 1), ResidualBlock(width), ResidualBlock(width))
        self.to_pixels = nn.Conv2d(width, 3 * cell[0] * cell[1], 1)
        extra = [ResidualBlock(pixel_width) for _ in range(2 * int(math.log2(min(cell) / block)))]
        for layer in extra:
            zero_last_layer(layer)
        self.on_pixels = nn.Sequential(
            nn.PixelUnshuffle(block),
            nn.Conv2d(3 * block**2, pixel_width, 3, padding=1),
            nn.Sequential(nn.GELU(), *extra),
            nn.Conv2d(pixel_width, 3 * block**2, 3, padding=1),
            nn.PixelShuffle(block),
        )
        zero_last_layer(self.to_pixels)
        zero_last_layer(self.on_pixels)

    def look_through(self, read_out: PatchDecoder) -> None:
        """Initialise the first layer with random combinations of the pixels that the read-out decodes in a cell.

        The differences between neighbouring cells are in waves of high frequency and low amplitude, which random
        combinations of channels barely contain. Training from those is an order of magnitude slower (docs/waves.md,
        §7).
        """
        first, pixels = self.on_map[0], read_out.linear.weight.double()  # (3·h·w, C)
        assert isinstance(first, nn.Conv2d) and first.bias is not None
        area = len(pixels) // 3
        mean = torch.block_diag(*[torch.full((area, area), 1 / area, dtype=torch.float64)] * 3)
        detail = torch.eye(len(pixels), dtype=torch.float64) - mean
        scale = (4 * mean + 16 * detail).to(
            pixels
        )  # about 1/std; the mean colour of a cell varies more than its details
        mix = torch.randn(first.out_channels, len(pixels), dtype=pixels.dtype, device=pixels.device)
        first.weight.copy_((mix @ scale @ pixels / math.sqrt(len(pixels)))[:, :, None, None])
        nn.init.zeros_(first.bias)

    def forward(self, z: Tensor, image: Tensor) -> Tensor:
        image = image + patches_to_image(self.to_pixels(self.on_map(z)).permute(0, 2, 3, 1), self.cell)
        change: Tensor = self.on_pixels(image)
        return image + change


class AddedDecoder(nn.Module):
    """Decoder of the paper whose output is added to the read-out; its last layer is zero-initialised."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        zero_last_layer(decoder)
        self.decoder = decoder

    def forward(self, z: Tensor, image: Tensor) -> Tensor:
        change: Tensor = self.decoder(z)
        return image + change


def zero_last_layer(module: nn.Module) -> None:
    """Set the weights of the last linear or convolution layer to zero."""
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)][-1]
    nn.init.zeros_(last.weight)
    if last.bias is not None:
        nn.init.zeros_(last.bias)
