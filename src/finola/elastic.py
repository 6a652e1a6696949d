"""Photos of any size with an elastic model: encode with a number of latents, decode, and refine the latents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from finola.config import DEFAULT_LATENTS
from finola.encoders.elastic import ElasticEncoder
from finola.errors import InputError
from finola.tiling import Block, Size, blocks, cut, grid_of, join, pad_to_multiple
from finola.wave.codebook import REFERENCE_PIXELS, Latents

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

BLOCK = 1024  # tiles processed together
EFFORTS = (0, 2, 4, 6, 9, 12, 18, 26, 38, 60)  # gradient steps of effort 0 … 9
STRIDE = 0.9  # initial step size; the Jacobian of the decoder is close to the identity

Reader = Callable[[int, int, int, int], Tensor]  # top, bottom, left, right → pixels (3, h, w) in [0, 1]


def encoder_of(model: Autoencoder) -> ElasticEncoder:
    """Encoder of an elastic model; raises InputError for other models."""
    if not isinstance(model.encoder, ElasticEncoder):
        raise InputError(
            f"{model.config} has q of a fixed length; latents and per_tile need an elastic model (tile32)."
        )
    return model.encoder


@torch.no_grad()
def coordinates(model: Autoencoder, read: Reader, size: Size) -> Tensor:
    """Filter a photo of `size` and project its tiles onto the waves: p (T, D), tiles in row-major order."""
    encoder = encoder_of(model)
    tile = model.config.image_size
    grid = grid_of(size, tile)
    p = torch.empty(grid[0], grid[1], encoder.codebook.bases.shape[1])
    near = neighbours(encoder.prefilter.reach, tile)
    for block in blocks(grid, BLOCK, near):
        region = _read(read, block, size, tile)
        filtered = _own(encoder.prefilter(region), block, tile)
        tiles, shape = cut(filtered, tile)
        p[block.rows.start : block.rows.stop, block.columns.start : block.columns.stop] = (
            encoder.codebook.coordinates(tiles).unflatten(0, shape).cpu()
        )
    return p.flatten(0, 1)


def encode(
    model: Autoencoder, image: Tensor, *, latents: int | None = None, per_tile: int | None = None, effort: int = 0
) -> Latents:
    """Encode an image (3, H, W) in [0, 1] to the latents of its tiles.

    `latents` is the number for a photo of 256×256 pixels (default: 4096); larger photos have proportionally more. They are
    shared out over the tiles by need, and the basis and length of each tile are counted. `per_tile` gives every
    tile the same number instead. `effort`, 1 to 9, refines the latents by gradient descent through the decoder.
    """
    if latents is not None and per_tile is not None:
        raise InputError(f"latents ({latents}) and per_tile ({per_tile}) exclude each other; use one of them.")
    check_effort(effort)
    height, width = image.shape[-2:]
    p = coordinates(model, lambda top, bottom, left, right: image[:, top:bottom, left:right], (height, width))
    budget = (latents or DEFAULT_LATENTS) * height * width / REFERENCE_PIXELS
    found = encoder_of(model).codebook.encode(p, budget=None if per_tile else budget, length=per_tile)
    return refine(model, image, found, EFFORTS[effort]) if effort else found


def reconstruct(
    model: Autoencoder, image: Tensor, *, latents: int | None = None, per_tile: int | None = None, effort: int = 0
) -> Tensor:
    """Encode and decode an image (3, H, W) in [0, 1]; see `encode`."""
    found = encode(model, image, latents=latents, per_tile=per_tile, effort=effort)
    return decode(model, found, (image.shape[1], image.shape[2]))


def check_effort(effort: int) -> None:
    """Raise InputError unless `effort` is 0 to 9."""
    if not 0 <= effort < len(EFFORTS):
        raise InputError(f"effort must be 0 to {len(EFFORTS) - 1}, not {effort}.")


@torch.no_grad()
def decode(model: Autoencoder, latents: Latents, size: Size) -> Tensor:
    """Decode the latents of all tiles of a photo of `size` to an image (3, H, W)."""
    image = torch.empty(3, *size)
    for block, pixels in decode_blocks(model, latents, size):
        image[:, *_pixels(block, size, model.config.image_size)] = pixels
    return image


def decode_blocks(model: Autoencoder, latents: Latents, size: Size) -> Iterator[tuple[Block, Tensor]]:
    """Yield blocks of tiles and their pixels (3, h, w), clipped to the photo."""
    tile = model.config.image_size
    grid = grid_of(size, tile)
    near = neighbours(model.decoder.refinement.reach, tile)  # type: ignore[union-attr, arg-type]
    for block in blocks(grid, BLOCK, near):
        indices = _indices(block.near_rows, block.near_columns, grid[1])
        part = Latents(*(tensor[indices] for tensor in latents))
        decoded = _own(_decode_region(model, part, block), block, tile)[0]
        rows, columns = _pixels(block, size, tile)
        yield block, decoded[:, : rows.stop - rows.start, : columns.stop - columns.start]


def _decode_region(model: Autoencoder, latents: Latents, block: Block) -> Tensor:
    """Decode the tiles of a block and its neighbours, (1, 3, h, w).

    Propagation and read-out of exact waves are linear, so they are computed as one matrix product.
    """
    codebook = encoder_of(model).codebook
    tiles = codebook.tiles(codebook.decode(latents.values, latents.index), model.config.image_size)
    linear = join(tiles, (len(block.near_rows), len(block.near_columns)))
    decoded: Tensor = model.decoder.refinement(linear)  # type: ignore[operator, union-attr]
    return decoded


def refine(model: Autoencoder, image: Tensor, latents: Latents, steps: int) -> Latents:
    """Refine the values of latents by gradient descent on the squared error of the decoded image.

    A step that increases the error is rejected, and the step size is halved. Bases and lengths do not change.
    """
    height, width = image.shape[-2:]
    tile = model.config.image_size
    grid = grid_of((height, width), tile)
    mask = torch.arange(latents.values.shape[1]) < latents.length[:, None]
    best, stride = latents, STRIDE
    error, gradient = _error_and_gradient(model, image, best, grid)
    for _ in range(steps):
        candidate = best._replace(values=best.values - stride * torch.where(mask, gradient, 0.0))
        tried, slope = _error_and_gradient(model, image, candidate, grid)
        if tried < error:
            best, error, gradient = candidate, tried, slope
        else:
            stride /= 2
    return best


def _error_and_gradient(model: Autoencoder, image: Tensor, latents: Latents, grid: Size) -> tuple[float, Tensor]:
    """Half the squared error of the decoded image, and its gradient with respect to the values."""
    size, tile = (image.shape[1], image.shape[2]), model.config.image_size
    gradient, total = torch.zeros_like(latents.values), 0.0
    near = neighbours(model.decoder.refinement.reach, tile)  # type: ignore[union-attr, arg-type]
    for block in blocks(grid, BLOCK, near):
        indices = _indices(block.near_rows, block.near_columns, grid[1])
        with torch.enable_grad():
            values = latents.values[indices].requires_grad_()
            part = Latents(latents.index[indices], latents.length[indices], values)
            decoded = _own(_decode_region(model, part, block), block, tile)[0].clamp(0, 1)
            rows, columns = _pixels(block, size, tile)
            target = image[:, rows, columns]
            error = (decoded[:, : target.shape[1], : target.shape[2]] - target).square().sum() / 2
            (slope,) = torch.autograd.grad(error, values)
        gradient[indices] += slope
        total += float(error.detach())
    return total, gradient


def neighbours(reach: int, tile: Size) -> int:
    """Number of neighbouring tiles that a network of this reach needs on every side."""
    return -(-reach // min(tile))


def _read(read: Reader, block: Block, size: Size, tile: Size) -> Tensor:
    top, bottom = block.near_rows.start * tile[0], min(block.near_rows.stop * tile[0], size[0])
    left, right = block.near_columns.start * tile[1], min(block.near_columns.stop * tile[1], size[1])
    return pad_to_multiple(read(top, bottom, left, right)[None], tile)


def _own(region: Tensor, block: Block, tile: Size) -> Tensor:
    """Part of a region (…, h, w) without the neighbours of the block."""
    y = (block.rows.start - block.near_rows.start) * tile[0]
    x = (block.columns.start - block.near_columns.start) * tile[1]
    return region[..., y : y + len(block.rows) * tile[0], x : x + len(block.columns) * tile[1]]


def _pixels(block: Block, size: Size, tile: Size) -> tuple[slice, slice]:
    """Rows and columns of pixels of a block, clipped to the photo."""
    rows = slice(block.rows.start * tile[0], min(block.rows.stop * tile[0], size[0]))
    return rows, slice(block.columns.start * tile[1], min(block.columns.stop * tile[1], size[1]))


def _indices(rows: range, columns: range, across: int) -> Tensor:
    """Row-major indices of the tiles of a rectangle in a grid with `across` columns."""
    return (torch.tensor(rows)[:, None] * across + torch.tensor(columns)).flatten()
