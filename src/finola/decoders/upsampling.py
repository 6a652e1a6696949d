"""Upsampling and convolution decoder, Table 12 (table:appendix:upsampler-achs), for cells of 1, 2, 4, … 32 pixels."""

from __future__ import annotations

from torch import Tensor, nn

from finola.errors import InputError

# Side of a cell in pixels → (channels of the up-conv before this scale, channels of the res-conv after it)
STAGES = {32: (512, 512), 16: (512, 512), 8: (512, 256), 4: (256, 256), 2: (256, 128), 1: (128, 128)}


def conv_norm(in_channels: int, out_channels: int) -> nn.Sequential:
    """3×3 convolution and batch norm."""
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False), nn.BatchNorm2d(out_channels))


class ResConv(nn.Module):
    """Two 3×3 convolutions, with an identity shortcut only if the number of channels does not change."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = conv_norm(in_channels, out_channels)
        self.second = conv_norm(out_channels, out_channels)
        self.identity = in_channels == out_channels
        self.activation = nn.ReLU()

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.second(self.activation(self.first(z)))
        out = self.activation(out + z if self.identity else out)
        return out


class UpConv(nn.Sequential):
    """Upsampling by two, then one 3×3 convolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(nn.Upsample(scale_factor=2.0), conv_norm(in_channels, out_channels), nn.ReLU())


class UpsamplingDecoder(nn.Sequential):
    """Decode z (N, C, H, W) to images (N, 3, cell·H, cell·W); one column of Table 12. `slim` divides all widths.

    >>> import torch
    >>> UpsamplingDecoder(channels=32, cell=4)(torch.randn(1, 32, 6, 8)).shape
    torch.Size([1, 3, 24, 32])
    """

    def __init__(self, channels: int, cell: int, slim: int = 1) -> None:
        if cell not in STAGES:
            raise InputError(
                f"The upsampling decoder needs cells of 1, 2, 4, 8, 16 or 32 pixels, got {cell}. Use +patch."
            )
        blocks: list[nn.Module] = []
        for scale, widths in STAGES.items():
            if scale > cell:
                continue
            up, width = (number // slim for number in widths)
            if scale < cell:
                blocks.append(UpConv(channels, up))
                channels = up
            blocks.append(ResConv(channels, width))
            channels = width
        super().__init__(*blocks, nn.Conv2d(channels, 3, 3, padding=1))
