"""Analysis by synthesis: numbers chosen for the picture that the decoder draws of them, not for the encoder's sake.

A tile's numbers b are scaled so that a step in any of them moves the pixels alike (`calibration`): JᵀJ ≈ 1 for the
decoder's slopes J. Around what is drawn now, b̂, the error is then |b − b̂ − Jᵀr|² but for a constant, r being what the
picture still lacks (before its tile borders are smoothed), so b̂ + Jᵀr is what should be rounded next, at the same
price per bit. It is a proximal gradient step; one backward pass of the decoder gives Jᵀr.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finola.codec.calibration import CodecModel
from finola.tiling import Size, blocks, grid_of, join

ROUNDS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)  # by effort
STRIDE = 0.7  # of the way to the next target: the slopes differ from tile to tile
SEGMENT = 4096  # tiles that are refined together

Numbers = NDArray[np.float32]  # (tiles, K)


class Source(Protocol):
    """The pixels of a photo of `size` by regions: uint8 (3, bottom − top, right − left)."""

    @property
    def size(self) -> Size: ...

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor: ...


Rounding = Callable[[Numbers], tuple[Numbers, float]]  # numbers → what a file would say instead, and what its bits cost


def refine(codec: CodecModel, source: Source, b: Numbers, rounding: Rounding, rounds: int) -> Numbers:
    """The numbers, after so many tries, whose file costs least: squared error plus the price of its bits.

    Photos of more than `SEGMENT` tiles are refined in rectangles of that many, each on its own: memory stays bounded.
    """
    tile = codec.model.config.image_size
    grid = grid_of(source.size, tile)
    if grid[0] * grid[1] <= SEGMENT:
        return _refine(codec, _Part(source, (0, 0), source.size), b, rounding, rounds)
    refined = b.copy()
    for segment in blocks(grid, SEGMENT):
        own = _tile_numbers(segment.rows, segment.columns, grid[1])
        top, left = segment.rows.start * tile[0], segment.columns.start * tile[1]
        bottom, right = segment.rows.stop * tile[0], segment.columns.stop * tile[1]
        size = min(bottom, source.size[0]) - top, min(right, source.size[1]) - left
        refined[own] = _refine(codec, _Part(source, (top, left), size), b[own], rounding, rounds)
    return refined


class _Part(NamedTuple):
    """A rectangle of a source: its upper left corner and its size."""

    source: Source
    corner: Size
    size: Size

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        y, x = self.corner
        return self.source.read(y + top, y + bottom, x + left, x + right)


def _refine(codec: CodecModel, source: Source, b: Numbers, rounding: Rounding, rounds: int) -> Numbers:
    """A try that costs more than the best so far is taken back, and the next step is half as long."""
    rounded, price = rounding(b)
    error, towards = error_and_step(codec, source, rounded)
    least, stride = error + price, STRIDE
    for _ in range(rounds):
        tried = b + np.float32(stride) * (rounded + towards - b)
        rounded_now, price = rounding(tried)
        error, towards_now = error_and_step(codec, source, rounded_now)
        if error + price < least:
            b, rounded, towards, least = tried, rounded_now, towards_now, error + price
        else:
            stride /= 2
    return b


def error_and_step(codec: CodecModel, source: Source, b: Numbers) -> tuple[float, Numbers]:
    """The squared error of the picture decoded from b, and Jᵀr, block by block, each decoded with its neighbours."""
    height, width = source.size
    tile_height, tile_width = tile = codec.model.config.image_size
    grid = grid_of(source.size, tile)
    step = np.zeros_like(b)
    total = 0.0
    for block in blocks(grid):
        own = _tile_numbers(block.near_rows, block.near_columns, grid[1])
        numbers = torch.from_numpy(b[own]).requires_grad_()
        with torch.enable_grad():
            z = codec.maps(codec.calibration.synthesise(numbers))
            drawn = codec.model.decode(join(z, (len(block.near_rows), len(block.near_columns))))[0].clamp(0, 1)
            top, bottom = block.rows.start * tile_height, min(height, block.rows.stop * tile_height)
            left, right = block.columns.start * tile_width, min(width, block.columns.stop * tile_width)
            y, x = block.near_rows.start * tile_height, block.near_columns.start * tile_width
            pixels = source.read(top, bottom, left, right).float() / 255
            lacking = pixels - drawn[:, top - y : bottom - y, left - x : right - x]
            error = lacking.square().sum()
            (slope,) = torch.autograd.grad(error / 2, numbers)
        step[own] -= slope.numpy()
        total += float(error.detach())
    return total, step


def _tile_numbers(rows: range, columns: range, across: int) -> NDArray[np.int64]:
    """Where the tiles of a rectangle stand in row-major order, `across` tiles to a row."""
    numbers: NDArray[np.int64] = np.array(rows)[:, None] * across + np.array(columns)
    return numbers.reshape(-1)
