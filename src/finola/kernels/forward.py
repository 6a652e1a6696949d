"""Forward pass of the recurrence with few and large matrix products; the result is that of `propagation`.

Both orders agree on the row and the column of the start. So the row of the start is computed position by position, all
other rows from it, and all other columns from the start's column, which the rows contain. A line is (rows, C) with
rows = images × paths × positions. The steps ahead (right, down) and back (left, up) are one batched product as long as
both directions have steps left.

States are stored at half their size, h = z / 2, so that the sum of both orders is their mean. With the mean m of h
over its channels and r = 1 / √(4 var h + ε), one step z + A ẑ is

    h' = h + r · A (h − m)        ẑ = 2 r (h − m)                                                    (half of Eq. 1)

which takes, besides the product, four passes over a line that stays in the cache. A constant q stays constant: its
value is subtracted, so that the recurrence computes exact zeros, and added to the result. See docs/speed.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-6
"""ε of the layer norm; the paper does not give one."""

Position = tuple[int, int]
Matrices = tuple[Tensor, Tensor, Tensor, Tensor]
"""A, B, A₋, B₋, each (C, C): right, down, left, up."""

Keep = Callable[[slice, Tensor], None]  # ascending indices of lines along a sweep, and the lines (ways, rows, C)
Multiply = Callable[[Tensor, Tensor], Tensor]  # rows and a buffer for their product → the product
PAIRED = 512  # largest number of channels for which a batched product is faster, including stacking the matrices


class Sweep(NamedTuple):
    """Recurrence along one axis in both directions from the start line, one matrix for each direction."""

    start: int
    length: int
    matrices: tuple[Tensor, Tensor]  # back, ahead
    stacked: Tensor | None  # both, (2, C, C)

    @property
    def together(self) -> int:
        """Number of steps computed for both directions in one batched product."""
        return min(self.start, self.length - 1 - self.start) if self.stacked is not None else 0

    @property
    def alone(self) -> tuple[int, int]:
        """Remaining steps of each direction: back, ahead."""
        return self.start - self.together, self.length - 1 - self.start - self.together

    def pair(self, step: int) -> slice:
        """Indices of the two lines at distance `step` from the start; for step 0, the start line."""
        return slice(self.start - step, self.start + step + 1, max(2 * step, 1))

    def line(self, way: int, step: int) -> slice:
        """Index of the line at distance `step` from the start in one direction."""
        index = self.start + (step if way else -step)
        return slice(index, index + 1)


def sweeps_of(matrices: Matrices, size: Position, start: Position) -> tuple[Sweep, Sweep]:
    """Sweep along x with A₋ and A, and along y with B₋ and B."""
    A, B, A_minus, B_minus = matrices
    (height, width), (y, x) = size, start
    small = len(A) <= PAIRED
    return (
        Sweep(x, width, (A_minus, A), torch.stack([A_minus, A]) if small and 0 < x < width - 1 else None),
        Sweep(y, height, (B_minus, B), torch.stack([B_minus, B]) if small and 0 < y < height - 1 else None),
    )


class Moments(NamedTuple):
    """Per row of half states h: the sum over channels, C m, and r = 1 / √(4 var h + ε)."""

    total: Tensor
    r: Tensor


def multiplier(matrix: Tensor) -> Multiply:
    """Product of rows by one matrix (C, C), or of two batches of rows by two matrices (2, C, C).

    Autocast does not affect products with an `out`, so the recurrence has the precision of its matrices.
    """
    product = torch.bmm if matrix.ndim == 3 else torch.mm
    return lambda h, out: product(h, matrix.mT, out=out)


class Scratch:
    """Buffer for a few lines, reused by all sweeps of a call, because allocating pages takes as long as a product."""

    def __init__(self, like: Tensor) -> None:
        self._memory = like.new_empty(0)

    def lines(self, count: int, shape: torch.Size) -> Tensor:
        """Uninitialised memory for `count` lines of a shape; it is shared with earlier results."""
        size = count * shape.numel()
        if len(self._memory) < size:
            self._memory = self._memory.new_empty(size)
        return self._memory[:size].view(count, *shape)


def advance(h: Tensor, multiply: Multiply, out: Tensor, centred: Tensor, product: Tensor) -> Moments:
    """Write h + r · A (h − m) to `out`, for h (rows, C), or (2, rows, C) with two matrices."""
    channels = h.shape[-1]
    total = h.sum(-1, keepdim=True)
    torch.sub(h, total, alpha=1 / channels, out=centred)
    wide = torch.float64 if h.dtype == torch.float64 else torch.float32
    norm = torch.linalg.vector_norm(centred, dim=-1, keepdim=True, dtype=wide)
    r = norm.square_().mul_(4 / channels).add_(EPS).rsqrt_().to(h.dtype)
    torch.addcmul(h, multiply(centred, product), r, out=out)
    return Moments(total, r)


def grow(q: Tensor, matrices: Matrices, size: Position, start: Position, z: Tensor | None) -> Tensor:
    """Mean of both orders, summed over the paths of q (N, M, C) and added to z (N, H, W, C) if given.

    No gradients are recorded; besides z, only a few lines are in memory.
    """
    n, paths, channels = q.shape
    (height, width), (_, x) = size, start
    fresh = z is None
    z = q.new_empty(n, height, width, channels) if z is None else z
    along_x, along_y = sweeps_of(matrices, size, start)
    row = q.new_empty(n * paths, width, channels)
    column = q.new_empty(n * paths, height, channels)

    def keep_rows(at: slice, lines: Tensor) -> None:
        put_rows(z, paths, fresh, at, lines)
        take_cells(column, x, at, lines)

    first, level = halves(q)
    scratch = Scratch(q)
    _walk(first, along_x, partial(take_cells, row, 0), scratch)
    _walk(row.view(-1, channels), along_y, keep_rows, scratch)
    _walk(column.view(-1, channels), along_x, partial(put_columns, z, paths), scratch)
    return z if level is None else z.add_(level)


def halves(q: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows of q / 2 without the constant vectors of q, and the sum over paths of their values (N, 1, 1, 1), if any.

    A number added to all channels of q is added to all of z and has no other effect.
    """
    constant = (q == q[..., :1]).all(-1, keepdim=True)
    if not bool(constant.any()):
        return (0.5 * q).reshape(-1, q.shape[-1]), None
    level = q[..., :1] * constant
    return (0.5 * (q - level)).reshape(-1, q.shape[-1]), level.sum(1, keepdim=True)[..., None]


def take_cells(line: Tensor, x: int, at: slice, lines: Tensor) -> None:
    """Copy position x of lines (ways, N·M·L, C) to the perpendicular line (N·M, length, C)."""
    line[:, at] = lines.view(len(lines), len(line), -1, line.shape[-1])[:, :, x].transpose(0, 1)


def put_rows(z: Tensor, paths: int, fresh: bool, at: slice, lines: Tensor) -> None:
    """Write rows (ways, N·M·W, C), summed over paths, to z (N, H, W, C), or add them unless `fresh`."""
    place = z[:, at].transpose(0, 1)  # (ways, N, W, C)
    first, *rest = lines.view(*place.shape[:2], paths, *place.shape[2:]).unbind(2)
    place.copy_(first) if fresh else place.add_(first)
    for path in rest:
        place.add_(path)


def put_columns(z: Tensor, paths: int, at: slice, lines: Tensor) -> None:
    """Add columns (ways, N·M·H, C), summed over paths, to z (N, H, W, C)."""
    place = z[:, :, at].permute(2, 0, 1, 3)  # (ways, N, H, C)
    for path in lines.view(*place.shape[:2], paths, *place.shape[2:]).unbind(2):
        place.add_(path)


def _walk(first: Tensor, sweep: Sweep, keep: Keep, scratch: Scratch) -> None:
    """Compute all lines from the line `first` (rows, C) in both directions; call `keep` with each."""
    keep(sweep.pair(0), first[None])
    ends = first.expand(2, *first.shape)
    if sweep.together:
        assert sweep.stacked is not None
        multiply = multiplier(sweep.stacked)
        here, centred, product = scratch.lines(3, ends.shape)
        for step in range(sweep.together):
            advance(here if step else ends, multiply, here, centred, product)
            keep(sweep.pair(step + 1), here)
        ends = here.clone() if any(sweep.alone) else ends
    for way, steps in enumerate(sweep.alone):
        multiply = multiplier(sweep.matrices[way])
        here, centred, product = scratch.lines(3, first.shape)
        for step in range(steps):
            advance(here if step else ends[way], multiply, here, centred, product)
            keep(sweep.line(way, sweep.together + step + 1), here[None])
