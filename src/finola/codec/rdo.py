"""Rate–distortion optimisation by analysis by synthesis: coefficients are refined to minimise the decoded error.

The coefficients b of a tile are scaled such that JᵀJ ≈ 1 for the Jacobian J of the decoder (`calibration`). Around the
current quantised coefficients b̂, the squared error is |b − b̂ − Jᵀr|² up to a constant, where r is the residual of the
decoded image (before deblocking). So b̂ + Jᵀr is quantised next, at the same cost per bit. This is a proximal gradient
step; one backward pass through the decoder computes Jᵀr.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finola.codec.calibration import CodecModel
from finola.photos import Source, error_and_gradient
from finola.tiling import Size, blocks, grid_of, tile_indices

STRIDE = 0.7  # step size, below 1 because the Jacobian differs from tile to tile
SEGMENT = 4096  # tiles that are refined together

FloatArray = NDArray[np.float32]  # (tiles, K)


Quantiser = Callable[[FloatArray], tuple[FloatArray, float]]  # b → dequantised b and the cost of its bits


def refine(codec: CodecModel, source: Source, b: FloatArray, quantiser: Quantiser, iterations: int) -> FloatArray:
    """Refine b (tiles, K) for some iterations; returns the b with the least squared error plus cost of bits.

    Photos of more than `SEGMENT` tiles are refined in independent rectangles of that many, which bounds the memory.
    """
    tile = codec.model.config.image_size
    grid = grid_of(source.size, tile)
    if grid[0] * grid[1] <= SEGMENT:
        return _refine(codec, _Part(source, (0, 0), source.size), b, quantiser, iterations)
    refined = b.copy()
    for segment in blocks(grid, SEGMENT):
        own = tile_indices(segment.rows, segment.columns, grid[1]).numpy()
        top, left = segment.rows.start * tile[0], segment.columns.start * tile[1]
        bottom, right = segment.rows.stop * tile[0], segment.columns.stop * tile[1]
        size = min(bottom, source.size[0]) - top, min(right, source.size[1]) - left
        refined[own] = _refine(codec, _Part(source, (top, left), size), b[own], quantiser, iterations)
    return refined


class _Part(NamedTuple):
    """A rectangle of a source: its upper left corner and its size."""

    source: Source
    corner: Size
    size: Size

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        y, x = self.corner
        return self.source.read(y + top, y + bottom, x + left, x + right)


def _refine(codec: CodecModel, source: Source, b: FloatArray, quantiser: Quantiser, iterations: int) -> FloatArray:
    return descend(b, quantiser, lambda quantised: error_and_step(codec, source, quantised), iterations)


def descend(
    b: FloatArray,
    quantiser: Quantiser,
    evaluate: Callable[[FloatArray], tuple[float, FloatArray]],
    iterations: int,
) -> FloatArray:
    """Proximal gradient descent; a step that increases the cost is rejected, and the step size is halved.

    `evaluate` returns the squared error of quantised coefficients and Jᵀr.
    """
    quantised, rate = quantiser(b)
    error, step = evaluate(quantised)
    least, stride = error + rate, STRIDE
    for _ in range(iterations):
        candidate = b + np.float32(stride) * (quantised + step - b)
        candidate_quantised, rate = quantiser(candidate)
        error, candidate_step = evaluate(candidate_quantised)
        if error + rate < least:
            b, quantised, step, least = candidate, candidate_quantised, candidate_step, error + rate
        else:
            stride /= 2
    return b


def error_and_step(codec: CodecModel, source: Source, b: FloatArray) -> tuple[float, FloatArray]:
    """Squared error of the image decoded from b, and Jᵀr."""
    space = codec.space

    def render(coefficients: Tensor, grid: Size) -> Tensor:
        return space.render(codec.calibration.synthesise(coefficients), grid)

    error, gradient = error_and_gradient(space, source, render, torch.from_numpy(b))
    return 2 * error, -gradient.numpy()
