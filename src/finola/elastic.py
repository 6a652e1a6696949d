"""Photos of any size with an elastic model: encode with a number of latents, decode, and refine the latents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from finola import tiling
from finola.config import DEFAULT_LATENTS
from finola.encoders.elastic import ElasticEncoder
from finola.errors import InputError
from finola.tiling import Block, Size, blocks, cut, grid_of, join, pad_to_multiple, tile_indices
from finola.wave.codebook import NUMBER_BITS, REFERENCE_PIXELS, Latents

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

BLOCK = 1024  # tiles processed together
EFFORTS = (0, 2, 4, 6, 9, 12, 18, 26, 38, 60)  # gradient steps of effort 0 … 9
STRIDE = 0.9  # initial step size; the Jacobian of the decoder is close to the identity

Reader = Callable[[int, int, int, int], Tensor]
"""top, bottom, left, right → pixels (3, h, w) in [0, 1] on the device of the model."""


def encoder_of(model: Autoencoder) -> ElasticEncoder:
    """Encoder of an elastic model; raises InputError for other models."""
    if not isinstance(model.encoder, ElasticEncoder):
        raise InputError(
            f"{model.config} has q of a fixed length; latents and per_tile need an elastic model (tile32)."
        )
    return model.encoder


def coordinates(model: Autoencoder, read: Reader, size: Size, *, prefilter: bool = False) -> Tensor:
    """Project the tiles of a photo of `size` onto the waves, filtered before if asked: p (T, D), row by row."""
    encoder = encoder_of(model)
    tile = model.config.image_size
    grid = grid_of(size, tile)
    p = encoder.codebook.images.new_empty(*grid, encoder.codebook.bases.shape[1])
    near = neighbours(encoder.prefilter.reach, tile) if prefilter else 0
    for block in blocks(grid, BLOCK, near):
        region = _read(read, block, size, tile)
        tiles, shape = cut(_own(encoder.prefilter(region) if prefilter else region, block, tile), tile)
        p[block.rows.start : block.rows.stop, block.columns.start : block.columns.stop] = encoder.codebook.coordinates(
            tiles
        ).unflatten(0, shape)
    return p.flatten(0, 1)


def encode(
    model: Autoencoder, image: Tensor, *, latents: int | None = None, per_tile: int | None = None, effort: int = 0
) -> Latents:
    """Encode an image (3, H, W) in [0, 1] to the latents of its tiles.

    `latents` is the number for a photo of 256×256 pixels (default: 4096); larger photos have proportionally more. They
    are shared out over the tiles by need, and the basis and length of each tile are counted. `per_tile` gives every
    tile the same number instead. `effort`, 1 to 9, refines the latents by gradient descent through the decoder.
    """
    check_options(model, latents, per_tile, effort)
    height, width = image.shape[-2:]
    codebook = encoder_of(model).codebook

    def read(top: int, bottom: int, left: int, right: int) -> Tensor:
        return image[:, top:bottom, left:right]

    budget = (latents or DEFAULT_LATENTS) * height * width / REFERENCE_PIXELS
    p = coordinates(model, read, (height, width))
    chosen = codebook.choose(p, budget=None if per_tile else budget, length=per_tile)
    found = codebook.encode(coordinates(model, read, (height, width), prefilter=True), *chosen)
    return refine(model, image, found, EFFORTS[effort]) if effort else found


def reconstruct(
    model: Autoencoder, image: Tensor, *, latents: int | None = None, per_tile: int | None = None, effort: int = 0
) -> Tensor:
    """Encode and decode an image (3, H, W) in [0, 1]; see `encode`."""
    found = encode(model, image, latents=latents, per_tile=per_tile, effort=effort)
    return decode(model, found, (image.shape[1], image.shape[2]))


class Count(NamedTuple):
    """Numbers that describe a photo: latents of its tiles, and side information (their bases and lengths)."""

    values: int
    side: int  # in numbers of 32 bits

    @property
    def total(self) -> int:
        return self.values + self.side


def count(model: Autoencoder, latents: Latents) -> Count:
    """Count the numbers of the latents of a photo, as `Codebook.choose` does.

    >>> import finola
    >>> model = finola.create("waves+nets/64x1@4:16+elastic2")
    >>> count(model, encode(model, torch.rand(3, 64, 64), per_tile=8))
    Count(values=128, side=3)
    """
    codebook = encoder_of(model).codebook
    side = math.ceil(len(latents.length) * codebook.side_bits / NUMBER_BITS)
    return Count(int(latents.length.sum()), side)


def check_options(model: Autoencoder, latents: int | None, per_tile: int | None, effort: int) -> None:
    """Raise InputError if options of `encode` exclude each other, are out of range, or need an elastic model."""
    check_effort(effort)
    if latents is not None and per_tile is not None:
        raise InputError(f"latents ({latents}) and per_tile ({per_tile}) exclude each other; use one of them.")
    if latents is None and per_tile is None:
        return
    codebook = encoder_of(model).codebook
    lengths = codebook.lengths.tolist()
    if per_tile is not None and per_tile not in lengths:
        raise InputError(f"A tile cannot have {per_tile} latents; possible are {', '.join(map(str, lengths))}.")
    height, width = model.config.image_size
    tiles = REFERENCE_PIXELS / (height * width)
    least = math.ceil(tiles * (1 + codebook.side_bits / NUMBER_BITS))
    if latents is not None and latents < least:
        raise InputError(
            f"latents must be at least {least} per 256×256 pixels for {model.config}, not {latents}: "
            "every tile needs one, and its side information is counted."
        )


def check_effort(effort: int) -> None:
    """Raise InputError unless `effort` is 0 to 9."""
    if not 0 <= effort < len(EFFORTS):
        raise InputError(f"effort must be 0 to {len(EFFORTS) - 1}, not {effort}.")


def decode(model: Autoencoder, latents: Latents, size: Size) -> Tensor:
    """Decode the latents of all tiles of a photo of `size` to an image (3, H, W)."""
    codebook = encoder_of(model).codebook
    image = codebook.images.new_empty(3, *size)

    def part(indices: Tensor) -> Tensor:
        return codebook.decode(latents.values[indices], latents.bases[indices])

    for rows, columns, pixels in decode_blocks_of(model, part, size):
        image[:, rows, columns] = pixels
    return image


def decode_blocks_of(
    model: Autoencoder, part: Callable[[Tensor], Tensor], size: Size
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Decode a photo of `size` block by block; `part` returns the coordinates p of the tiles with given indices.

    Yields rows and columns of pixels, clipped to the photo, and the pixels (3, h, w).
    """
    tile = model.config.image_size
    grid = grid_of(size, tile)
    for block in blocks(grid, BLOCK, _context(model)):
        p = part(tile_indices(block.near_rows, block.near_columns, grid[1]))
        decoded = _own(_decode_tiles(model, p, (len(block.near_rows), len(block.near_columns))), block, tile)[0]
        rows, columns = block.pixels(size, tile)
        yield rows, columns, decoded[:, : rows.stop - rows.start, : columns.stop - columns.start]


def _context(model: Autoencoder) -> int:
    """Number of neighbouring tiles that the decoder needs on every side of a block."""
    return neighbours(model.decoder.refinement.reach, model.config.image_size)  # type: ignore[union-attr, arg-type]


def _decode_tiles(model: Autoencoder, p: Tensor, grid: Size) -> Tensor:
    """Decode the tiles p of a rectangle of `grid` tiles to its pixels (1, 3, h, w).

    Propagation and read-out of exact waves are linear, so they are computed as one matrix product.
    """
    tiles = encoder_of(model).codebook.tiles(p, model.config.image_size)
    decoded: Tensor = model.decoder.refinement(join(tiles, grid))  # type: ignore[operator]
    return decoded


@torch.no_grad()
def refine(model: Autoencoder, image: Tensor, latents: Latents, steps: int) -> Latents:
    """Refine the values of latents by gradient descent on the squared error of the decoded image.

    A step that increases the error is rejected, and the step size is halved. Bases and lengths do not change.
    """
    codebook = encoder_of(model).codebook
    mask = torch.arange(latents.values.shape[1], device=model.device) < latents.length[:, None]

    def read(top: int, bottom: int, left: int, right: int) -> Tensor:
        return image[:, top:bottom, left:right]

    def evaluate(values: Tensor) -> tuple[float, Tensor]:
        p = codebook.decode(values, latents.bases)
        error, gradient = error_and_gradient(model, read, (image.shape[1], image.shape[2]), p)
        return error, torch.where(mask, codebook.components(gradient, latents.bases), 0.0)

    best, stride = latents.values, STRIDE
    error, gradient = evaluate(best)
    for _ in range(steps):
        candidate = best - stride * gradient
        tried, slope = evaluate(candidate)
        if tried < error:
            best, error, gradient = candidate, tried, slope
        else:
            stride /= 2
    return latents._replace(values=best)


def error_and_gradient(model: Autoencoder, read: Reader, size: Size, p: Tensor) -> tuple[float, Tensor]:
    """Half the squared error of a photo decoded from coordinates p (T, D), and its gradient with respect to p."""

    def decode_tiles(p: Tensor, grid: Size) -> Tensor:
        return _decode_tiles(model, p, grid)

    tile = model.config.image_size
    return tiling.error_and_gradient(decode_tiles, read, size, tile, p, most=BLOCK, near=_context(model))


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
