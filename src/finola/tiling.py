"""Images of any size as tiles: pad, cut and join, and blocks of tiles with their neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.kernels.stepwise import transformed

Size = tuple[int, int]


def pad_to(images: Tensor, size: Size) -> Tensor:
    """Pad the right and bottom edges by replication until the sides are at least `size`.

    >>> pad_to(torch.zeros(1, 3, 70, 64), (40, 80)).shape
    torch.Size([1, 3, 70, 80])
    """
    height, width = images.shape[-2:]
    if height >= size[0] and width >= size[1]:
        return images
    return F.pad(images, (0, max(0, size[1] - width), 0, max(0, size[0] - height)), mode="replicate")


def pad_to_multiple(images: Tensor, size: Size) -> Tensor:
    """Pad the right and bottom edges by replication until both sides are multiples of `size`.

    >>> pad_to_multiple(torch.zeros(1, 3, 70, 64), (64, 64)).shape
    torch.Size([1, 3, 128, 64])
    """
    rows, columns = grid_of((images.shape[-2], images.shape[-1]), size)
    return pad_to(images, (rows * size[0], columns * size[1]))


def cut(images: Tensor, tile: Size) -> tuple[Tensor, Size]:
    """Split (N, C, H, W) into tiles (N·rows·columns, C, *tile), edges replicated; also return the grid (rows, columns).

    >>> tiles, grid = cut(torch.zeros(1, 3, 70, 64), (64, 64)); tiles.shape, grid
    (torch.Size([2, 3, 64, 64]), (2, 1))
    """
    images = pad_to_multiple(images, tile)
    n, channels, height, width = images.shape
    rows, columns = height // tile[0], width // tile[1]
    tiles = images.reshape(n, channels, rows, tile[0], columns, tile[1]).permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(n * rows * columns, channels, *tile), (rows, columns)


def join(tiles: Tensor, grid: Size, size: Size | None = None) -> Tensor:
    """Join tiles of any size and channel count, and crop to `size`; the inverse of `cut`. Channels-last is preserved.

    >>> images = torch.rand(2, 3, 8, 11)
    >>> torch.equal(join(*cut(images, (4, 6)), size=(8, 11)), images)
    True
    """
    rows, columns = grid
    _, channels, height, width = tiles.shape
    if not torch.compiler.is_exporting() and _is_channels_last(tiles):  # a graph is the same for all memory formats
        tiles = tiles.permute(0, 2, 3, 1).reshape(-1, rows, columns, height, width, channels).transpose(2, 3)
        joined = tiles.reshape(-1, rows * height, columns * width, channels).permute(0, 3, 1, 2)
    else:
        tiles = tiles.reshape(-1, rows, columns, channels, height, width).permute(0, 3, 1, 4, 2, 5)
        joined = tiles.reshape(-1, channels, rows * height, columns * width)
    return joined if size is None else joined[..., : size[0], : size[1]]


def _is_channels_last(tiles: Tensor) -> bool:
    if transformed(tiles) or tiles.is_contiguous():
        return False
    return tiles.is_contiguous(memory_format=torch.channels_last)


def grid_of(size: Size, tile: Size) -> Size:
    """Grid (rows, columns) of the tiles that cover an image of `size`.

    >>> grid_of((65, 300), (64, 64))
    (2, 5)
    """
    return -(-size[0] // tile[0]), -(-size[1] // tile[1])


class Block(NamedTuple):
    """Rectangle of tiles, and the same rectangle with its neighbours on each side, clipped to the grid."""

    rows: range
    columns: range
    near_rows: range
    near_columns: range

    def pixels(self, size: Size, tile: Size) -> tuple[slice, slice]:
        """Rows and columns of pixels without neighbours, clipped to an image of `size`."""
        rows = slice(self.rows.start * tile[0], min(self.rows.stop * tile[0], size[0]))
        return rows, slice(self.columns.start * tile[1], min(self.columns.stop * tile[1], size[1]))


def blocks(grid: Size, most: int, near: int = 1) -> Iterator[Block]:
    """Split a grid into blocks of at most `most` tiles, from left to right, and within each column from top to bottom.

    Blocks are as wide as the grid unless a row has more than `most` tiles, so memory is bounded for any shape. Each has
    up to `near` neighbouring tiles on every side; with more than one, blocks are square where the grid allows it, which
    keeps the number of neighbours small.

    >>> [(list(block.rows), list(block.columns)) for block in blocks((3, 2), most=4)]
    [([0, 1], [0, 1]), ([2], [0, 1])]
    """
    rows, columns = grid
    across = most if near == 1 else max(math.isqrt(most), most // rows)
    for left in range(0, columns, across):
        right = min(columns, left + across)
        height = max(1, most // (right - left))
        for top in range(0, rows, height):
            bottom = min(rows, top + height)
            near_rows = range(max(0, top - near), min(rows, bottom + near))
            near_columns = range(max(0, left - near), min(columns, right + near))
            yield Block(range(top, bottom), range(left, right), near_rows, near_columns)


def tile_indices(rows: range, columns: range, across: int) -> Tensor:
    """Row-major indices of the tiles of a rectangle in a grid with `across` columns.

    >>> tile_indices(range(1, 3), range(2), across=5)
    tensor([ 5,  6, 10, 11])
    """
    return (torch.tensor(rows)[:, None] * across + torch.tensor(columns)).flatten()


Item = TypeVar("Item")


def equal_sized(
    items: Iterable[tuple[Item, Tensor]], most: int, pixels: int = 2**22
) -> Iterator[list[tuple[Item, Tensor]]]:
    """Group successive images of equal shape for batches of at most `most` images and about `pixels` pixels.

    >>> images = [(number, torch.zeros(3, 8, width)) for number, width in enumerate((8, 8, 8, 9))]
    >>> [[number for number, _ in group] for group in equal_sized(images, 2)]
    [[0, 1], [2], [3]]
    """
    group: list[tuple[Item, Tensor]] = []
    for item, image in items:
        area = image.shape[-2] * image.shape[-1]
        if group and (len(group) == most or group[0][1].shape != image.shape or area * len(group) >= pixels):
            yield group
            group = []
        group.append((item, image))
    if group:
        yield group
