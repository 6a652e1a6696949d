"""The wave read-out: every position samples its plane waves inside its cell. Refinements start as no change at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from finola.config import ModelConfig
from finola.decoders.patch import PatchDecoder, patches_to_image


class WaveDecoder(nn.Module):
    """z → images: the linear read-out, then what `refinement(z, image)` makes of it."""

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
    """x + two 3×3 convolutions, no batch statistics."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, padding=1), nn.GELU()
        )

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.layers(x)
        return x + change


class ConvRefinement(nn.Module):
    """Residual convolutions on the map add to every cell's pixels; more of them on pixels work across cells and tiles.

    Those on pixels see them as blocks of up to 4×4, 48 channels: on a CPU convolutions of 3 channels cost a fifth of a
    training step and next to no FLOPs. The larger a cell, the more is left to them: two residual blocks for every time
    that its side is twice a block's.
    """

    def __init__(self, channels: int, cell: tuple[int, int], width: int = 128, per_pixel: int = 4) -> None:
        super().__init__()
        self.cell = cell
        block = math.gcd(*cell, 4)
        pixel_width = per_pixel * block**2
        self.on_map = nn.Sequential(nn.Conv2d(channels, width, 1), ResidualBlock(width), ResidualBlock(width))
        self.to_pixels = nn.Conv2d(width, 3 * cell[0] * cell[1], 1)
        deeper = [ResidualBlock(pixel_width) for _ in range(2 * int(math.log2(min(cell) / block)))]
        for each in deeper:
            zero_last_layer(each)
        self.on_pixels = nn.Sequential(
            nn.PixelUnshuffle(block),
            nn.Conv2d(3 * block**2, pixel_width, 3, padding=1),
            nn.Sequential(nn.GELU(), *deeper),
            nn.Conv2d(pixel_width, 3 * block**2, 3, padding=1),
            nn.PixelShuffle(block),
        )
        zero_last_layer(self.to_pixels)
        zero_last_layer(self.on_pixels)

    def look_through(self, read_out: PatchDecoder) -> None:
        """Let the first layer start from random mixtures of the pixels that the read-out draws in a cell.

        What separates one cell from its neighbours are faint, fast waves, which random mixtures of the channels would
        drown; trained from there the net learns an order of magnitude more slowly (docs/waves.md, §7).
        """
        first, pixels = self.on_map[0], read_out.linear.weight.double()  # (3·h·w, C)
        assert isinstance(first, nn.Conv2d) and first.bias is not None
        area = len(pixels) // 3
        mean = torch.block_diag(*[torch.full((area, area), 1 / area, dtype=torch.float64)] * 3)
        detail = torch.eye(len(pixels), dtype=torch.float64) - mean
        scale = (4 * mean + 16 * detail).to(pixels)  # about 1/std: a cell's mean colour varies more than its pixels
        mix = torch.randn(first.out_channels, len(pixels), dtype=pixels.dtype, device=pixels.device)
        first.weight.copy_((mix @ scale @ pixels / math.sqrt(len(pixels)))[:, :, None, None])
        nn.init.zeros_(first.bias)

    def forward(self, z: Tensor, image: Tensor) -> Tensor:
        image = image + patches_to_image(self.to_pixels(self.on_map(z)).permute(0, 2, 3, 1), self.cell)
        change: Tensor = self.on_pixels(image)
        return image + change


class AddedDecoder(nn.Module):
    """A decoder of the paper beside the read-out: its last layer starts at zero, its image is added."""

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
