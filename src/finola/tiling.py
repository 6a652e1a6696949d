"""Images of any size as tiles: pad, cut, join, encode and decode, in blocks of bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from finola.kernels.stepwise import transformed

Size = tuple[int, int]

BLOCK = 96
"""Tiles decoded together, excluding neighbours: a compromise between matrix size and memory."""


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


def tile_batches(
    read: Callable[[int, int, int, int], Tensor], size: Size, tile: Size, most: int = BLOCK
) -> Iterator[Tensor]:
    """Yield tiles (n, 3, *tile) of an image of `size` in row-major order, at most `most` at a time, edges replicated.

    `read(top, bottom, left, right)` returns that region of the image (3, h, w); one batch is in memory at a time.

    >>> image = torch.rand(3, 70, 130)
    >>> read = lambda top, bottom, left, right: image[:, top:bottom, left:right]
    >>> [tuple(batch.shape) for batch in tile_batches(read, (70, 130), (64, 64))]
    [(3, 3, 64, 64), (3, 3, 64, 64)]
    """
    height, width = size
    across = most * tile[1]
    for top in range(0, height, tile[0]):
        for left in range(0, width, across):
            part = read(top, min(top + tile[0], height), left, min(left + across, width))
            yield cut(part[None], tile)[0]


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


def blocks(grid: Size, most: int = BLOCK, near: int = 1) -> Iterator[Block]:
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


def decode_blocks(
    grow: Callable[[range, range], Tensor],
    decode: Callable[[Tensor], Tensor],
    grid: Size,
    tile: Size,
    map_size: Size,
    *,
    margin: Size | None = None,
    most: int = BLOCK,
) -> Iterator[tuple[int, int, Tensor]]:
    """Decode a grid of tiles block by block, each with `margin` cells of its neighbours on every side.

    `grow(rows, columns)` returns the maps (len(rows)·len(columns), C, *map_size) of tiles in row-major order; `decode`
    turns joined maps into pixels. Yields (y, x, pixels (3, h, w)), which together cover the grid once. The default
    margin, half a tile, exceeds the receptive field of the wave decoders, so block boundaries are not visible.
    """
    margin = margin or (map_size[0] // 2, map_size[1] // 2)
    maps: dict[int, Tensor] = {}  # joined rows of the current columns; each row is propagated once
    current: range | None = None
    for block in blocks(grid, most):
        if block.near_columns != current:
            maps, current = {}, block.near_columns
        for row in [row for row in maps if row < block.near_rows.start]:
            del maps[row]
        missing = range(block.near_rows.start + len(maps), block.near_rows.stop)
        if missing:
            by_row = grow(missing, current).split(len(current))
            maps |= {row: join(z, (1, len(current))) for row, z in zip(missing, by_row, strict=True)}
            del by_row
        z = torch.cat([_crop_neighbour(maps[row], row, block.rows, margin[0]) for row in block.near_rows], dim=2)
        left = margin[1] if current.start < block.columns.start else 0
        right = margin[1] if current.stop > block.columns.stop else 0
        if left or right:
            start = (block.columns.start - current.start) * map_size[1] - left
            z = z[..., start : start + left + len(block.columns) * map_size[1] + right]
        above = margin[0] if block.near_rows.start < block.rows.start else 0
        y, x = above * tile[0] // map_size[0], left * tile[1] // map_size[1]
        pixels = decode(z)[0, :, y : y + len(block.rows) * tile[0], x : x + len(block.columns) * tile[1]]
        yield block.rows.start * tile[0], block.columns.start * tile[1], pixels


def _crop_neighbour(z: Tensor, row: int, rows: range, margin: int) -> Tensor:
    """Map of one row of tiles, whole if in `rows`; otherwise only the `margin` cells adjacent to them."""
    if row in rows:
        return z
    return z[:, :, :margin] if row >= rows.stop else z[:, :, z.shape[2] - margin :]


def error_and_gradient(
    decode: Callable[[Tensor, Size], Tensor],
    read: Callable[[int, int, int, int], Tensor],
    size: Size,
    tile: Size,
    latents: Tensor,
    *,
    most: int = BLOCK,
    near: int = 1,
) -> tuple[float, Tensor]:
    """Half the squared error of a photo of `size` decoded from the latents (T, …) of its tiles, and its gradient.

    `decode(latents, grid)` returns the image (1, 3, h, w) of a rectangle of tiles; blocks of `most` tiles are decoded
    with `near` tiles of context per side. `read(top, bottom, left, right)` returns that region of the photo, (3, h, w)
    in [0, 1], on the device of the decoded image.
    """
    grid = grid_of(size, tile)
    gradient, total = torch.zeros_like(latents), 0.0
    for block in blocks(grid, most, near):
        indices = tile_indices(block.near_rows, block.near_columns, grid[1])
        rows, columns = block.pixels(size, tile)
        y, x = block.near_rows.start * tile[0], block.near_columns.start * tile[1]
        target = read(rows.start, rows.stop, columns.start, columns.stop)
        with torch.enable_grad():
            own = latents[indices].detach().requires_grad_()
            decoded = decode(own, (len(block.near_rows), len(block.near_columns)))[0].clamp(0, 1)
            own_pixels = decoded[:, rows.start - y : rows.stop - y, columns.start - x : columns.stop - x]
            error = (own_pixels - target).square().sum() / 2
            (slope,) = torch.autograd.grad(error, own)
        gradient[indices] += slope
        total += float(error.detach())
    return total, gradient


class Config(Protocol):
    @property
    def image_size(self) -> Size: ...


class Model(Protocol):
    """Part of `finola.Autoencoder` that encodes and decodes tiles."""

    @property
    def config(self) -> Config: ...

    def encode(self, images: Tensor) -> Tensor: ...

    def propagate(self, q: Tensor) -> Tensor: ...

    def decode(self, z: Tensor) -> Tensor: ...


class Encoded(NamedTuple):
    """Latents of images of any size, as `decode` takes them."""

    q: Tensor  # (N·rows·columns, M, C)
    grid: Size  # (rows, columns) of tiles
    size: Size  # (height, width) of the images


def encode(model: Model, images: Tensor) -> Encoded:
    """Encode images (N, 3, H, W) of any size tile by tile.

    >>> import finola
    >>> model, images = finola.load("waves/64x1@8:32"), torch.rand(1, 3, 40, 70)
    >>> encoded = encode(model, images); encoded.q.shape, encoded.grid
    (torch.Size([6, 1, 64]), (2, 3))
    >>> torch.allclose(decode(model, encoded), model(images), atol=1e-5)
    True
    """
    tiles, grid = cut(images, model.config.image_size)
    return Encoded(model.encode(tiles), grid, (images.shape[-2], images.shape[-1]))


def decode(model: Model, encoded: Encoded) -> Tensor:
    """Decode the joined maps of all tiles to images (N, 3, H, W); the inverse of `encode`."""
    height, width = encoded.size
    return model.decode(join(model.propagate(encoded.q), encoded.grid))[..., :height, :width]


def reconstruct(
    images: Tensor, grow: Callable[[Tensor], Tensor], decode: Callable[[Tensor], Tensor], tile: Size, map_size: Size
) -> Tensor:
    """Reconstruct images (N, 3, H, W) of any size: `grow` turns tiles into maps, `decode` joined maps into pixels.

    Without gradients, images of more than `BLOCK` tiles are processed in blocks to bound memory, each decoded with one
    tile of context per side.
    """
    height, width = images.shape[-2:]
    rows, columns = grid_of((height, width), tile)
    if (height, width) == tile:
        return decode(grow(images))
    if rows * columns <= BLOCK or torch.is_grad_enabled():
        tiles, grid = cut(images, tile)
        return decode(join(grow(tiles), grid))[..., :height, :width]
    result = torch.empty_like(images)
    for image, target in zip(images, result, strict=True):

        def grow_part(rows: range, columns: range, image: Tensor = image) -> Tensor:
            top, left = rows.start * tile[0], columns.start * tile[1]
            part = image[None, :, top : rows.stop * tile[0], left : columns.stop * tile[1]]
            return grow(cut(part, tile)[0])

        for y, x, pixels in decode_blocks(grow_part, decode, (rows, columns), tile, map_size, margin=map_size):
            part = target[:, y : y + pixels.shape[1], x : x + pixels.shape[2]]
            part.copy_(pixels[:, : part.shape[1], : part.shape[2]])
    return result


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
