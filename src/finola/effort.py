"""Refinement of q by gradient descent through the decoder, for models with q of a fixed length.

The encoder is amortised: it computes q in one pass. With an effort from 1 to 9, q is refined for each photo to minimise
the squared error of its reconstruction, with the decoder fixed. `finola.elastic` does the same for elastic models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from finola.elastic import EFFORTS, check_effort
from finola.tiling import Size, decode_blocks, error_and_gradient, grid_of, join, tile_batches, tile_indices

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

LEARNING_RATE = 0.02  # of Adam, relative to the standard deviation of q
BETAS = (0.9, 0.99)


def reconstruct(model: Autoencoder, image: Tensor, effort: int) -> Tensor:
    """Encode an image (3, H, W) in [0, 1], refine its q, and decode it.

    >>> import finola
    >>> from finola.metrics import psnr
    >>> model, image = finola.load("waves/64x1@8:32"), torch.rand(3, 32, 40)
    >>> refined = reconstruct(model, image, effort=2)
    >>> bool(psnr(refined[None], image[None]) >= psnr(model(image[None]), image[None]))
    True
    """
    check_effort(effort)
    size = image.shape[1], image.shape[2]
    return decode(model, refine(model, image, encode(model, image), EFFORTS[effort]), size)


@torch.no_grad()
def encode(model: Autoencoder, image: Tensor) -> Tensor:
    """Encode the tiles of an image (3, H, W) to q (T, M, C), row by row."""

    def read(top: int, bottom: int, left: int, right: int) -> Tensor:
        return image[:, top:bottom, left:right]

    size = image.shape[1], image.shape[2]
    return torch.cat([model.encode(tiles) for tiles in tile_batches(read, size, model.config.image_size)])


@torch.no_grad()
def decode(model: Autoencoder, q: Tensor, size: Size) -> Tensor:
    """Decode q (T, M, C) of all tiles of a photo of `size` to an image (3, H, W), in blocks."""
    tile, map_size = model.config.image_size, model.config.map_size
    grid = grid_of(size, tile)
    image = q.new_empty(3, *size)

    def grow(rows: range, columns: range) -> Tensor:
        return model.propagate(q[tile_indices(rows, columns, grid[1])])

    for y, x, pixels in decode_blocks(grow, model.decode, grid, tile, map_size, margin=map_size):
        part = image[:, y : y + pixels.shape[1], x : x + pixels.shape[2]]
        part.copy_(pixels[:, : part.shape[1], : part.shape[2]])
    return image


def refine(model: Autoencoder, image: Tensor, q: Tensor, steps: int) -> Tensor:
    """Refine q (T, M, C) by `steps` of Adam; returns the q with the least error."""
    best, least = q, float("inf")
    current = q.clone()
    optimiser = torch.optim.Adam([current], lr=LEARNING_RATE * float(q.std()), betas=BETAS)
    for step in range(steps + 1):
        error, gradient = _error_and_gradient(model, image, current)
        if error < least:
            best, least = current.clone(), error
        if step < steps:
            current.grad = gradient
            optimiser.step()
    return best


def _error_and_gradient(model: Autoencoder, image: Tensor, q: Tensor) -> tuple[float, Tensor]:
    def decode_tiles(q: Tensor, grid: Size) -> Tensor:
        return model.decode(join(model.propagate(q), grid))

    def read(top: int, bottom: int, left: int, right: int) -> Tensor:
        return image[:, top:bottom, left:right]

    return error_and_gradient(decode_tiles, read, (image.shape[1], image.shape[2]), model.config.image_size, q)
