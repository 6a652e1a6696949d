"""Photos of any size: `encode` to latents, `decode`, and `refine` by gradient descent through the decoder.

A photo is processed in blocks of tiles, which bounds the memory; blocks are decoded with as much of their neighbours as
the decoder takes into account, so that their borders are not visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from finola.checks import check_images, check_values
from finola.errors import InputError
from finola.latents import Latents, Space
from finola.tiling import Size, blocks, grid_of, join, pad_to_multiple, tile_indices

EFFORTS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Iterations of the codec with effort 0 … 9, which quantise as well; `refine` makes twice as many gradient steps."""
STRIDE = 0.9  # initial step size where the Jacobian of the decoder is close to the identity
LEARNING_RATE, BETAS = 0.02, (0.9, 0.99)  # of Adam; the rate is relative to the standard deviation of the latents


class Model(Protocol):
    """A model with latents: `finola.Autoencoder`, or an exported one."""

    @property
    def space(self) -> Space: ...


class Source(Protocol):
    """A photo of `size` that is read by regions (3, h, w), uint8 or floats in [0, 1]; or N photos, (N, 3, h, w)."""

    @property
    def size(self) -> Size: ...

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor: ...


class Pixels(NamedTuple):
    """Pixels (…, 3, H, W) in memory as a source."""

    images: Tensor

    @property
    def size(self) -> Size:
        return self.images.shape[-2], self.images.shape[-1]

    def read(self, top: int, bottom: int, left: int, right: int) -> Tensor:
        return self.images[..., top:bottom, left:right]


def encode(
    model: Model,
    photo: Tensor,
    *,
    budget: int | None = None,
    per_tile: int | None = None,
    effort: int = 0,
    most: int | None = None,
) -> Latents:
    """Encode a photo (3, H, W) in [0, 1] of any size, or N photos of equal size (N, 3, H, W).

    Elastic models share out `budget` numbers per 256×256 pixels (default: 4096) over the tiles by need; the basis and
    the length of each tile are counted. `per_tile` gives every tile the same number instead. `effort`, 1 to 9, refines
    the latents. `most` is the number of tiles that are encoded together.

    >>> import finola
    >>> model, photo = finola.load("waves/64x1@8:32"), torch.rand(3, 40, 70)
    >>> latents = encode(model, photo); latents.values.shape
    torch.Size([6, 64])
    >>> decode(model, latents).shape
    torch.Size([3, 40, 70])
    """
    space = model.space
    space.check(budget, per_tile)
    gradient_steps(effort)
    source = _source(photo)
    with torch.no_grad():
        parts = analyse(space, source, most)
        chosen = [space.choose(one, source.size, budget, per_tile) for one in zip(*parts, strict=True)]
        values, length, basis = (torch.stack(part) for part in zip(*chosen, strict=True))
    latents = Latents(values, length, basis, source.size)
    latents = latents if photo.ndim == 4 else latents[0]
    return refine(model, photo, latents, effort) if effort else latents


@torch.no_grad()
def decode(model: Model, latents: Latents) -> Tensor:
    """Decode latents to a photo (3, H, W), or to N photos (N, 3, H, W): the inverse of `encode`.

    Joined maps of all tiles are decoded, in blocks if there are many. Values beyond [0, 1] are not clipped.
    """
    space = model.space
    grid = grid_of(latents.size, space.tile)
    if latents.values.ndim == 3 and len(latents.values) > 1 and grid[0] * grid[1] > space.most:
        return torch.stack([decode(model, latents[index]) for index in range(len(latents.values))])
    values, basis = latents.values.reshape(-1, *grid, latents.values.shape[-1]), latents.basis.reshape(-1, *grid)

    def maps(rows: range, columns: range) -> Tensor:
        block = slice(None), slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        return space.maps(space.to_p(values[block].flatten(0, 2), basis[block].flatten()))

    images: Tensor | None = None
    for y, x, pixels in render_blocks(space, maps, latents.size):
        if images is None:
            images = pixels.new_empty(len(values), 3, *latents.size)
        images[..., y, x] = pixels
    assert images is not None
    return images if latents.values.ndim == 3 else images[0]


@torch.no_grad()
def refine(model: Model, photo: Tensor, latents: Latents, effort: int) -> Latents:
    """Refine latents by gradient descent on the squared error of the decoded photo; the decoder is fixed.

    Lengths and bases do not change. The result has at most the error of `latents`.

    >>> import finola
    >>> from finola.metrics import psnr
    >>> model, photo = finola.load("waves/64x1@8:32"), torch.rand(3, 32, 40)
    >>> latents = encode(model, photo)
    >>> refined = refine(model, photo, latents, effort=2)
    >>> bool(psnr(decode(model, refined)[None], photo[None]) >= psnr(decode(model, latents)[None], photo[None]))
    True
    """
    steps = gradient_steps(effort)
    if photo.ndim == 4:
        found = [refine(model, one, latents[index], effort).values for index, one in enumerate(photo)]
        return latents.with_values(torch.stack(found))
    space, source, used = model.space, _source(photo), latents.used

    def evaluate(values: Tensor) -> tuple[float, Tensor]:
        p = space.to_p(values, latents.basis)
        error, gradient = error_and_gradient(space, source, space.render, p)
        return error, torch.where(used, space.from_p(gradient, latents.basis), 0.0)

    minimise = _descend if space.is_orthonormal else _adam
    return latents.with_values(minimise(latents.values, evaluate, steps))


def gradient_steps(effort: int) -> int:
    """Gradient steps of an effort; raises InputError unless it is 0 to 9."""
    if not 0 <= effort < len(EFFORTS):
        raise InputError(f"effort must be 0 to {len(EFFORTS) - 1}, not {effort}.")
    return 2 * EFFORTS[effort]


Evaluate = Callable[[Tensor], tuple[float, Tensor]]


def _descend(values: Tensor, evaluate: Evaluate, steps: int) -> Tensor:
    """Gradient descent; a step that increases the error is rejected, and the step size is halved."""
    stride = STRIDE
    error, gradient = evaluate(values)
    for _ in range(steps):
        candidate = values - stride * gradient
        tried, slope = evaluate(candidate)
        if tried < error:
            values, error, gradient = candidate, tried, slope
        else:
            stride /= 2
    return values


def _adam(values: Tensor, evaluate: Evaluate, steps: int) -> Tensor:
    """Steps of Adam; returns the values with the least error."""
    best, least = values, float("inf")
    current = values.clone()
    optimiser = torch.optim.Adam([current], lr=LEARNING_RATE * float(values.std()), betas=BETAS)
    for step in range(steps + 1):
        error, gradient = evaluate(current)
        if error < least:
            best, least = current.clone(), error
        if step < steps:
            current.grad = gradient
            optimiser.step()
    return best


def _source(photo: Tensor) -> Pixels:
    images = photo[None] if isinstance(photo, Tensor) and photo.ndim == 3 else photo
    check_images(images)
    check_values(images)
    return Pixels(images)


def analyse(space: Space, source: Source, most: int | None = None) -> tuple[Tensor, ...]:
    """Analyse all tiles of a photo, at most `most` together: tensors (N, T, …), row by row."""
    tile, grid = space.tile, grid_of(source.size, space.tile)
    found: list[Tensor] = []
    for block in blocks(grid, most or space.most, space.context):
        top, left = block.near_rows.start * tile[0], block.near_columns.start * tile[1]
        bottom, right = block.near_rows.stop * tile[0], block.near_columns.stop * tile[1]
        region = _read(space, source, top, min(bottom, source.size[0]), left, min(right, source.size[1]))
        parts = space.analyse(pad_to_multiple(region, tile))
        found = found or [part.new_empty(len(part), *grid, *part.shape[3:]) for part in parts]
        y, x = block.rows.start - block.near_rows.start, block.columns.start - block.near_columns.start
        for whole, part in zip(found, parts, strict=True):
            own = part[:, y : y + len(block.rows), x : x + len(block.columns)]
            whole[:, block.rows.start : block.rows.stop, block.columns.start : block.columns.stop] = own
    return tuple(part.flatten(1, 2) for part in found)


def _read(space: Space, source: Source, top: int, bottom: int, left: int, right: int) -> Tensor:
    """Region of a source: floats (N, 3, h, w) on the device of the space."""
    region = source.read(top, bottom, left, right).to(space.device)
    region = region if region.is_floating_point() else region.float() / 255
    return region if region.ndim == 4 else region[None]


def render_blocks(
    space: Space, maps: Callable[[range, range], Tensor], size: Size
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Decode a photo of `size` block by block; `maps(rows, columns)` returns the maps of a rectangle of tiles.

    Yields rows and columns of pixels, and those pixels (N, 3, h, w). Maps of the rows at the border of two blocks are
    computed once.
    """
    (height, width), (above, aside) = space.cells, space.margin
    grid = grid_of(size, space.tile)
    joined: dict[int, Tensor] = {}  # rows of the current columns
    current: range | None = None
    for block in blocks(grid, space.most, space.near):
        if block.near_columns != current:
            joined, current = {}, block.near_columns
        joined = {row: z for row, z in joined.items() if row >= block.near_rows.start}
        joined |= _joined_rows(maps, range(block.near_rows.start + len(joined), block.near_rows.stop), current)
        top = max(block.near_rows.start * height, block.rows.start * height - above)
        bottom = block.rows.stop * height + above
        left = max(current.start * width, block.columns.start * width - aside)
        right = min(current.stop * width, block.columns.stop * width + aside)
        parts = [z[:, :, max(0, top - row * height) : max(0, bottom - row * height)] for row, z in joined.items()]
        z = torch.cat(parts, 2)
        if right - left < z.shape[3]:
            z = z[..., left - current.start * width : right - current.start * width]
        y = (block.rows.start * height - top) * space.tile[0] // height
        x = (block.columns.start * width - left) * space.tile[1] // width
        rows, columns = block.pixels(size, space.tile)
        pixels = space.paint(z)
        yield rows, columns, pixels[..., y : y + rows.stop - rows.start, x : x + columns.stop - columns.start]


def _joined_rows(maps: Callable[[range, range], Tensor], rows: range, columns: range) -> dict[int, Tensor]:
    """Maps (N, C, h, w) of some rows of tiles by the number of the row."""
    if not rows:
        return {}
    by_row = maps(rows, columns).unflatten(0, (-1, len(rows), len(columns))).unbind(1)
    return {row: join(z.flatten(0, 1), (1, len(columns))) for row, z in zip(rows, by_row, strict=True)}


def error_and_gradient(
    space: Space, source: Source, render: Callable[[Tensor, Size], Tensor], p: Tensor
) -> tuple[float, Tensor]:
    """Half the squared error of a photo decoded from numbers p (T, …) of its tiles, and its gradient.

    `render(p, grid)` returns the pixels of a rectangle of tiles; blocks are decoded with whole tiles as context.
    """
    tile, grid = space.tile, grid_of(source.size, space.tile)
    gradient, total = torch.zeros_like(p), 0.0
    for block in blocks(grid, space.most, space.near):
        indices = tile_indices(block.near_rows, block.near_columns, grid[1])
        rows, columns = block.pixels(source.size, tile)
        y, x = block.near_rows.start * tile[0], block.near_columns.start * tile[1]
        target = _read(space, source, rows.start, rows.stop, columns.start, columns.stop)
        with torch.enable_grad():
            own = p[indices].detach().requires_grad_()
            decoded = render(own, (len(block.near_rows), len(block.near_columns))).clamp(0, 1)
            drawn = decoded[..., rows.start - y : rows.stop - y, columns.start - x : columns.stop - x]
            error = (drawn - target).square().sum() / 2
            (slope,) = torch.autograd.grad(error, own)
        gradient[indices] += slope
        total += float(error.detach())
    return total, gradient
