"""A photo of any size as a grid of tiles, and the tiles' maps joined again."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]


def pad_to_multiple(images: Tensor, size: Size) -> Tensor:
    """Replicate the right and lower edge until both sides are multiples of `size`.

    >>> pad_to_multiple(torch.zeros(1, 3, 70, 64), (64, 64)).shape
    torch.Size([1, 3, 128, 64])
    """
    height, width = images.shape[-2:]
    return F.pad(images, (0, -width % size[1], 0, -height % size[0]), mode="replicate")


def cut(images: Tensor, tile: Size) -> tuple[Tensor, Size]:
    """(N, C, H, W), sides multiples of `tile`, → (N·rows·columns, C, *tile), and the grid (rows, columns)."""
    n, channels, height, width = images.shape
    rows, columns = height // tile[0], width // tile[1]
    tiles = images.reshape(n, channels, rows, tile[0], columns, tile[1]).permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(n * rows * columns, channels, *tile), (rows, columns)


def join(tiles: Tensor, grid: Size) -> Tensor:
    """The inverse of `cut`, for tiles of any size and channel count; channels-last stays channels-last in memory.

    >>> images = torch.rand(2, 3, 8, 12)
    >>> torch.equal(join(*cut(images, (4, 6))), images)
    True
    """
    rows, columns = grid
    _, channels, height, width = tiles.shape
    if tiles.is_contiguous(memory_format=torch.channels_last) and not tiles.is_contiguous():
        tiles = tiles.permute(0, 2, 3, 1).reshape(-1, rows, columns, height, width, channels).transpose(2, 3)
        return tiles.reshape(-1, rows * height, columns * width, channels).permute(0, 3, 1, 2)
    joined = tiles.reshape(-1, rows, columns, channels, height, width).permute(0, 3, 1, 4, 2, 5)
    return joined.reshape(-1, channels, rows * height, columns * width)
